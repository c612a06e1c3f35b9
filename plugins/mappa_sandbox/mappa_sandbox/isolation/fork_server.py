"""The fork server: a small clean process that forks a supervisor for each program. Started by the driver.

    driver -- fork server -- supervisor -- program -- its children

The fork server is started once, in an environment that holds nothing of the driver's. It imports the modules to
preload, reports that it is ready, and waits on a socket. For every program the driver sends it one end of a new socket
pair (the *channel*) and the seconds after which the run counts as stuck; the fork server forks a supervisor for it.
Programs share no state: each is a fork of a fork server that has run none.

No process outlives its parent: a supervisor ends when its channel or the fork server does, the fork server when the
driver does. The supervisor adopts orphans (on Linux, as a child subreaper), so a program gains nothing by leaving the
session or the process group. Without a sandbox a program can kill or stop its supervisor, which is reported as such.

Without prctl (macOS, untested) only the program's process group is killed.
"""

# Bare system calls, so that nothing but the code here runs between fork and exit.

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
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from mappa_core.safe_walk import remove_tree
from mappa_sandbox.isolation import control_groups, huge_pages, kernel, landlock, processes, program
from mappa_sandbox.isolation.job import SandboxConfig
from mappa_sandbox.isolation.output import read_available
from mappa_sandbox.isolation.supervisor import open_signal_pipe, reset_signals, send_reply, supervise


class ForkServer:
    """Forks supervisors, and replies for those that end without a reply."""

    def __init__(self, control: socket.socket, config: SandboxConfig) -> None:
        self.control = control
        self.config = config
        self.signals = open_signal_pipe(signal.SIGCHLD, signal.SIGTERM)
        self.running: dict[int, tuple[socket.socket, float]] = {}

    def serve(self) -> None:
        """Serve until the driver closes its end or dies."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.signals, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll(self._poll_timeout_ms())}
            if self.signals in ready:
                if signal.SIGTERM in (read_available(self.signals) or b""):
                    return
                self._reap()
            if self.control.fileno() in ready and not self._accept():
                return
            self._kill_overdue()

    def _poll_timeout_ms(self) -> float | None:
        """Milliseconds until the next supervisor is overdue; None without supervisors."""
        earliest = min((deadline for _, deadline in self.running.values()), default=math.inf)
        return None if earliest == math.inf else max(0.0, earliest - time.monotonic()) * 1000 + 1

    def _kill_overdue(self) -> None:
        for pid, (channel, deadline) in self.running.items():
            if deadline < time.monotonic():
                if not kernel.LINUX or processes.process_state(pid) != "T":  # a stopped one is reported as killed
                    send_reply(
                        channel, fault=f"the supervisor did not end the program in time ({_describe_kernel_waits(pid)})"
                    )
                processes.kill(pid)
                self.running[pid] = (channel, math.inf)

    def _accept(self) -> bool:
        """Fork a supervisor for the next program; returns False if the driver is gone."""
        message, descriptors, _, _ = socket.recv_fds(self.control, 8, 1)
        if not message:
            return False
        os.set_inheritable(descriptors[0], False)
        channel = socket.socket(fileno=descriptors[0])
        try:
            pid = os.fork()
        except OSError as error:
            send_reply(channel, fault=f"cannot fork: {error}")
            channel.close()
            return True
        if pid == 0:
            self._become_supervisor(channel)
        self.running[pid] = (channel, time.monotonic() + struct.unpack("<d", message)[0])
        return True

    def _become_supervisor(self, channel: socket.socket) -> NoReturn:
        fork_server = os.getppid()
        try:
            self.control.close()
            for other, _ in self.running.values():
                other.close()
            supervise(channel, fork_server, self.config)
        except BaseException:  # noqa: BLE001 - a fork must not go on as a second fork server
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
                        send_reply(channel, killed=-code)
                    elif code > 0:
                        send_reply(channel, fault=f"the supervisor ended with exit code {code}")
                    channel.close()
                if orphan or code != 0:
                    self._clean_up_after(pid)

    def _clean_up_after(self, pid: int) -> None:
        """Remove all that is left of a run: after its supervisor was killed, and after each orphan of it."""
        remove_tree(Path(self.config.scratch, str(pid)))
        if self.config.control_base:
            control_groups.remove_groups(self.config.control_base, of=(pid,))
        for child in processes.children_of(os.getpid()):
            if child not in self.running:
                processes.kill(child)


def _describe_kernel_waits(supervisor: int) -> str:
    """Where in the kernel a hanging supervisor and its children wait: `4710 S futex_do_wait; 4711 R 0`."""
    if not kernel.LINUX:
        return "why is not known here"
    waits = []
    for pid in (supervisor, *processes.children_of(supervisor)):
        with contextlib.suppress(OSError):  # it has ended
            waits.append(f"{pid} {processes.process_state(pid)} {Path(f'/proc/{pid}/wchan').read_text()}")
    return "; ".join(waits)


def preload_modules(names: tuple[str, ...]) -> dict[str, Any]:
    """Import modules; returns the greeting for the driver: `ready`, or the `fault` of the first module that could not
    be imported. A module whose name ends in `?` may be missing."""
    for name in names:
        try:
            with contextlib.suppress(*([ModuleNotFoundError] if name.endswith("?") else [])):
                importlib.import_module(name.removesuffix("?"))
        except BaseException as error:  # noqa: BLE001 - whatever a module does
            return {"fault": f"preload: cannot import {name!r}: {type(error).__name__}: {error}"}
    return {"ready": True, "threads": _count_other_threads()}


def _count_other_threads() -> int:
    """Number of threads beside this one. Programs are forks without them, whatever locks they held."""
    return (len(os.listdir("/proc/self/task")) if kernel.LINUX else threading.active_count()) - 1


def main() -> None:
    """Run the fork server. Arguments: the descriptor of the control socket, and the SandboxConfig as JSON."""
    control = socket.socket(fileno=int(sys.argv[1]))
    config = SandboxConfig.from_json(sys.argv[2])
    control.set_inheritable(False)
    kernel.die_with_parent(signal.SIGTERM)
    kernel.become_subreaper()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # signals that the driver's thread blocks are not blocked here
    os.chdir("/")
    os.environ.pop("PYTHONMALLOC", None)  # programs and what they start choose for themselves
    sys.argv = [""]
    if config.held:
        config = replace(config, control_base=control_groups.open_base())
    greeting = preload_modules(config.preload)
    control.sendall(json.dumps(greeting).encode() + b"\n")
    if "fault" in greeting:
        return
    if kernel.LINUX:
        processes.socket_bytes()  # cached, as it cannot be read in a network namespace
    if config.backend == "landlock":
        landlock.prepare(config.hidden)
    fork_server = ForkServer(control, config)
    program.record_own_modules()
    gc.collect()
    gc.freeze()
    if kernel.LINUX:
        huge_pages.collapse_memory()
    try:
        fork_server.serve()
    finally:
        control.close()  # from here on the driver starts another one
        reset_signals(signal.SIGCHLD)
        for pid in fork_server.running:
            processes.kill(pid)
        processes.kill_descendants()
        if config.control_base:
            control_groups.remove_groups(config.control_base, of=fork_server.running)
        remove_tree(Path(config.scratch))
