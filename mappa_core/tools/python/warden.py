"""The warden: a small clean process that forks one supervised process per program. Run as a script, never imported.

    driver ── warden ── supervisor ── program ── whatever it starts

The warden is started once, in an environment that holds nothing of the driver's, and waits on a socket. For every
program the driver sends it one end of a fresh socket pair (the *channel*) and the seconds after which the run counts as
stuck. The warden forks a supervisor, which reads one request from the channel, forks the program, keeps both ends of
its output, ends it at its limits, and kills every process that it left before it replies. Programs share no state:
each is a fork of a warden that has run none.

Whoever is left kills the rest: a supervisor ends when its channel or the warden does, the warden when the driver does.
Orphans come to the supervisor (on Linux, as a child subreaper), so leaving the session or the process group does not
help a program. A program that kills or stops its supervisor is reported as such; only one that kills both supervisor
and warden at once can leave a process behind, which takes a cage to prevent.

Without prctl (macOS, untried) only the program's process group is killed.
"""

# ruff: noqa: PTH102, PTH118, PTH120, PTH123, PTH208
# Bare system calls: what is done between fork and exit should be what is written here.

from __future__ import annotations

import base64
import contextlib
import ctypes
import gc
import json
import math
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from mappa_core.tools.python import program
else:  # by its file: the package, and what it imports, would be in every program
    _spec = spec_from_file_location("program", os.path.join(os.path.dirname(__file__), "program.py"))
    program = module_from_spec(_spec)
    _spec.loader.exec_module(program)

LINUX = sys.platform == "linux"
CHUNK = 1 << 16
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None, use_errno=True)


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


def prctl(option: int, value: int) -> None:
    if LINUX and LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def children() -> list[int]:
    """Direct children on Linux, zombies included. Only they may be signalled safely: their ids are not used again
    before we wait for them."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if state_of(pid)[1] == os.getpid()]


def state_of(pid: int) -> tuple[str, int]:
    """State letter and parent of a process on Linux; a process that is gone has neither."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            state, parent = stat.read().rpartition(b")")[2].split()[:2]
    except OSError:
        return "", 0
    return state.decode(), int(parent)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def sweep(group: int | None = None) -> None:
    """Kill all descendants: children first, then theirs, which become ours, until none is left. Where orphans do not
    come to us, it is the process group `group` that is killed."""
    if not LINUX and group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in children() if LINUX else ():
            kill(pid)
        time.sleep(0.0005)


# --- the warden -------------------------------------------------------------------------------------------------------


class Warden:
    """Forks supervisors, and answers for those that end without a reply."""

    def __init__(self, control: socket.socket, scratch: str) -> None:
        self.control = control
        self.scratch = scratch
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
                if not LINUX or state_of(pid)[0] != "T":  # one that was stopped is reported as killed
                    answer(channel, fault="the supervisor did not end the program in time")
                kill(pid)
                self.running[pid] = (channel, math.inf)

    def _accept(self) -> bool:
        """Fork a supervisor for the next program; False if the driver is gone."""
        message, descriptors, _, _ = socket.recv_fds(self.control, 8, 1)
        if not message:
            return False
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
            supervise(channel, warden, self.scratch)
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
                if pid in self.running:
                    channel, _ = self.running.pop(pid)
                    if code < 0:
                        answer(channel, killed=-code)
                    elif code > 0:
                        answer(channel, fault=f"the supervisor ended with exit code {code}")
                    channel.close()
                if code != 0:
                    self._clear(pid)

    def _clear(self, pid: int) -> None:
        """After a supervisor that was killed, and after each orphan that it left: nothing of the run stays."""
        shutil.rmtree(f"{self.scratch}/{pid}", ignore_errors=True)
        for child in children() if LINUX else ():
            if child not in self.running:
                kill(child)


def answer(channel: socket.socket, **reply: Any) -> None:
    with contextlib.suppress(OSError):  # the driver no longer waits
        channel.sendall(json.dumps(reply).encode() + b"\n")


# --- the supervisor ---------------------------------------------------------------------------------------------------


class Ends:
    """Reads a pipe to its end and keeps the first and the last bytes of what came."""

    def __init__(self, pipe: int, head: int, tail: int) -> None:
        self.pipe = pipe
        self.limits = head, tail
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        os.set_blocking(pipe, False)

    def take(self) -> bool:
        """Read once; False at the end of the file."""
        data = os.read(self.pipe, CHUNK)
        self.total += len(data)
        head, tail = self.limits
        room = head - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > tail + CHUNK:
            del self.tail[: len(self.tail) - tail]
        return bool(data)

    def kept(self) -> dict[str, Any]:
        tail = self.tail[max(0, len(self.tail) - self.limits[1]) :]
        cut = self.total - len(self.head) - len(tail)
        return {"head": base64.b64encode(self.head).decode(), "tail": base64.b64encode(tail).decode(), "cut": cut}


def supervise(channel: socket.socket, warden: int, scratch: str) -> None:
    """Run the one program that is asked for on `channel`, and reply once nothing of it is left."""
    signals = watch_signals(signal.SIGCHLD, signal.SIGTERM)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    with channel.makefile("rb") as lines:
        line = lines.readline()
    if os.getppid() != warden or not line:
        return
    request = json.loads(line)
    home = f"{scratch}/{os.getpid()}"
    try:
        os.mkdir(home, 0o700)
        os.chdir(request["cwd"])
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        started = time.monotonic()
        pid = os.fork()
    except OSError as error:
        shutil.rmtree(home, ignore_errors=True)
        answer(channel, fault=f"cannot start the program: {error}")
        return
    if pid == 0:
        become_program(request, home, out_end, err_end)
    os.close(out_end)
    os.close(err_end)
    outputs = [Ends(pipe, request["head_bytes"], request["tail_bytes"]) for pipe in (out, err)]
    ending = Watch(pid, signals, channel, outputs).until(started + request["wall_s"])
    seconds = time.monotonic() - started
    sweep(pid)
    for output in outputs:
        drain(output)
    shutil.rmtree(home, ignore_errors=True)
    if ending is not None:
        answer(channel, **ending, stdout=outputs[0].kept(), stderr=outputs[1].kept(), seconds=seconds)


class Watch:
    """Waits for a program while reading its output."""

    def __init__(self, pid: int, signals: int, channel: socket.socket, outputs: list[Ends]) -> None:
        self.pid = pid
        self.signals = signals
        self.channel = channel
        self.outputs = {output.pipe: output for output in outputs}

    def until(self, deadline: float) -> dict[str, Any] | None:
        """How the program ended: `exit`, or `limit` where the wall clock reached `deadline`. None: nobody waits for it
        any more, as driver or warden are gone."""
        poller = select.poll()
        for readable in (self.signals, self.channel.fileno(), *self.outputs):
            poller.register(readable, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            for fd, _ in poller.poll(left * 1000 + 1):
                if fd in self.outputs:
                    if not self.outputs[fd].take():
                        poller.unregister(fd)
                elif fd == self.signals:
                    if signal.SIGTERM in os.read(fd, CHUNK):
                        return None
                    if (ending := self._ended()) is not None:
                        return ending
                else:
                    return None
        return {"exit": None, "limit": "wall"}

    def _ended(self) -> dict[str, Any] | None:
        """Reap whatever ended; the program's ending if it did."""
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == self.pid:
                    code = os.waitstatus_to_exitcode(reaped[1])
                    # The kernel's answer to a soft limit of CPU time; to the hard one, a second later, it is SIGKILL.
                    spent = code == -signal.SIGXCPU
                    return {"exit": None, "limit": "cpu"} if spent else {"exit": code, "limit": None}
        return None


def drain(output: Ends) -> None:
    """Read what is still in the pipe. Its writers are dead; where they may not be, it is read a bounded number of
    times and never waited for."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(64):
            if not output.take():
                break
    os.close(output.pipe)


def become_program(request: dict[str, Any], home: str, out: int, err: int) -> NoReturn:
    """Turn this fork into an interpreter that runs `request["code"]` as its script."""
    try:
        forget_signals(signal.SIGCHLD, signal.SIGTERM)
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((null, out, err)):
            os.dup2(descriptor, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.update(HOME=home, TMPDIR=home)
        restrict(request)
        os._exit(program.run(request["code"]))
    except BaseException:  # noqa: BLE001 - a fork must not go on as a second supervisor
        traceback.print_exc()
        os._exit(1)


def restrict(request: dict[str, Any]) -> None:
    """Limits of this process and, each for itself, of those that it starts."""
    cpu = math.ceil(request["cpu_s"])
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_AS, request["memory_bytes"], request["memory_bytes"]),
        (resource.RLIMIT_FSIZE, request["file_bytes"], request["file_bytes"]),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


def main(control: int, scratch: str) -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what the driver's thread blocks is not meant for us
    os.chdir("/")
    warden = Warden(socket.socket(fileno=control), scratch)
    gc.collect()
    gc.freeze()
    try:
        warden.serve()
    finally:
        warden.control.close()  # the driver starts another one from here on
        forget_signals(signal.SIGCHLD)
        for pid in warden.running:
            kill(pid)
        sweep()
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
