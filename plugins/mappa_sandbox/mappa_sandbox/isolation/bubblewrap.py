"""Backend `bubblewrap`: `bwrap` builds a container of namespaces and mounts, and the supervisor enters it.

`bwrap` starts `cat`, which answers once the container is ready and then waits in it. The supervisor enters the
container's namespaces, so that the program, its fork, starts inside, with everything that was imported before the fork
and without starting an interpreter. When the supervisor ends, in whatever way, the container ends with all processes in
it.

In the container the workspace is the only writable folder on a disk. /tmp and /dev/shm are in memory. There is only an
empty network, no process of the host, and of /dev only devices that store nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import stat
from collections.abc import Iterable, Iterator, Mapping

from mappa_sandbox.isolation import kernel, privileges, processes, seccomp, system_paths
from mappa_sandbox.isolation.backends import SandboxBackend, assign_workspace_user
from mappa_sandbox.isolation.job import SandboxConfig, SandboxJob

WORKSPACE = "/workspace"
HOME = "/tmp"
IN_MEMORY = (HOME, "/dev/shm")
BYTES_PER_NAME = 4096
"""Bytes of the limit of memory for which one file in memory may exist; a name takes at most NAME_BYTES."""
NAME_BYTES = 1536
"""Memory of the kernel for a file in memory, beside its content: its inode and a long name. A link has nothing else."""
READY_TIMEOUT_S = 20.0
"""Seconds until a container that is not ready counts as broken; long, for a busy machine."""
HOLD, READY, ERRORS, INFO, FILTER, ARGUMENTS, EMPTY = range(7)
"""Descriptors of `bwrap`. None refers to a file of the host: a program may open what `cat` has open."""
NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET


class BubblewrapBackend(SandboxBackend):
    """One container, for one program."""

    folder = WORKSPACE
    home = HOME
    folders = (WORKSPACE,)
    has_own_user = True

    def __init__(self, config: SandboxConfig, job: SandboxJob) -> None:
        self.config = config
        self.job = job
        self.uid = assign_workspace_user(job.folder) if os.geteuid() == 0 else None
        self.pid = 0
        self.hold = -1

    def build(self) -> None:
        if self.uid is not None:
            _check_readable(self.job.inputs)
        hold, self.hold = os.pipe()
        ready, ready_end = os.pipe()
        errors, errors_end = os.pipe()
        info, info_end = os.pipe()
        filter_start, filter_end = os.pipe()
        os.write(filter_end, seccomp.build_filter(keep_metadata=False))
        os.close(filter_end)
        # Not on the command line, which programs can read: it names paths of the host.
        arguments = os.memfd_create("arguments", os.MFD_CLOEXEC)
        os.write(arguments, b"".join(os.fsencode(argument) + b"\0" for argument in self._arguments()))
        os.lseek(arguments, 0, os.SEEK_SET)
        ends = {HOLD: hold, READY: ready_end, ERRORS: errors_end, INFO: info_end, FILTER: filter_start}
        ends |= {ARGUMENTS: arguments}
        # Each hidden file is covered by the empty content of its own descriptor.
        ends |= {
            EMPTY + place: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for place in range(len(self.config.hidden))
        }
        assert self.config.bubblewrap is not None  # the driver found it
        self.pid = _spawn([self.config.bubblewrap, "--args", str(ARGUMENTS), "cat"], ends)
        with contextlib.suppress(BrokenPipeError):  # if bwrap has ended, its stderr says why
            os.write(self.hold, b"!")
        if not select.select([ready], [], [], READY_TIMEOUT_S)[0] or os.read(ready, 1) != b"!":
            raise OSError(f"bwrap: {_read_text(errors) or 'the container was not ready in time'}")
        inside = json.loads(os.read(info, 4096))["child-pid"]
        kernel.enter_namespaces(inside, NAMESPACES if os.geteuid() == 0 else NAMESPACES | kernel.CLONE_NEWUSER)
        for place in IN_MEMORY:  # bwrap itself knows no limit of files, and no older one a size
            kernel.limit_memory_files(place, self.job.memory_bytes, self.job.memory_bytes // BYTES_PER_NAME)

    def confine(self) -> None:
        os.chdir(WORKSPACE)
        if self.uid is None:
            privileges.drop_capabilities()
        else:
            privileges.drop_to_user(self.uid, read_everything=False)
        kernel.no_new_privileges()
        seccomp.install_filter(seccomp.build_filter(keep_metadata=False))

    def pids(self) -> list[int]:
        return processes.list_processes()

    def memory_file_bytes(self) -> int:
        used = 0
        for place in IN_MEMORY:
            status = os.statvfs(place)
            used += (status.f_blocks - status.f_bfree) * status.f_frsize
            used += (status.f_files - status.f_ffree) * NAME_BYTES
        return used

    def kill_all(self, pid: int) -> None:
        # The first process of the container dies with bwrap, and all others with the first process.
        if self.pid:
            processes.kill(self.pid)
            self.pid = 0
        processes.kill_descendants()

    def clean_up(self) -> None:
        if self.hold >= 0:
            os.close(self.hold)

    def _arguments(self) -> Iterator[str]:
        yield from ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent")
        # As root no user namespace: in one, the root of the host could not become another user.
        yield from ("--cap-drop", "ALL") if os.geteuid() == 0 else ("--unshare-user",)
        yield from ("--new-session", "--clearenv", "--hostname", "sandbox")
        yield from ("--info-fd", str(INFO), "--seccomp", str(FILTER))
        yield from ("--proc", "/proc", "--perms", "0755", "--dir", "/dev")
        for device in system_paths.DEVICES:
            yield from ("--dev-bind", device, device)
        for place in IN_MEMORY:
            yield from ("--perms", "1777", "--tmpfs", place)
        yield from bind_arguments(self.config.readable)
        yield from hide_arguments(self.config.hidden)
        yield from bind_arguments(self.job.inputs)
        yield from ("--bind", self.job.folder, WORKSPACE, "--remount-ro", "/")


def bind_arguments(paths: Iterable[str]) -> Iterator[str]:
    """Arguments that bind `paths` read-only at the same place. Links are recreated; parent folders are created here, as
    another user cannot pass those that bwrap creates by itself."""
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


def hide_arguments(paths: Iterable[str]) -> Iterator[str]:
    """Arguments that cover `paths` with empty files and folders that nobody may open."""
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
    folders = []
    while (path := os.path.dirname(path)) != "/":
        folders.append(path)
    return folders


def _spawn(command: list[str], ends: Mapping[int, int]) -> int:
    """Start `command` with the descriptors `ends`, renumbered to their keys; they are closed in this process."""
    # First move them above all numbers that they are to get.
    high = {number: fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, len(ends)) for number, end in ends.items()}
    actions = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in high.items()]
    try:
        return os.posix_spawn(command[0], command, {"PATH": "/usr/bin:/bin"}, file_actions=actions)
    finally:
        for end in (*ends.values(), *high.values()):
            os.close(end)


def _read_text(pipe: int) -> str:
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(pipe, 4096).decode(errors="replace").strip()
    return ""
