"""Sandbox backends: a supervisor builds the sandbox and lets a job in; the forked program confines itself there."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from mappa_core.safe_walk import remove_tree
from mappa_sandbox.isolation import disk, kernel, landlock, privileges, processes, seccomp, system_paths
from mappa_sandbox.isolation.control_groups import ControlGroup
from mappa_sandbox.isolation.job import Assignment, SandboxConfig, SandboxJob
from mappa_sandbox.isolation.memory_workspace import MemoryWorkspace, spare_bytes, used_bytes
from mappa_sandbox.isolation.program_process import ChildProcess, ProgramProcess, become_program

# Above all that useradd hands out to people, services and containers, which ends at 600,100,000.
FIRST_UID = 0x6D610000
UID_COUNT = 1 << 24
SMALL_NAMESPACE_UIDS = range(30_000, 60_000)
"""For a user namespace that maps only the first 65,536 user ids."""


class SandboxBackend(ABC):
    """Confines one program. Paths are those that the program sees."""

    folder: str
    """Working folder of the program."""
    folders: tuple[str, ...]
    """Writable folders whose files count together."""
    holds_files: bool
    """Whether the kernel holds the files in `folders` to the limits, as they lie in memory."""

    @abstractmethod
    def build(self) -> None:
        """Set up what needs no job: called in the supervisor before it forks the program. Raises OSError if this
        fails."""

    @abstractmethod
    def start_program(self, outputs: Sequence[int], group: ControlGroup | None) -> ProgramProcess:
        """Fork the program, which writes to the descriptors `outputs`, joins the control group, and waits for its
        assignment. Raises OSError if this fails."""

    @abstractmethod
    def admit(self, job: SandboxJob) -> Assignment:
        """Let the job's files into the sandbox; returns what the program receives. Raises OSError if this
        fails."""

    @abstractmethod
    def inherited_memory(self) -> int:
        """Bytes of memory of the process that the program is a fork of."""

    @abstractmethod
    def pids(self) -> list[int]:
        """Ids of the program and all that it started, as in the /proc of this process."""

    @abstractmethod
    def memory_file_bytes(self) -> int:
        """Bytes of files that lie in memory and belong to no process."""

    @abstractmethod
    def bring_back(self) -> None:
        """Bring the files of the working folder to where the job's folder is. No process of the program is left."""

    @abstractmethod
    def kill_all(self) -> None:
        """Kill the program and all that it started; returns when they are gone."""

    @abstractmethod
    def clean_up(self) -> None:
        """Remove what was created for the program."""


class ForkedBackend(SandboxBackend):
    """Programs are forks of their supervisor, and confine themselves by `confinement`.

    Where the supervisor may mount, workspace and home lie in one file system in memory, which only it and the program
    see."""

    def __init__(self, config: SandboxConfig, confinement: type[Unconfined]) -> None:
        self.config = config
        # By the supervisor's id: the fork server removes it where the supervisor was killed.
        self.scratch = f"{config.scratch}/{os.getpid()}"
        self.home = f"{self.scratch}/home"
        self.confinement = confinement
        self.holds_files = config.may_mount
        self.workspace: MemoryWorkspace | None = None
        self.free_bytes = 0

    def build(self) -> None:
        if self.holds_files:
            kernel.enter_own_mounts()  # before the program is forked, which sees what is mounted here later

    def start_program(self, outputs: Sequence[int], group: ControlGroup | None) -> ProgramProcess:
        theirs, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)  # or the program would wait for ever for the end of its assignment
            confine = partial(self.confinement, self.config, self.home)
            become_program(theirs, confine, outputs, None if group is None else group.folder)
        os.close(theirs)
        return ChildProcess(pid, ours)

    def admit(self, job: SandboxJob) -> Assignment:
        uid = assign_workspace_user(job.folder) if self.confinement.changes_user else None
        os.mkdir(self.scratch, 0o711)
        if self.holds_files:
            self._move_to_memory(job, MemoryWorkspace.open(job, uid))
        os.mkdir(self.home, 0o700)
        if uid is not None:
            disk.change_owner(self.home, uid)
        self.folder, self.folders = job.folder, (job.folder, self.home)
        return Assignment(job, uid)

    def _move_to_memory(self, job: SandboxJob, workspace: MemoryWorkspace) -> None:
        kernel.mount_memory_files(self.scratch, workspace.max_bytes, workspace.max_files)
        self.workspace = workspace
        place = f"{self.scratch}/workspace"
        os.mkdir(place)
        workspace.lay_out(place)
        kernel.place_mount(kernel.open_mount(place, read_only=False), job.folder)
        self.free_bytes = used_bytes(self.scratch) + spare_bytes(job)

    def inherited_memory(self) -> int:
        return processes.own_memory_bytes()

    def pids(self) -> list[int]:
        return processes.descendants_of(os.getpid())

    def memory_file_bytes(self) -> int:
        return max(0, used_bytes(self.scratch) - self.free_bytes) if self.holds_files else 0

    def bring_back(self) -> None:
        if self.workspace is not None:
            self.workspace.bring_back(self.folder)

    def kill_all(self) -> None:
        processes.kill_descendants()

    def clean_up(self) -> None:
        if self.workspace is not None:
            kernel.unmount(self.scratch)
        remove_tree(Path(self.scratch))


@dataclass(frozen=True)
class Unconfined:
    """Backend `none`: no confinement, only limits and monitoring."""

    config: SandboxConfig
    home: str
    assignment: Assignment
    changes_user: ClassVar[bool] = False
    """Whether a program of root runs as another user."""

    @property
    def folder(self) -> str:
        return self.assignment.job.folder

    @property
    def has_own_user(self) -> bool:
        return self.assignment.uid is not None

    def confine(self) -> None:
        kernel.no_new_privileges()


class LandlockConfinement(Unconfined):
    """Backend `landlock`: Landlock for files, seccomp for other system calls, and as root another user."""

    changes_user = True

    def confine(self) -> None:
        # The kernel takes Landlock's rules and a filter only from root or from a process without new privileges.
        kernel.no_new_privileges()
        if self.assignment.uid is not None:
            privileges.drop_to_user(self.assignment.uid, read_everything=True)
        elif self.config.may_mount:
            privileges.drop_capabilities()
        landlock.restrict(
            writable=(self.folder, self.home),
            readable=(
                *self.config.readable,
                *system_paths.SETTINGS_PATHS,
                *system_paths.KERNEL_PATHS,
                *self.assignment.job.inputs,
                *system_paths.own_process_paths(),
            ),
            hidden=self.config.hidden,
        )
        seccomp.install_filter(seccomp.build_filter(keep_metadata=True))


CONFINEMENTS: Mapping[str, type[Unconfined]] = {"landlock": LandlockConfinement, "none": Unconfined}
"""Of programs that are forks of their supervisor, by backend."""


def assign_workspace_user(folder: str) -> int | None:
    """Return the user that programs of the workspace `folder` run as: None for the user of this process, unless it is
    root. Else it is the folder's owner, or a dedicated user if that is root, too; the folder and all that is in it are
    given to that user."""
    if os.geteuid() != 0:
        return None
    status = os.stat(folder)
    # By inode: programs of two workspaces run as different users, as a rule, who cannot signal each other.
    uid = status.st_uid or _dedicated_uid(status.st_ino)
    disk.change_owner(folder, uid)
    return uid


def _dedicated_uid(inode: int) -> int:
    with open("/proc/self/uid_map", "rb") as mapped:
        known = sum(int(line.split()[2]) for line in mapped)
    return (
        FIRST_UID + inode % UID_COUNT
        if known > FIRST_UID + UID_COUNT
        else SMALL_NAMESPACE_UIDS[inode % len(SMALL_NAMESPACE_UIDS)]
    )
