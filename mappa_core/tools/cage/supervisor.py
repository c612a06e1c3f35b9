"""The supervisor: runs the one program that is asked for on its channel, and replies once nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from mappa_core.tools.cage import disk, kernel, program
from mappa_core.tools.cage.bubblewrap import Bubblewrap
from mappa_core.tools.cage.cages import Bare, Cage, Landlocked, Seatbelted
from mappa_core.tools.cage.order import Order, Setup
from mappa_core.tools.cage.output import Ends
from mappa_core.tools.cage.watch import Guard, Watch, own_memory

CAGES: Mapping[str, Callable[[Setup, Order], Cage]] = {
    "bubblewrap": Bubblewrap,
    "landlock": Landlocked,
    "seatbelt": Seatbelted,
    "none": Bare,
}
OPEN_AT_MOST = os.sysconf("SC_OPEN_MAX")
"""Descriptors that may be open, before any limit."""
EXIT = os._exit
"""Which a program may replace."""
DESCRIPTORS = 256
"""Files, pipes and sockets that one process may have open: what lies in pipes and between sockets is memory."""
LOCKED_BYTES = 1 << 16
"""Memory that a process may keep from being moved to disk."""
SPARE_PROCESSES = 16
"""Processes of the cage itself, which count like the program's."""


def watch_signals(*signals: int) -> int:
    """A descriptor on which the numbers of these signals can be read, one byte each."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    return readable


def forget_signals(*signals: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in signals:
        signal.signal(number, signal.SIG_DFL)


def answer(channel: socket.socket, **reply: Any) -> None:
    with contextlib.suppress(OSError):  # the driver no longer waits
        channel.sendall(json.dumps(reply).encode() + b"\n")


def supervise(channel: socket.socket, warden: int, setup: Setup) -> None:
    """Read an order from `channel`, run it, reply."""
    signals = watch_signals(signal.SIGCHLD, signal.SIGTERM)
    kernel.die_with_parent(signal.SIGTERM)
    kernel.become_subreaper()
    with channel.makefile("rb") as lines:
        line = lines.readline()
    if os.getppid() != warden or not line:
        return
    order = Order.from_json(line)
    try:
        reply = run(order, CAGES[setup.tier](setup, order), channel, signals)
    except OSError as error:
        reply = {"fault": f"cannot run the program: {error}"}
    if reply is not None:
        answer(channel, **reply)


def run(order: Order, cage: Cage, channel: socket.socket, signals: int) -> dict[str, Any] | None:
    """The reply to `order`; None where nobody waits for it any more. Nothing of the program is left."""
    inherited = own_memory() if kernel.LINUX else 0
    try:
        hold_back(order)
        cage.build()
        kernel.die_with_parent(signal.SIGTERM)  # which entering a cage may have undone
        guard = Guard(cage, order, inherited) if kernel.LINUX else None
        ending = watched(order, cage, channel, signals, guard)
        disk.tidy(cage.folder)
        if ending is not None and guard is not None and (limit := guard.left_too_much()) is not None:
            disk.trim(cage.folder, guard.most_bytes, guard.most_entries)
            if ending["limit"] is None:
                ending |= {"exit": None, "limit": limit}
        return ending
    finally:
        cage.end(0)
        cage.clear()


def watched(
    order: Order, cage: Cage, channel: socket.socket, signals: int, guard: Guard | None
) -> dict[str, Any] | None:
    """Start the program, wait for its end or end it, and kill what it left; how it ended, and what it wrote."""
    outputs, ends = open_outputs(order)
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        become_program(order, cage, *ends)
    for end in ends:
        os.close(end)
    try:
        ending = Watch(pid, signals, channel, outputs, guard).until(started + order.wall_s)
        seconds = time.monotonic() - started
    finally:
        cage.end(pid)
    for output in outputs:
        output.drain()
    if ending is None:
        return None
    return {**ending, "stdout": outputs[0].kept(), "stderr": outputs[1].kept(), "seconds": seconds}


def open_outputs(order: Order) -> tuple[list[Ends], list[int]]:
    """Readers of standard output and error, and the ends that the program writes to."""
    pipes = [os.pipe(), os.pipe()]
    return [Ends(pipe, order.head_bytes, order.tail_bytes) for pipe, _ in pipes], [end for _, end in pipes]


def become_program(order: Order, cage: Cage, out: int, err: int) -> NoReturn:
    """Turn this fork into an interpreter that runs `order.code` as its script."""
    status = 1
    try:
        forget_signals(signal.SIGCHLD, signal.SIGTERM)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((null, out, err)):
            os.dup2(descriptor, number)
        os.chdir(cage.folder)
        os.umask(0o022)
        os.environ.update(HOME=cage.home, TMPDIR=cage.home)
        restrict(order, cage)
        cage.confine()  # may take a descriptor of the warden's
        os.closerange(3, OPEN_AT_MOST)
        kernel.die_with_parent(signal.SIGKILL)
        kernel.set_dumpable()
        status = program.run(order.code, order.arguments)
    except BaseException:  # noqa: BLE001 - reported, however little the program left to report with
        status = 1
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        EXIT(status)  # a fork must not go on as a second supervisor


def hold_back(order: Order) -> None:
    """Limits of the supervisor that all it starts shall have, the walls of a cage included, which a program may get
    hold of."""
    limit(resource.RLIMIT_FSIZE, order.file_bytes)
    limit(resource.RLIMIT_NOFILE, DESCRIPTORS)
    limit(resource.RLIMIT_MEMLOCK, LOCKED_BYTES)
    limit(resource.RLIMIT_CORE, 0)


def restrict(order: Order, cage: Cage) -> None:
    """Limits of this process and, each for itself, of those that it starts. The number of processes is one of a user's
    in all: the watch knows better, this is for what a program may start between two of its looks."""
    cpu = math.ceil(order.cpu_s)
    limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    limit(resource.RLIMIT_AS, order.memory_bytes + address_space())
    limit(resource.RLIMIT_NPROC, order.processes + (SPARE_PROCESSES if cage.has_user else threads_of_all()))


def limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, never above what is allowed already."""
    allowed = resource.getrlimit(kind)[1]
    values = [value if allowed == resource.RLIM_INFINITY else min(value, allowed) for value in (soft, hard or soft)]
    resource.setrlimit(kind, (values[0], values[1]))


def threads_of_all() -> int:
    """Threads and processes of all users."""
    if not kernel.LINUX:
        return resource.getrlimit(resource.RLIMIT_NPROC)[1]
    with open("/proc/loadavg", "rb") as load:
        return int(load.read().split()[3].partition(b"/")[2])


def address_space() -> int:
    """Bytes that this process has mapped: what was there before the program, and is not its own."""
    if not kernel.LINUX:
        return 0
    with open("/proc/self/statm", "rb") as sizes:
        return int(sizes.read().split()[0]) * resource.getpagesize()
