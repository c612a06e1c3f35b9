"""The supervisor: runs the one job it reads from its channel, and replies once none of its processes are left."""

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

from mappa_sandbox.isolation import control_groups, disk, kernel, program
from mappa_sandbox.isolation.backends import LandlockBackend, NoSandbox, SandboxBackend, SeatbeltBackend
from mappa_sandbox.isolation.bubblewrap import BubblewrapBackend
from mappa_sandbox.isolation.control_groups import SPARE_PROCESSES, ControlGroup
from mappa_sandbox.isolation.job import SandboxConfig, SandboxJob
from mappa_sandbox.isolation.monitor import LimitChecker, ProgramMonitor, own_memory_bytes
from mappa_sandbox.isolation.output import OutputCapture, open_one_way

BACKENDS: Mapping[str, Callable[[SandboxConfig, SandboxJob], SandboxBackend]] = {
    "bubblewrap": BubblewrapBackend,
    "landlock": LandlockBackend,
    "seatbelt": SeatbeltBackend,
    "none": NoSandbox,
}
MAX_OPEN_FILES = os.sysconf("SC_OPEN_MAX")
"""Number of descriptors that may be open, before any limit is set."""
EXIT = os._exit
"""Kept here, as a program may replace `os._exit`."""
MAX_DESCRIPTORS = 256
"""Files, pipes and sockets that one process may have open: buffers of pipes and sockets use memory."""
MAX_LOCKED_BYTES = 1 << 16
"""Memory that a process may lock against swapping."""


def open_signal_pipe(*signals: int) -> int:
    """Return a descriptor from which the numbers of received signals can be read, one byte each."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    return readable


def reset_signals(*signals: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in signals:
        signal.signal(number, signal.SIG_DFL)


def send_reply(channel: socket.socket, **reply: Any) -> None:
    with contextlib.suppress(OSError):  # the driver no longer waits
        channel.sendall(json.dumps(reply).encode() + b"\n")


def supervise(channel: socket.socket, fork_server: int, config: SandboxConfig) -> None:
    """Read a job from `channel`, run it, reply."""
    signals = open_signal_pipe(signal.SIGCHLD, signal.SIGTERM)
    kernel.die_with_parent(signal.SIGTERM)
    kernel.become_subreaper()
    with channel.makefile("rb") as lines:
        line = lines.readline()
    if os.getppid() != fork_server or not line:
        return
    job = SandboxJob.from_json(line)
    try:
        reply = run_in_group(job, config, channel, signals)
    except OSError as error:
        reply = {"fault": f"cannot run the program: {error}"}
    if reply is not None:
        send_reply(channel, **reply)


def run_in_group(job: SandboxJob, config: SandboxConfig, channel: socket.socket, signals: int) -> dict[str, Any] | None:
    """Run `job` in a control group of its own where there are any; as `run_job` otherwise."""
    sandbox = BACKENDS[config.backend](config, job)
    if not config.control_base:
        return run_job(job, sandbox, channel, signals, None)
    group = control_groups.make_group(config.control_base, job, config.held, own_memory_bytes())
    try:
        return run_job(job, sandbox, channel, signals, group)
    finally:
        group.remove()


def run_job(
    job: SandboxJob, sandbox: SandboxBackend, channel: socket.socket, signals: int, group: ControlGroup | None
) -> dict[str, Any] | None:
    """Run `job` and return the reply; None if nobody waits for it any more. No process of the program is left."""
    inherited_memory = own_memory_bytes() if kernel.LINUX else 0
    try:
        limit_supervisor(job)
        sandbox.build()
        kernel.die_with_parent(signal.SIGTERM)  # entering a sandbox may have undone it
        checker = LimitChecker(sandbox, job, inherited_memory, group) if kernel.LINUX else None
        ending = run_monitored(job, sandbox, channel, signals, checker)
        disk.make_readable(sandbox.folder)
        if ending is not None and checker is not None and (limit := checker.exceeded_at_end()) is not None:
            disk.trim(sandbox.folder, checker.max_bytes, checker.max_entries)
            if ending["limit"] is None:
                ending |= {"exit": None, "limit": limit}
        return ending
    finally:
        sandbox.kill_all(0)
        sandbox.clean_up()


def run_monitored(
    job: SandboxJob, sandbox: SandboxBackend, channel: socket.socket, signals: int, checker: LimitChecker | None
) -> dict[str, Any] | None:
    """Start the program, wait until it ends or reaches a limit, and kill what it left. Returns how it ended, and its
    output; None if nobody waits for it any more."""
    outputs, ends = open_outputs(job)
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        become_program(job, sandbox, ends, checker.group if checker is not None else None)
    for end in ends:
        os.close(end)
    try:
        ending = ProgramMonitor(pid, signals, channel, outputs, checker).wait_until(started + job.wall_s)
        seconds = time.monotonic() - started
    finally:
        sandbox.kill_all(pid)
    for output in outputs:
        output.drain()
    if ending is None:
        return None
    return {**ending, "stdout": outputs[0].to_reply(), "stderr": outputs[1].to_reply(), "seconds": seconds}


def open_outputs(job: SandboxJob) -> tuple[list[OutputCapture], list[int]]:
    """Create the captures of standard output and error, and the ends that the program writes to."""
    pairs = [open_one_way(), open_one_way()]
    return [OutputCapture(ours, job.head_bytes, job.tail_bytes) for ours, _ in pairs], [theirs for _, theirs in pairs]


def become_program(
    job: SandboxJob, sandbox: SandboxBackend, outputs: list[int], group: ControlGroup | None
) -> NoReturn:
    """Turn this fork into an interpreter that runs `job.code` as its script."""
    status = 1
    try:
        if group is not None:
            group.join()
        reset_signals(signal.SIGCHLD, signal.SIGTERM)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((null, *outputs)):
            os.dup2(descriptor, number)
        os.chdir(sandbox.folder)
        os.umask(0o022)
        os.environ.update(HOME=sandbox.home, TMPDIR=sandbox.home)
        limit_program(job, sandbox)
        sandbox.confine()  # may need a descriptor of the fork server
        os.closerange(3, MAX_OPEN_FILES)
        kernel.die_with_parent(signal.SIGKILL)
        kernel.set_dumpable()
        status = program.run_program(job.code, job.arguments)
    except BaseException:  # noqa: BLE001 - reported as far as the program left the means to
        status = 1
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        EXIT(status)  # a fork must not go on as a second supervisor


def limit_supervisor(job: SandboxJob) -> None:
    """Set limits that the supervisor and all its children have, the processes of the sandbox included, as a program may
    gain control of them."""
    set_limit(resource.RLIMIT_FSIZE, job.file_bytes)
    set_limit(resource.RLIMIT_NOFILE, MAX_DESCRIPTORS)
    set_limit(resource.RLIMIT_MEMLOCK, MAX_LOCKED_BYTES)
    set_limit(resource.RLIMIT_CORE, 0)


def limit_program(job: SandboxJob, sandbox: SandboxBackend) -> None:
    """Set the limits of this process and of each that it starts. The limit on processes counts all processes of a user:
    the LimitChecker counts better, this one covers what a program starts between two of its checks."""
    cpu = math.ceil(job.cpu_s)
    set_limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    set_limit(resource.RLIMIT_AS, job.memory_bytes + address_space_bytes())
    set_limit(resource.RLIMIT_NPROC, job.processes + (SPARE_PROCESSES if sandbox.has_own_user else count_threads()))


def set_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a resource limit, never above the current hard limit."""
    allowed = resource.getrlimit(kind)[1]
    values = [value if allowed == resource.RLIM_INFINITY else min(value, allowed) for value in (soft, hard or soft)]
    resource.setrlimit(kind, (values[0], values[1]))


def count_threads() -> int:
    """Number of threads and processes of all users."""
    if not kernel.LINUX:
        return resource.getrlimit(resource.RLIMIT_NPROC)[1]
    with open("/proc/loadavg", "rb") as load:
        return int(load.read().split()[3].partition(b"/")[2])


def address_space_bytes() -> int:
    """Bytes that this process has mapped before the program starts, which do not count as the program's."""
    if not kernel.LINUX:
        return 0
    with open("/proc/self/statm", "rb") as sizes:
        return int(sizes.read().split()[0]) * resource.getpagesize()
