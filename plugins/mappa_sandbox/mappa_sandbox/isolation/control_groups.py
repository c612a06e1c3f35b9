"""Control groups (cgroup v2): limits that the kernel holds for all processes of a program together.

A fork server gives each program a group of its own below its *base*: the group that it was started in, where that may
have others below it. There the supervisor makes the group and the program joins it before its first line. What a group
holds is found by trying: not every system lets it limit all.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from errno import EBUSY

from mappa_sandbox.isolation.job import SandboxJob

MEMORY, PROCESSES, CPU = "memory", "processes", "cpu"
CONTROLLERS = {"memory": MEMORY, "pids": PROCESSES}
SPARE_PROCESSES = 16
"""Processes beyond the limit that the kernel allows, so that a program over it is seen and stopped."""
TRIAL_BYTES, TRIAL_PROCESSES = 32 << 20, 4
REMOVE_TIMEOUT_S = 5.0
PREFIX = "mappa-"
"""Of the names of groups, before the id of the process that made them."""


class ControlGroup:
    """The group of one program. `held` are the limits that it holds, `folder` is open."""

    def __init__(self, base: str, held: tuple[str, ...]) -> None:
        self.held = held
        self.name = f"{PREFIX}{os.getpid()}"
        # In a sandbox there is no path to them.
        self._base = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.mkdir(self.name, dir_fd=self._base)
        self.folder = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._base)

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Set the limits of all members together."""
        if MEMORY in self.held:
            self._write("memory.max", memory_bytes)
            with contextlib.suppress(FileNotFoundError):  # a kernel without swap
                self._write("memory.swap.max", 0)
            self._write("memory.oom.group", 1)  # all members are killed, not one that the kernel picks
        if PROCESSES in self.held:
            self._write("pids.max", processes)

    def add(self, pid: int) -> None:
        """Make another process, and so all that it starts from now on, a member."""
        self._write("cgroup.procs", pid)

    def cpu_s(self) -> float:
        """CPU seconds of all that have been members, waited for or not."""
        return self._counts("cpu.stat")["usage_usec"] / 1e6

    def was_killed_for_memory(self) -> bool:
        """Whether the kernel ended members, as memory was over the limit."""
        return MEMORY in self.held and self._counts("memory.events")["oom_kill"] > 0

    def remove(self) -> None:
        """Kill all members, and remove the group. Raises OSError if they are not gone in time."""
        os.close(self.folder)
        remove_group(self._base, self.name)
        os.close(self._base)

    def _write(self, name: str, value: int) -> None:
        _write(self.folder, name, value)

    def _counts(self, name: str) -> dict[str, int]:
        with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.folder)) as lines:
            return {key: int(value) for key, value in (line.split() for line in lines)}


def join(folder: int) -> None:
    """Make this process, and so all that it starts, a member of the group with the open `folder`."""
    _write(folder, "cgroup.procs", 0)


def remove_group(base: int, name: str) -> None:
    """Kill all members of a group of the open folder `base`, and remove it. Raises OSError if they are not gone in
    time."""
    with contextlib.suppress(FileNotFoundError):  # before Linux 5.14 they are killed by their ids alone
        control = os.open(f"{name}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC, dir_fd=base)
        os.write(control, b"1")
        os.close(control)
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    while True:
        try:
            os.rmdir(name, dir_fd=base)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != EBUSY or time.monotonic() > deadline:
                raise  # busy: members that were killed are not gone yet
            time.sleep(0.0005)


def remove_groups(base: str, *, of: Collection[int] | None = None) -> None:
    """Remove the groups that the processes `of` made below `base`, by default all that are gone."""
    folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in os.listdir(folder):
        pid = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or not pid.isdigit():
            continue
        if int(pid) in of if of is not None else not os.path.exists(f"/proc/{pid}"):
            with contextlib.suppress(OSError):  # what cannot be killed is left to the next fork server
                remove_group(folder, name)
    os.close(folder)


def open_base() -> str:
    """Return the folder of this process's own group, below which others with limits can be made. What earlier processes
    left there is removed.

    Raises:
        OSError: there is none, or this process may not.
    """
    folder = _own_group()
    with open(f"{folder}/cgroup.controllers") as listed:
        known = [name for name in listed.read().split() if name in CONTROLLERS]
    try:
        _enable(folder, known)
    except OSError:
        # A group with members can have no limits below it, but for the root: where this process is the only one, it
        # moves below.
        if _members(folder) != [os.getpid()]:
            raise
        os.mkdir(f"{folder}/fork-server")
        with open(f"{folder}/fork-server/cgroup.procs", "w") as members:
            members.write("0")
        _enable(folder, known)
    remove_groups(folder)
    return folder


def try_limits() -> tuple[str, ...]:
    """Return the limits that groups below this process's own one hold, of those that were tried by going past them.

    Raises:
        OSError: no group can be made; says why.
    """
    base = open_base()
    held = []
    for controller, limit, attempt in (("memory", MEMORY, _exceed_memory), ("pids", PROCESSES, _exceed_processes)):
        with contextlib.suppress(OSError):
            if _is_stopped(base, limit, attempt):
                held.append(CONTROLLERS[controller])
    _is_stopped(base, None, lambda: None)  # CPU time is counted wherever a group can be made
    return (*held, CPU)


def limit_group(group: ControlGroup, job: SandboxJob, inherited_bytes: int, file_bytes: int) -> None:
    """Set the limits of a job's program. Of the memory that it inherits from the fork server, which it is charged for
    when it writes to it, it may copy `inherited_bytes`, up to a quarter of its limit. Of the files in its workspace,
    which it is charged for, too, where they lie in memory, it may write `file_bytes`."""
    inherited = min(inherited_bytes, job.memory_bytes // 4)
    group.limit(job.memory_bytes + inherited + file_bytes, job.processes + SPARE_PROCESSES)


def _is_stopped(base: str, limit: str | None, attempt: Callable[[], None]) -> bool:
    """Whether a process that joins a group with one limit cannot go through with `attempt`."""
    group = ControlGroup(base, () if limit is None else (limit,))
    try:
        group.limit(TRIAL_BYTES, TRIAL_PROCESSES)
        pid = os.fork()
        if pid == 0:
            try:
                join(group.folder)
                attempt()
                os._exit(0)
            except BaseException:  # noqa: BLE001 - it was stopped
                os._exit(1)
        stopped = os.waitpid(pid, 0)[1] != 0
        group.cpu_s()
    finally:
        group.remove()
    return stopped


def _exceed_memory() -> None:
    held = bytearray(b"x") * (3 * TRIAL_BYTES)
    del held


def _exceed_processes() -> None:
    for _ in range(2 * TRIAL_PROCESSES):
        if os.fork() == 0:
            time.sleep(2)  # all must be there at once; removing the group kills them
            os._exit(0)


def _write(folder: int, name: str, value: int) -> None:
    control = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(control, str(value).encode())
    finally:
        os.close(control)


def _own_group() -> str:
    """Folder of this process's group in the hierarchy of version 2."""
    with open("/proc/self/cgroup") as groups:
        paths = [line.rstrip("\n").removeprefix("0::") for line in groups if line.startswith("0::")]
    for root, place in _mounts():
        if paths and (paths[0] == root or paths[0].startswith(root.rstrip("/") + "/")):
            return (place + paths[0][len(root.rstrip("/")) :]).rstrip("/")
    raise OSError("this process sees no control groups of version 2")


def _mounts() -> Iterator[tuple[str, str]]:
    """Root in the hierarchy, and place, of every mount of control groups of version 2."""
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            fields, _, kind = line.partition(" - ")
            if kind.startswith("cgroup2 "):
                yield fields.split()[3], fields.split()[4]


def _enable(folder: str, controllers: list[str]) -> None:
    if controllers:
        with open(f"{folder}/cgroup.subtree_control", "w") as control:
            control.write(" ".join(f"+{name}" for name in controllers))


def _members(folder: str) -> list[int]:
    with open(f"{folder}/cgroup.procs") as members:
        return [int(line) for line in members]
