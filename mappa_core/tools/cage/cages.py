"""The cage of one program: what a supervisor prepares, and what the program then locks behind itself."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

from mappa_core.tools.cage import disk, kernel, landlock, places, privileges, processes, seatbelt, seccomp
from mappa_core.tools.cage.order import Order, Setup
from mappa_core.tools.cage.walk import remove

FIRST_UID = 0x6D610000
UIDS = 1 << 24
FEW_UIDS = range(30_000, 60_000)
"""Where a user namespace maps only the first 65,536."""


class Cage(ABC):
    """One program's confinement. Paths are those that the program sees."""

    folder: str
    """The program's working folder."""
    home: str
    """Its home and folder of temporary files."""
    folders: tuple[str, ...]
    """Its folders on a disk."""
    has_user: bool
    """Whether it runs as a user that runs nothing else."""

    @abstractmethod
    def build(self) -> None:
        """In the supervisor, before it forks the program. Raises OSError where the machinery fails."""

    @abstractmethod
    def confine(self) -> None:
        """In the program, before its first line."""

    @abstractmethod
    def pids(self) -> list[int]:
        """The program and all that it started, as this process's /proc names them."""

    @abstractmethod
    def memory_files(self) -> int:
        """Bytes of files that lie in memory and in no process."""

    @abstractmethod
    def end(self, pid: int) -> None:
        """Kill the program `pid` (0: there is none) and all that it started; returns when they are gone."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what was made for the program."""


class Bare(Cage):
    """No confinement: limits and the watch only. The tier `none`."""

    def __init__(self, setup: Setup, order: Order) -> None:
        self.setup = setup
        self.order = order
        self.folder = order.folder
        self.home = f"{setup.scratch}/{os.getpid()}"
        self.folders = (self.folder, self.home)
        self.uid = tenant(order.folder) if os.geteuid() == 0 and setup.tier != "none" else None
        self.has_user = self.uid is not None

    def build(self) -> None:
        os.mkdir(self.home, 0o700)
        if self.uid is not None:
            disk.give(self.home, self.uid)

    def confine(self) -> None:
        kernel.no_new_privileges()

    def pids(self) -> list[int]:
        return processes.descendants_of(os.getpid())

    def memory_files(self) -> int:
        return 0

    def end(self, pid: int) -> None:
        processes.sweep(None if kernel.LINUX or not pid else pid)

    def clear(self) -> None:
        remove(Path(self.home))


class Landlocked(Bare):
    """Landlock for files, seccomp for the rest, another user where this one is root. The tier `landlock`."""

    def confine(self) -> None:
        kernel.no_new_privileges()
        if self.uid is not None:
            privileges.drop(self.uid, read_everything=True)
        landlock.restrict(
            writable=(self.folder, self.home),
            readable=(
                *self.setup.readable,
                *places.SETTINGS,
                *places.KERNEL,
                *self.order.inputs,
                *places.own_process(),
            ),
            hidden=self.setup.hidden,
        )
        seccomp.install(seccomp.program(keep_metadata=True))


class Seatbelted(Bare):
    """The sandbox of macOS. The tier `seatbelt`, untried."""

    def confine(self) -> None:
        readable = (*self.setup.readable, *self.order.inputs)
        seatbelt.restrict(
            seatbelt.profile(writable=(self.folder, self.home), readable=readable, hidden=self.setup.hidden)
        )


def tenant(folder: str) -> int:
    """The user that programs of the workspace `folder` run as where this process is root: its owner, and one of its own
    where that is root. The folder and all that is in it are given to that user."""
    status = os.stat(folder)
    uid = status.st_uid or _uid_of_its_own(status.st_ino)
    disk.give(folder, uid)
    return uid


def _uid_of_its_own(inode: int) -> int:
    with open("/proc/self/uid_map", "rb") as mapped:
        known = sum(int(line.split()[2]) for line in mapped)
    return FIRST_UID + inode % UIDS if known > FIRST_UID + UIDS else FEW_UIDS[inode % len(FEW_UIDS)]
