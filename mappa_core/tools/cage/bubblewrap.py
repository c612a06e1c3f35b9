"""The tier `bubblewrap`: a room of namespaces and mounts that `bwrap` builds, and that the supervisor walks into.

`bwrap` starts `cat`, which answers once the room is ready and then waits in it. The supervisor enters the room's
namespaces, so that the program, its fork, is born inside, with everything that was imported before the fork and without
starting an interpreter. When the supervisor ends, however it ends, so does the room with all that is in it.

In the room the workspace is the only place on a disk that can be written to. /tmp and /dev/shm lie in memory. There is
no network but an empty one, no other process, and of /dev only what cannot hold anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import stat
from collections.abc import Iterable, Iterator, Mapping

from mappa_core.tools.cage import kernel, places, privileges, processes, seccomp
from mappa_core.tools.cage.cages import Cage, tenant
from mappa_core.tools.cage.order import Order, Setup

WORKSPACE = "/workspace"
HOME = "/tmp"
PATIENCE_S = 20.0
"""Seconds until a room that is not ready counts as broken: for a busy machine."""
HOLD, READY, ERRORS, INFO, FILTER, EMPTY = range(6)
"""Descriptors of `bwrap`. None of them leads to a file of the host: a program may open what `cat` has open."""
SPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET


class Bubblewrap(Cage):
    """One room, for one program."""

    folder = WORKSPACE
    home = HOME
    folders = (WORKSPACE,)
    has_user = True

    def __init__(self, setup: Setup, order: Order) -> None:
        self.setup = setup
        self.order = order
        self.uid = tenant(order.folder) if os.geteuid() == 0 else None
        self.pid = 0
        self.hold = -1

    def build(self) -> None:
        if self.uid is not None:
            _check_readable(self.order.inputs)
        hold, self.hold = os.pipe()
        ready, said = os.pipe()
        errors, complaint = os.pipe()
        info, told = os.pipe()
        guard, filter_end = os.pipe()
        os.write(filter_end, seccomp.program(keep_metadata=False))
        os.close(filter_end)
        ends = {HOLD: hold, READY: said, ERRORS: complaint, INFO: told, FILTER: guard}
        # Each hidden file is covered by what is read from a descriptor of its own: nothing.
        ends |= {
            EMPTY + place: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for place in range(len(self.setup.hidden))
        }
        assert self.setup.bubblewrap is not None  # the driver found it
        self.pid = _spawn([self.setup.bubblewrap, *self._arguments(), "cat"], ends)
        with contextlib.suppress(BrokenPipeError):  # where bwrap has ended, its own words say why
            os.write(self.hold, b"!")
        if not select.select([ready], [], [], PATIENCE_S)[0] or os.read(ready, 1) != b"!":
            raise OSError(f"bwrap: {_text(errors) or 'the room was not ready in time'}")
        inside = json.loads(os.read(info, 4096))["child-pid"]
        kernel.enter_namespaces(inside, SPACES if os.geteuid() == 0 else SPACES | kernel.CLONE_NEWUSER)

    def confine(self) -> None:
        os.chdir(WORKSPACE)
        if self.uid is None:
            privileges.renounce()
        else:
            privileges.drop(self.uid, read_everything=False)
        kernel.no_new_privileges()
        seccomp.install(seccomp.program(keep_metadata=False))

    def pids(self) -> list[int]:
        return processes.all_processes()

    def memory_files(self) -> int:
        used = 0
        for place in (HOME, "/dev/shm"):
            status = os.statvfs(place)
            used += (status.f_blocks - status.f_bfree) * status.f_frsize
        return used

    def end(self, pid: int) -> None:
        # The first process of the room dies with bwrap, and with the first process all others.
        if self.pid:
            processes.kill(self.pid)
            self.pid = 0
        processes.sweep()

    def clear(self) -> None:
        if self.hold >= 0:
            os.close(self.hold)

    def _arguments(self) -> Iterator[str]:
        yield from ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent")
        # As root no user namespace: there the root of the host could not become another user.
        yield from ("--cap-drop", "ALL") if os.geteuid() == 0 else ("--unshare-user",)
        yield from ("--new-session", "--clearenv", "--hostname", "sandbox")
        yield from ("--info-fd", str(INFO), "--seccomp", str(FILTER))
        yield from ("--proc", "/proc", "--perms", "0755", "--dir", "/dev")
        for device in places.DEVICES:
            yield from ("--dev-bind", device, device)
        yield from self._in_memory("/dev/shm")
        yield from self._in_memory(HOME)
        yield from bound(self.setup.readable)
        yield from hidden(self.setup.hidden)
        yield from bound(self.order.inputs)
        yield from ("--bind", self.order.folder, WORKSPACE, "--remount-ro", "/")

    def _in_memory(self, place: str) -> Iterator[str]:
        if self.setup.sized:
            yield from ("--size", str(self.order.memory_bytes))
        yield from ("--perms", "1777", "--tmpfs", place)


def bound(paths: Iterable[str]) -> Iterator[str]:
    """Arguments that show `paths` read-only where they are. Links are made again; folders above are made passable,
    which those that bwrap makes by itself are not for another user."""
    above: set[str] = set()
    for path in paths:
        for folder in reversed(_folders_above(path)):
            if folder not in above:
                above.add(folder)
                yield from ("--perms", "0755", "--dir", folder)
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        else:
            yield from ("--ro-bind", path, path)


def hidden(paths: Iterable[str]) -> Iterator[str]:
    """Arguments that cover `paths` with what nobody may open."""
    for place, path in enumerate(paths):
        if os.path.isdir(path):
            yield from ("--perms", "0000", "--tmpfs", path, "--remount-ro", path)
        else:
            yield from ("--perms", "0000", "--ro-bind-data", str(EMPTY + place), path)


def _check_readable(paths: Iterable[str]) -> None:
    for path in paths:
        if not os.stat(path).st_mode & stat.S_IROTH:
            raise OSError(f"the task's file {path} must be readable for other users, as programs run as one: chmod o+r")


def _folders_above(path: str) -> list[str]:
    found = []
    while (path := os.path.dirname(path)) != "/":
        found.append(path)
    return found


def _spawn(command: list[str], ends: Mapping[int, int]) -> int:
    """Start `command` with the descriptors `ends` under the numbers that are their keys; ours are closed."""
    # First out of the way of the numbers that they are to have.
    high = {number: fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, len(ends)) for number, end in ends.items()}
    actions = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in high.items()]
    try:
        return os.posix_spawn(command[0], command, {"PATH": "/usr/bin:/bin"}, file_actions=actions)
    finally:
        for end in (*ends.values(), *high.values()):
            os.close(end)


def _text(pipe: int) -> str:
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(pipe, 4096).decode(errors="replace").strip()
    return ""
