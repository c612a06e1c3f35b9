"""Walk through a folder, and remove it, safely against anything that a program may have done to it: every folder is
entered by a descriptor of its parent, never through a link. One descriptor is open at a time, and nothing recurses."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

MAX_PATH_BYTES = 3072
"""Longer relative paths are skipped: the rest of the system's limit (4096) is for the path of the workspace."""

ACCESS_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.ENXIO})
"""Errors that a program can cause on its files; other errors are faults of the machine."""

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors for a folder that was removed since it was listed, or has something else in its place."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a folder: its path relative to the root, with slashes; the descriptor of its folder, valid until the
    next entry is read; its name there; and its status, which does not follow links."""

    path: str
    folder: int
    name: str
    status: os.stat_result
    inaccessible: bool = False

    @property
    def too_long(self) -> bool:
        return len(os.fsencode(self.path)) > MAX_PATH_BYTES


class FolderCursor(AbstractContextManager["FolderCursor"]):
    """A descriptor `fd` that moves through a folder tree, from `root` on, which may be relative to the open `folder`.
    Closed by `with`. Raises OSError if the folder does not exist, is a link or may not be entered; then `enter` stays
    where it is."""

    def __init__(self, root: Path, folder: int | None = None) -> None:
        self.fd = _open(root, folder)
        self._above: list[tuple[int, int]] = []

    def enter(self, name: str) -> None:
        below = _open(name, self.fd)
        self._above.append(_identity(self.fd))
        self._move(below)

    def leave(self) -> None:
        """Return to the folder that this one was entered from. Raises OSError if this one was moved meanwhile."""
        self._move(os.open("..", _FOLDER, dir_fd=self.fd))
        # `..` of a folder that was moved leads elsewhere, perhaps out of the root.
        if _identity(self.fd) != self._above.pop():
            raise OSError(errno.ESTALE, "a folder was moved while it was looked at")

    def _move(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def walk(root: Path) -> Iterator[Entry]:
    """All entries below `root`, in no order; a folder comes before its content, and again, as inaccessible, if it
    cannot be entered. What a program removes meanwhile is left out, or seen without its content. A root that is no
    folder is empty. Raises OSError for faults of the machine and moved folders."""
    try:
        cursor = FolderCursor(root)
    except OSError as error:
        if error.errno not in ACCESS_ERRNOS:
            raise
        return
    with cursor:
        waiting = [(yield from _scan_folder(cursor, ""))]
        while waiting:
            if not waiting[-1]:
                waiting.pop()
                if waiting:
                    cursor.leave()
                continue
            folder = replace(waiting[-1].pop(), folder=cursor.fd)
            yield folder
            failure = _try_enter(cursor, folder)
            if failure is None:
                waiting.append((yield from _scan_folder(cursor, f"{folder.path}/")))
            elif failure not in _GONE:
                yield replace(folder, inaccessible=True)


def _scan_folder(cursor: FolderCursor, prefix: str) -> Generator[Entry, None, list[Entry]]:
    """Yield the entries that are no folders; return the folders."""
    # Read whole and closed at once, so that one descriptor is open at a time, however long the caller takes.
    with os.scandir(cursor.fd) as scanned:
        entries = list(scanned)
    folders = []
    for item in entries:
        with suppress(FileNotFoundError):
            entry = Entry(prefix + item.name, cursor.fd, item.name, item.stat(follow_symlinks=False))
            if item.is_dir(follow_symlinks=False):
                folders.append(entry)
            else:
                yield entry
    return folders


def _try_enter(cursor: FolderCursor, folder: Entry) -> int | None:
    """Enter a folder; returns the errno if that failed."""
    if folder.too_long:
        return errno.ENAMETOOLONG
    try:
        cursor.enter(folder.name)
    except OSError as error:
        if error.errno not in ACCESS_ERRNOS:
            raise
        return error.errno
    return None


def remove_tree(root: Path, folder: int | None = None) -> None:
    """Remove a folder with its content; `root` may be relative to the open `folder`. What cannot be removed stays, with
    its parent folders."""
    with suppress(OSError):
        if not stat.S_ISLNK(os.stat(root, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chmod(root, 0o700, dir_fd=folder)
    with suppress(OSError), FolderCursor(root, folder) as cursor:
        inside: list[str] = []
        waiting = [_remove_files(cursor)]
        while waiting:
            if waiting[-1]:
                name = waiting[-1].pop()
                try:
                    cursor.enter(name)
                except OSError:
                    continue
                inside.append(name)
                waiting.append(_remove_files(cursor))
            else:
                waiting.pop()
                if waiting:
                    cursor.leave()
                    with suppress(OSError):
                        os.rmdir(inside.pop(), dir_fd=cursor.fd)
    with suppress(OSError):
        os.rmdir(root, dir_fd=folder)


def _remove_files(cursor: FolderCursor) -> list[str]:
    """Remove all entries but folders; return the names of the folders, made accessible to this process."""
    with os.scandir(cursor.fd) as scanned:
        entries = list(scanned)
    folders = []
    for item in entries:
        with suppress(OSError):
            if item.is_dir(follow_symlinks=False):
                folders.append(item.name)
                os.chmod(item.name, 0o700, dir_fd=cursor.fd)
            else:
                os.unlink(item.name, dir_fd=cursor.fd)
    return folders


def _open(name: str | Path, folder: int | None = None) -> int:
    """Open a folder if it can be entered: from one that can only be listed, `..` cannot be opened."""
    fd = os.open(name, _FOLDER, dir_fd=folder)
    try:
        os.stat(".", dir_fd=fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _identity(fd: int) -> tuple[int, int]:
    status = os.stat(fd)
    return status.st_dev, status.st_ino
