"""A workspace that lies in memory while its program runs: so the kernel holds its bytes and its files to the limits,
however fast a program is, in named files and in nameless ones."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from mappa_core.safe_walk import FolderCursor
from mappa_sandbox.isolation import disk, kernel
from mappa_sandbox.isolation.job import SandboxJob
from mappa_sandbox.isolation.mirror import mirror

FREE_SHARE = 4
"""A program may write files up to this part of its memory limit before they count as its memory: as they lie in memory,
a control group cannot tell them from it."""
SPARE_FILES = 8
"""Of the limit of files, so many in addition: security labels of files count, and so do folders of ours."""


def spare_bytes(job: SandboxJob) -> int:
    """Bytes of files in the workspace that do not count as memory."""
    return min(job.workspace_bytes, job.memory_bytes // FREE_SHARE)


@dataclass(frozen=True)
class MemoryWorkspace:
    """The workspace of a job: `folder` is open, and lies on a disk. At most `max_bytes` and `max_files` may be in it: a
    workspace that is over its limits already may stay as it is. `owner` is the user that the program runs as; None: the
    user of this process."""

    folder: int
    owner: int | None
    max_bytes: int
    max_files: int

    @classmethod
    def open(cls, job: SandboxJob, owner: int | None) -> MemoryWorkspace:
        usage = disk.measure((job.folder,), sys.maxsize)
        size = max(job.workspace_bytes, usage.bytes)
        count = max(job.workspace_files, usage.entries)
        # As a mount of its own: of a folder that another one is mounted at, `..` from below leads to that one.
        folder = kernel.open_mount(job.folder, read_only=False)
        return cls(folder, owner, size, count + count // SPARE_FILES + SPARE_FILES)

    def lay_out(self, place: str) -> None:
        """Copy the files into the empty folder `place`."""
        if self.owner is not None:
            os.chown(place, self.owner, self.owner)
        os.chmod(place, stat.S_IMODE(os.stat(self.folder).st_mode))
        with FolderCursor(Path(), self.folder) as on_disk, FolderCursor(Path(place)) as in_memory:
            mirror(on_disk, in_memory, self.owner)

    def bring_back(self, place: str) -> None:
        """Make the files on the disk those of the folder `place`."""
        with FolderCursor(Path(), self.folder) as on_disk, FolderCursor(Path(place)) as in_memory:
            mirror(in_memory, on_disk, self.owner)


def used_bytes(place: str) -> int:
    """Bytes of the files in the file system that is mounted at `place`."""
    status = os.statvfs(place)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def used_names(place: str) -> int:
    """Number of files, folders and links in the file system that is mounted at `place`."""
    status = os.statvfs(place)
    return status.f_files - status.f_ffree
