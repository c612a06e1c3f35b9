"""Backend `bubblewrap`: `bwrap` builds a container of namespaces and mounts, and a fork of the zygote enters it.

`bwrap` starts `cat`, which answers once the container is ready and then waits in it. The zygote forks the program into
the container, where it starts with everything that the zygote imported and without starting an interpreter. Both are
done before there is a job, as they take longer than most programs run. Then the supervisor mounts the job's files in
the container, and looks at its files and processes from inside. When the supervisor ends, in whatever way, the
container ends with all processes in it.

In the container all that can be written lies in memory: the workspace, /tmp and /dev/shm. There is only an empty
network, no process of the host, and of /dev only devices that store nothing. The processes of the container itself are
covered in its /proc: an ordinary user's program, which runs as the same user, could write to their memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mappa_sandbox.isolation import kernel, privileges, processes, seccomp, system_paths
from mappa_sandbox.isolation.backends import SandboxBackend, assign_workspace_user
from mappa_sandbox.isolation.control_groups import SPARE_PROCESSES, ControlGroup
from mappa_sandbox.isolation.job import Assignment, SandboxConfig, SandboxJob
from mappa_sandbox.isolation.memory_workspace import MemoryWorkspace, spare_bytes, used_bytes, used_names
from mappa_sandbox.isolation.program_process import ProgramProcess, program_limits
from mappa_sandbox.isolation.zygote import Zygote

WORKSPACE = "/workspace"
HOME = "/tmp"
IN_MEMORY = {HOME: 1.0, "/dev/shm": 0.5}
"""Folders in memory beside the workspace, with the part of the limit of memory that their files may take: both together
stay near it, also before a check adds them up."""
FOR_CAT = (
    *("/bin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64"),
    *("/nix/store", "/gnu/store"),
)
"""Of the paths that programs may read, those that `cat` may need to start."""
BYTES_PER_NAME = 4096
"""Bytes of the limit of memory for which one file in memory may exist; a name takes at most NAME_BYTES."""
NAME_BYTES = 1536
"""Memory of the kernel for a file in memory, beside its content: its inode and a long name. A link has nothing else."""
READY_TIMEOUT_S = 20.0
"""Seconds until a container that is not ready counts as broken; long, for a busy machine."""
HOLD, READY, ERRORS, INFO, ARGUMENTS, FILTER, EMPTY = range(7)
"""Descriptors of `bwrap`; the first three are the standard streams of `cat`. None refers to a file of the host: a
program may open what `cat` has open."""
NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET


@dataclass(frozen=True)
class Container:
    """A container, for the program in it."""

    assignment: Assignment
    folder: str = WORKSPACE
    home: str = HOME
    has_own_user: bool = True

    def confine(self) -> None:
        os.chdir(WORKSPACE)
        if self.assignment.uid is None:
            privileges.drop_capabilities()
        else:
            privileges.drop_to_user(self.assignment.uid, read_everything=False)
        kernel.no_new_privileges()
        seccomp.install_filter(seccomp.build_filter(keep_metadata=False))


def enter_container(process: int) -> None:
    """Enter the container that `process`, a descriptor of a process, is in."""
    kernel.enter_namespaces(process, NAMESPACES if os.geteuid() == 0 else NAMESPACES | kernel.CLONE_NEWUSER)


class BubblewrapBackend(SandboxBackend):
    """One container, for one program."""

    folder = WORKSPACE
    folders = (WORKSPACE,)
    holds_files = True

    def __init__(self, config: SandboxConfig, zygote: Zygote) -> None:
        self.config = config
        self.workspace: MemoryWorkspace | None = None
        self.free_bytes = 0
        self.zygote = zygote
        self.bwrap = BwrapProcess()
        # For every path that bwrap binds it reads the whole table of mounts: it binds no more than it must.
        covered = {path for path in config.readable for hidden in config.hidden if hidden.startswith(f"{path}/")}
        self.bound = [path for path in config.readable if path in covered | {*FOR_CAT} or os.path.islink(path)]

    def build(self) -> None:
        assert self.config.bubblewrap is not None  # the driver found it
        filter_start, filter_end = os.pipe()
        os.write(filter_end, seccomp.build_filter(keep_metadata=False))  # it fits into the pipe: nobody reads it yet
        os.close(filter_end)
        # Each hidden file is covered by the empty content of its own descriptor.
        empty = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in self.config.hidden]
        self.bwrap.start(self.config.bubblewrap, self._arguments(), (filter_start, *empty))
        mounts = {
            path: kernel.open_mount(path, read_only=True) for path in self.config.readable if path not in self.bound
        }
        with kernel.visited_mounts(self.bwrap.inside):
            _place_mounts(mounts)
            for pid in processes.list_processes():
                kernel.cover_folder(f"/proc/{pid}")

    def start_program(self, outputs: Sequence[int], group: ControlGroup | None) -> ProgramProcess:
        if group is not None:
            for pid in self.bwrap.members_inside:
                group.add(pid)
        return self.zygote.fork_program(self.bwrap.inside, outputs, group)

    def admit(self, job: SandboxJob) -> Assignment:
        uid = assign_workspace_user(job.folder)
        if uid is not None:
            _check_readable(job.inputs)
        self.bwrap.limit(job)
        # Opened here and mounted there: inside, the paths of the host do not exist.
        mounts = {path: kernel.open_mount(path, read_only=True) for path in job.inputs}
        workspace = self.workspace = MemoryWorkspace.open(job, uid)
        # For good: limits are checked by the container's own /proc and folders.
        kernel.enter_namespaces(self.bwrap.inside, kernel.CLONE_NEWNS)
        _place_mounts(mounts)
        kernel.make_read_only("/")  # not before the places to mount at were made
        # bwrap itself knows no limit of files, and no older one a size.
        for place, share in IN_MEMORY.items():
            size = int(job.memory_bytes * share)
            kernel.limit_memory_files(place, size, size // BYTES_PER_NAME)
        kernel.limit_memory_files(WORKSPACE, workspace.max_bytes, workspace.max_files)
        workspace.lay_out(WORKSPACE)
        self.free_bytes = used_bytes(WORKSPACE) + spare_bytes(job)
        return Assignment(job, uid)

    def inherited_memory(self) -> int:
        return self.zygote.memory

    def pids(self) -> list[int]:
        return processes.list_processes()

    def memory_file_bytes(self) -> int:
        beside = sum(used_bytes(place) + used_names(place) * NAME_BYTES for place in IN_MEMORY)
        return beside + max(0, used_bytes(WORKSPACE) - self.free_bytes)

    def bring_back(self) -> None:
        if self.workspace is not None:
            self.workspace.bring_back(WORKSPACE)

    def kill_all(self) -> None:
        # All processes of the container die with its first one, which ends when the others are gone.
        self.bwrap.kill()
        processes.kill_descendants()

    def clean_up(self) -> None:
        self.bwrap.close()

    def _arguments(self) -> Iterator[str]:
        yield from ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
        # As root no user namespace: in one, the root of the host could not become another user.
        yield from ("--cap-drop", "ALL") if os.geteuid() == 0 else ("--unshare-user",)
        yield from ("--new-session", "--clearenv", "--hostname", "sandbox")
        yield from ("--seccomp", str(FILTER))
        yield from ("--proc", "/proc", "--perms", "0755", "--dir", "/dev")
        for device in system_paths.DEVICES:
            yield from ("--dev-bind", device, device)
        for place in IN_MEMORY:
            yield from ("--perms", "1777", "--tmpfs", place)
        yield from bind_arguments(self.bound)
        yield from hide_arguments(self.config.hidden)
        yield from ("--perms", "0700", "--tmpfs", WORKSPACE)


def bind_arguments(paths: Iterable[str]) -> Iterator[str]:
    """Arguments that bind `paths` read-only at the same place. Links are recreated; parent folders are created here, as
    another user cannot pass those that bwrap creates by itself."""
    above: set[str] = set()
    for path in paths:
        for folder in _folders_above(path):
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


class BwrapProcess:
    """A process of `bwrap` that holds a container until it is killed, or this process ends.

    `inside` is a descriptor of the container's first process."""

    def __init__(self) -> None:
        self.inside = -1
        self._pid = 0
        self.members_inside: list[int] = []
        # Open until the end: `cat` ends with what it reads.
        self._ours: list[int] = []

    def start(self, bubblewrap: str, arguments: Iterable[str], extra: Sequence[int] = ()) -> None:
        """Start it, and wait until the container is ready. It gets the descriptors `extra` from FILTER on; they are
        closed in this process. Raises OSError if there is no container."""
        hold, hold_end = os.pipe()
        ready, ready_end = os.pipe()
        errors, errors_end = os.pipe()
        info, info_end = os.pipe()
        self._ours = [hold_end, ready, errors, info]
        # Not on the command line, which programs can read: it names paths of the host.
        listed = os.memfd_create("arguments", os.MFD_CLOEXEC)
        os.write(listed, b"".join(os.fsencode(argument) + b"\0" for argument in ("--info-fd", str(INFO), *arguments)))
        os.lseek(listed, 0, os.SEEK_SET)
        ends = {HOLD: hold, READY: ready_end, ERRORS: errors_end, INFO: info_end, ARGUMENTS: listed}
        ends |= {FILTER + place: end for place, end in enumerate(extra)}
        self._pid = _spawn([bubblewrap, "--die-with-parent", "--args", str(ARGUMENTS), "cat"], ends)
        # `cat` copies this byte as soon as it runs, which it does in a complete container.
        with contextlib.suppress(BrokenPipeError):  # if bwrap has ended, its stderr says why
            os.write(hold_end, b"!")
        if not select.select([ready], [], [], READY_TIMEOUT_S)[0] or os.read(ready, 1) != b"!":
            raise OSError(f"bwrap: {_read_text(errors) or 'the container was not ready in time'}")
        first = json.loads(os.read(info, 4096))["child-pid"]
        self.inside = os.pidfd_open(first)
        self.members_inside = [first, *processes.children_of(first)]  # a fork of `bwrap`, and `cat`

    def limit(self, job: SandboxJob) -> None:
        """Hold its own processes to the limits of the program, which must gain nothing by taking control of them."""
        for pid in (self._pid, *self.members_inside):
            for kind, values in program_limits(job, job.memory_bytes, job.processes + SPARE_PROCESSES).items():
                resource.prlimit(pid, kind, values)

    def kill(self) -> None:
        """Kill it; the container ends soon after."""
        if self._pid:
            processes.kill(self._pid)
            self._pid = 0

    def close(self) -> None:
        for end in (*self._ours, *([self.inside] if self.inside >= 0 else [])):
            os.close(end)


def enter_user_namespace(bubblewrap: str) -> None:
    """As an ordinary user, enter a user namespace in which this process may enter the containers that it makes, one
    after the other, and a mount namespace of it, in which it may mount. From those of a container there is no way back.

    Raises:
        OSError: `bwrap` makes none here; says why.
    """
    bwrap = BwrapProcess()
    try:
        bwrap.start(bubblewrap, ("--unshare-user", "--dev-bind", "/", "/"))
        kernel.enter_namespaces(bwrap.inside, kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    finally:
        bwrap.kill()
        processes.kill_descendants()
        bwrap.close()


def _check_readable(paths: Iterable[str]) -> None:
    for path in paths:
        if not os.stat(path).st_mode & stat.S_IROTH:
            raise OSError(f"the task's file {path} must be readable for other users, as programs run as one: chmod o+r")


def _place_mounts(mounts: Mapping[str, int]) -> None:
    """Mount what `kernel.open_mount` returned, by place."""
    for place, mount in mounts.items():
        _make_place(place, os.stat(mount).st_mode)
        kernel.place_mount(mount, place)
        os.close(mount)


def _make_place(place: str, mode: int) -> None:
    """Make the folder or the empty file that something of this mode can be mounted at, and the folders above."""
    for folder in (*_folders_above(place), *([place] if stat.S_ISDIR(mode) else [])):
        if not os.path.isdir(folder):
            os.mkdir(folder)
            os.chmod(folder, 0o755)
    if not os.path.lexists(place):
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))


def _folders_above(path: str) -> list[str]:
    folders: list[str] = []
    while (path := os.path.dirname(path)) != "/":
        folders.insert(0, path)
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
