"""Folders for temporary files, of which a killed process leaves none for long: the next one of the same prefix removes
them. A process holds a lock in each of its folders, which the kernel releases however the process ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from mappa_core.safe_walk import remove_tree

OWNER = "owner.lock"


class OwnedFolder:
    """A new folder at `path`, removed by `close`, in `parent` or the folder for temporary files. What processes that
    are gone left there of the same prefix is removed."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        sweep_folders(prefix, parent)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock = own_folder(self.path)

    def close(self) -> None:
        # The lock last: without it another process would remove the folder at the same time.
        remove_tree(self.path)
        os.close(self._lock)


def own_folder(path: Path) -> int:
    """Lock a folder as this process's own; returns the descriptor that holds the lock."""
    new = path / f"{OWNER}.new"
    lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(path / OWNER)  # never seen without the lock on it
    return lock


def sweep_folders(prefix: str, parent: Path | None = None) -> None:
    """Remove folders of this user in `parent` (None: the folder for temporary files) that were owned by processes that
    are gone."""
    with suppress(OSError), os.scandir(tempfile.gettempdir() if parent is None else parent) as scanned:
        for entry in scanned:
            if entry.name.startswith(prefix):
                with suppress(OSError):  # owned by a living process, or not by a process of this user
                    _remove_unowned(Path(entry.path))


def _remove_unowned(path: Path) -> None:
    """Remove a folder whose owner is gone. Raises OSError if it lives, or there never was one."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return
        lock = os.open(OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(path)
    finally:
        os.close(lock)
