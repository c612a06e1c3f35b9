"""The fork server: a clean process that forks a supervisor for each program. Started by the driver.

    driver -- fork server -- supervisor -- program -- its children
    driver -- fork server -- supervisor, and zygote -- program -- its children    with bubblewrap

The fork server is started once, in an environment that holds nothing of the driver's. It imports the modules to
preload, reports that it is ready, and waits on a socket. For every program the driver sends it one end of a new socket
pair (the *channel*) and the seconds after which the run counts as stuck. The fork server hands it to a supervisor that
has built a sandbox and forked the program into it already: while programs run, as many others are prepared. Where
programs run in containers, the fork server stays small: its child, the *zygote*, imports the modules, and forks
programs where supervisors tell it. Programs share no state: each is a fork of a process that has run none.

No process outlives its parent: a supervisor ends when its channel or the fork server does, a program when its
supervisor or its parent does, the zygote when the fork server does, the fork server when the driver does. The
supervisor adopts orphans (as a child subreaper), so a program gains nothing by leaving the session or the
process group; in a container its first process adopts them. Without a sandbox a program can kill or stop its
supervisor, which is reported as such.
"""

# Bare system calls, so that nothing but the code here runs between fork and exit.

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from mappa_core.safe_walk import remove_tree
from mappa_sandbox.isolation import control_groups, kernel, landlock, processes, seccomp
from mappa_sandbox.isolation.bubblewrap import enter_user_namespace
from mappa_sandbox.isolation.job import SandboxConfig
from mappa_sandbox.isolation.output import read_available
from mappa_sandbox.isolation.preload import preload, settle_memory
from mappa_sandbox.isolation.signal_pipe import open_signal_pipe, reset_signals
from mappa_sandbox.isolation.supervisor import BEGUN, send_reply, supervise
from mappa_sandbox.isolation.zygote import Zygote
from mappa_sandbox.isolation.zygote_process import start_zygote


@dataclass(frozen=True)
class Running:
    """What there is of a supervisor with a job: the channel of the driver, the socket that the job came from, and the
    time by which it must have ended."""

    channel: socket.socket
    jobs: socket.socket
    deadline: float

    def has_begun(self) -> bool:
        """Whether the program may have begun. Asked once, when the supervisor has ended."""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            return self.jobs.recv(len(BEGUN), socket.MSG_DONTWAIT) == BEGUN
        return False

    def close(self) -> None:
        self.channel.close()
        self.jobs.close()


class ForkServer:
    """Forks supervisors, and replies for those that end without a reply."""

    def __init__(self, control: socket.socket, config: SandboxConfig, zygote: Zygote | None = None) -> None:
        self.control = control
        self.config = config
        self.zygote = zygote
        self.signals = open_signal_pipe(signal.SIGCHLD, signal.SIGTERM)
        self.running: dict[int, Running] = {}
        self.waiting: dict[int, socket.socket] = {}
        """Supervisors that have no job yet, and where they get one from."""

    def serve(self) -> None:
        """Serve until the driver closes its end or dies, or the zygote does."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.signals, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll(self._poll_timeout_ms())}
            if self.signals in ready and (signal.SIGTERM in (read_available(self.signals) or b"") or not self._reap()):
                return
            if self.control.fileno() in ready and not self._accept():
                return
            self._kill_overdue()

    def _poll_timeout_ms(self) -> float | None:
        """Milliseconds until the next supervisor is overdue; None without supervisors."""
        earliest = min((running.deadline for running in self.running.values()), default=math.inf)
        # A millisecond more, or it could wake just before the deadline and poll in circles until then.
        return None if earliest == math.inf else max(0.0, earliest - time.monotonic()) * 1000 + 1

    def _kill_overdue(self) -> None:
        for pid, running in self.running.items():
            if running.deadline < time.monotonic():
                if processes.process_state(pid) != "T":  # a stopped one is reported as killed
                    waits = _describe_kernel_waits(pid)
                    send_reply(running.channel, fault=f"the supervisor did not end the program in time ({waits})")
                processes.kill(pid)
                # It stays in the table until it is reaped, but is not overdue again.
                self.running[pid] = replace(running, deadline=math.inf)

    def _accept(self) -> bool:
        """Hand the next program to a supervisor; returns False if the driver is gone."""
        message, descriptors, _, _ = socket.recv_fds(self.control, 8, 1)  # 8 bytes: the seconds
        if not message:
            return False
        # A received descriptor is inheritable: whatever is executed would hold the channel open.
        os.set_inheritable(descriptors[0], False)
        channel = socket.socket(fileno=descriptors[0])
        try:
            self._hand_over(channel, time.monotonic() + struct.unpack("<d", message)[0])
        except OSError as error:
            send_reply(channel, fault=f"cannot fork: {error}")
            channel.close()
            return True
        with contextlib.suppress(OSError):  # the next program will say that there cannot be another
            while len(self.waiting) < min(self.config.workers, len(self.running)):
                self._fork_supervisor()
        return True

    def _hand_over(self, channel: socket.socket, deadline: float) -> None:
        """Hand a channel to the supervisor that has waited for one the longest."""
        if not self.waiting:
            self._fork_supervisor()
        pid = next(iter(self.waiting))
        self.running[pid] = Running(channel, self.waiting.pop(pid), deadline)
        with contextlib.suppress(BrokenPipeError):  # it has ended, and is found so
            # On a stream a descriptor travels only with a byte of data.
            socket.send_fds(self.running[pid].jobs, [b"!"], [channel.fileno()])

    def _fork_supervisor(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                ours.close()
                self._become_supervisor(theirs)
        self.waiting[pid] = ours

    def _become_supervisor(self, jobs: socket.socket) -> NoReturn:
        fork_server = os.getppid()
        try:
            # The end of each of these sockets is how the others see that a process is gone: no fork may hold it open.
            self.control.close()
            for waiting in self.waiting.values():
                waiting.close()
            for running in self.running.values():
                running.close()
            supervise(jobs, fork_server, self.config, self.zygote)
        except BaseException:  # noqa: BLE001 - a fork must not go on as a second fork server
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _reap(self) -> bool:
        """Reap children that have ended; returns False if the zygote is one of them."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if self.zygote is not None and pid == self.zygote.pid:
                    return False
                code = os.waitstatus_to_exitcode(status)
                orphan = pid not in self.running.keys() | self.waiting.keys()
                if pid in self.waiting:
                    self.waiting.pop(pid).close()
                elif not orphan:
                    ended = self.running.pop(pid)
                    if code < 0 and ended.has_begun():
                        send_reply(ended.channel, killed=-code)
                    elif code != 0:
                        send_reply(ended.channel, fault=f"the supervisor ended with {code}")
                    ended.close()
                if orphan or code != 0:
                    self._clean_up_after(pid)
        return True

    def _clean_up_after(self, pid: int) -> None:
        """Remove all that is left of a run: after its supervisor was killed, and after each orphan of it."""
        remove_tree(Path(self.config.scratch, str(pid)))
        if self.config.control_base:
            control_groups.remove_groups(self.config.control_base, of=(pid,))
        kept = self.running.keys() | self.waiting.keys() | ({self.zygote.pid} if self.zygote is not None else set())
        for child in processes.children_of(os.getpid()):
            if child not in kept:
                processes.kill(child)


def _describe_kernel_waits(supervisor: int) -> str:
    """Where in the kernel a hanging supervisor and its children wait: `4710 S futex_do_wait; 4711 R 0`."""
    waits = []
    for pid in (supervisor, *processes.children_of(supervisor)):
        with contextlib.suppress(OSError):  # it has ended
            waits.append(f"{pid} {processes.process_state(pid)} {Path(f'/proc/{pid}/wchan').read_text()}")
    return "; ".join(waits)


def main() -> None:
    """Run the fork server. Arguments: the descriptor of the control socket, and the SandboxConfig as JSON."""
    control = socket.socket(fileno=int(sys.argv[1]))
    config = SandboxConfig.from_json(sys.argv[2])
    control.set_inheritable(False)
    # Not SIGKILL: it still has to end programs and remove folders. If the driver has died already, the socket says so.
    kernel.die_with_parent(signal.SIGTERM)
    kernel.become_subreaper()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # signals that the driver's thread blocks are not blocked here
    os.chdir("/")
    os.environ.pop("PYTHONMALLOC", None)  # programs and what they start choose for themselves
    sys.argv = [""]
    if config.held:
        config = replace(config, control_base=control_groups.open_base())
    if config.backend == "landlock":
        config = replace(config, may_mount=_enter_mounts())
    zygote, greeting = _prepare(config, control)
    greeting["holds_files"] = config.may_mount or config.backend == "bubblewrap"
    control.sendall(json.dumps(greeting).encode() + b"\n")
    if "ready" not in greeting:
        return
    fork_server = ForkServer(control, config, zygote)
    settle_memory()
    try:
        fork_server.serve()
    finally:
        control.close()  # from here on the driver starts another one
        reset_signals(signal.SIGCHLD)
        supervisors = fork_server.running.keys() | fork_server.waiting.keys()
        for pid in supervisors:
            processes.kill(pid)
        processes.kill_descendants()
        if config.control_base:
            control_groups.remove_groups(config.control_base, of=supervisors)
        remove_tree(Path(config.scratch))


def _enter_mounts() -> bool:
    """Make it possible for supervisors to mount, and return True; return False if it is not possible here. As an
    ordinary user, this process is in a user namespace afterwards."""
    trial = os.fork()  # from a user namespace in which it turns out that mounts are forbidden there is no way back
    if trial == 0:
        try:
            _enter_user_namespace()
            kernel.enter_own_mounts()
            kernel.mount_memory_files("/", 1 << 20, 8)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the parent learns it from the exit code
            os._exit(1)
    if os.waitpid(trial, 0)[1] != 0:
        return False
    _enter_user_namespace()
    kernel.die_with_parent(signal.SIGTERM)  # entering it has undone it
    return True


def _enter_user_namespace() -> None:
    if os.geteuid() != 0:
        kernel.enter_own_user_namespace()


def _prepare(config: SandboxConfig, control: socket.socket) -> tuple[Zygote | None, dict[str, Any]]:
    """Preload modules, in a zygote where programs are forks of one; returns it, and the greeting for the driver."""
    processes.socket_bytes()  # cached, as it cannot be read in a network namespace
    seccomp.build_filter(keep_metadata=config.backend == "landlock")  # cached, as every fork needs it
    if config.backend != "bubblewrap":
        if config.backend == "landlock":
            landlock.prepare(config.hidden)
        return None, preload(config)
    try:
        if os.geteuid() != 0:
            assert config.bubblewrap is not None  # the driver found it
            enter_user_namespace(config.bubblewrap)
            kernel.die_with_parent(signal.SIGTERM)  # entering it has undone it
        return start_zygote(config, control.close)
    except OSError as error:
        return None, {"broken": str(error)}
