"""The warden: a small clean process that forks one supervised process per program. Started by the driver.

    driver -- warden -- supervisor -- program -- whatever it starts

The warden is started once, in an environment that holds nothing of the driver's. It imports what is to be preloaded,
says that it is ready, and waits on a socket. For every program the driver sends it one end of a fresh socket pair (the
*channel*) and the seconds after which the run counts as stuck; the warden forks a supervisor for it. Programs share no
state: each is a fork of a warden that has run none.

Whoever is left kills the rest: a supervisor ends when its channel or the warden does, the warden when the driver does.
Orphans come to the supervisor (on Linux, as a child subreaper), so leaving the session or the process group does not
help a program. Without a cage a program can kill or stop its supervisor, which is reported as such.

Without prctl (macOS, untried) only the program's process group is killed.
"""

# Bare system calls: what is done between fork and exit should be what is written here.

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from mappa_core.tools.cage import kernel, landlock, processes, program
from mappa_core.tools.cage.order import Setup
from mappa_core.tools.cage.output import CHUNK
from mappa_core.tools.cage.supervisor import answer, forget_signals, supervise, watch_signals
from mappa_core.tools.cage.walk import remove


class Warden:
    """Forks supervisors, and answers for those that end without a reply."""

    def __init__(self, control: socket.socket, setup: Setup) -> None:
        self.control = control
        self.setup = setup
        self.signals = watch_signals(signal.SIGCHLD, signal.SIGTERM)
        self.running: dict[int, tuple[socket.socket, float]] = {}

    def serve(self) -> None:
        """Until the driver closes its end or dies."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.signals, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll(self._patience())}
            if self.signals in ready:
                if signal.SIGTERM in os.read(self.signals, CHUNK):
                    return
                self._reap()
            if self.control.fileno() in ready and not self._accept():
                return
            self._end_overdue()

    def _patience(self) -> float | None:
        """Milliseconds until the next supervisor is overdue."""
        earliest = min((deadline for _, deadline in self.running.values()), default=math.inf)
        return None if earliest == math.inf else max(0.0, earliest - time.monotonic()) * 1000 + 1

    def _end_overdue(self) -> None:
        for pid, (channel, deadline) in self.running.items():
            if deadline < time.monotonic():
                if not kernel.LINUX or processes.state_of(pid) != "T":  # one that was stopped is reported as killed
                    answer(channel, fault=f"the supervisor did not end the program in time ({_waits(pid)})")
                processes.kill(pid)
                self.running[pid] = (channel, math.inf)

    def _accept(self) -> bool:
        """Fork a supervisor for the next program; False if the driver is gone."""
        message, descriptors, _, _ = socket.recv_fds(self.control, 8, 1)
        if not message:
            return False
        os.set_inheritable(descriptors[0], False)
        channel = socket.socket(fileno=descriptors[0])
        try:
            pid = os.fork()
        except OSError as error:
            answer(channel, fault=f"cannot fork: {error}")
            channel.close()
            return True
        if pid == 0:
            self._become_supervisor(channel)
        self.running[pid] = (channel, time.monotonic() + struct.unpack("<d", message)[0])
        return True

    def _become_supervisor(self, channel: socket.socket) -> NoReturn:
        warden = os.getppid()
        try:
            self.control.close()
            for other, _ in self.running.values():
                other.close()
            supervise(channel, warden, self.setup)
        except BaseException:  # noqa: BLE001 - a fork must not go on as a second warden
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                code = os.waitstatus_to_exitcode(status)
                orphan = pid not in self.running
                if not orphan:
                    channel, _ = self.running.pop(pid)
                    if code < 0:
                        answer(channel, killed=-code)
                    elif code > 0:
                        answer(channel, fault=f"the supervisor ended with exit code {code}")
                    channel.close()
                if orphan or code != 0:
                    self._clear(pid)

    def _clear(self, pid: int) -> None:
        """After a supervisor that was killed, and after each orphan that it left: nothing of the run stays."""
        remove(Path(self.setup.scratch, str(pid)))
        for child in processes.children_of(os.getpid()):
            if child not in self.running:
                processes.kill(child)


def _waits(supervisor: int) -> str:
    """What a supervisor that hangs, and its children, wait for in the kernel: `4710 S futex_do_wait; 4711 R 0`."""
    if not kernel.LINUX:
        return "why is not known here"
    waits = []
    for pid in (supervisor, *processes.children_of(supervisor)):
        with contextlib.suppress(OSError):  # it has ended
            waits.append(f"{pid} {processes.state_of(pid)} {Path(f'/proc/{pid}/wchan').read_text()}")
    return "; ".join(waits)


def preload(names: tuple[str, ...]) -> dict[str, Any]:
    """Import modules; what to tell the driver: `ready`, or the `fault` of the first that could not be imported. One
    whose name ends in `?` need not be there."""
    for name in names:
        try:
            with contextlib.suppress(*([ModuleNotFoundError] if name.endswith("?") else [])):
                importlib.import_module(name.removesuffix("?"))
        except BaseException as error:  # noqa: BLE001 - whatever a module does
            return {"fault": f"preload: cannot import {name!r}: {type(error).__name__}: {error}"}
    return {"ready": True, "threads": _threads()}


def _threads() -> int:
    """Threads that are running beside this one. Programs are forks without them, whatever they held."""
    return (len(os.listdir("/proc/self/task")) if kernel.LINUX else threading.active_count()) - 1


def main() -> None:
    """Arguments: the number of the control socket, and the setup as JSON."""
    control = socket.socket(fileno=int(sys.argv[1]))
    setup = Setup.from_json(sys.argv[2])
    control.set_inheritable(False)
    kernel.die_with_parent(signal.SIGTERM)
    kernel.become_subreaper()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what the driver's thread blocks is not meant for us
    os.chdir("/")
    sys.argv = [""]
    greeting = preload(setup.preload)
    control.sendall(json.dumps(greeting).encode() + b"\n")
    if "fault" in greeting:
        return
    if kernel.LINUX:
        processes.socket_bytes()  # which a network namespace does not tell
    if setup.tier == "landlock":
        landlock.prepare(setup.hidden)
    warden = Warden(control, setup)
    program.note_modules()
    gc.collect()
    gc.freeze()
    try:
        warden.serve()
    finally:
        control.close()  # the driver starts another one from here on
        forget_signals(signal.SIGCHLD)
        for pid in warden.running:
            processes.kill(pid)
        processes.sweep()
        remove(Path(setup.scratch))
