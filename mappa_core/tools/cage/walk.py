"""Look through a folder, and remove it, whatever a program has made of it.

Every folder is entered by a descriptor of the one it is in and never through a link, so that one which was swapped for
a link does not lead outside. One descriptor is open at a time, and nothing recurses, however deep the folders are.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

LONGEST = 3072
"""Bytes of a relative path beyond which nothing is looked at: the rest of what systems take (4096) is for the folder
that a workspace stands in."""

REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.ENXIO})
"""What a program may have brought about at its files; other errors are faults of the machine."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a folder: its path relative to the root, with slashes, the descriptor of its folder, which is good
    until the next entry is asked for, its name there, and its status, never that of what a link leads to. A folder that
    cannot be entered is `closed`."""

    path: str
    folder: int
    name: str
    status: os.stat_result
    closed: bool = False

    @property
    def too_long(self) -> bool:
        return len(os.fsencode(self.path)) > LONGEST


class Place:
    """The descriptor `fd` of a folder, which moves down and up again. Closed by `with`.

    Raises:
        OSError: the folder is not there, is a link or may not be entered.
    """

    def __init__(self, root: Path) -> None:
        self.fd = _open(root)
        self._above: list[tuple[int, int]] = []

    def down(self, name: str) -> None:
        """Enter a folder of this one. Raises OSError, and stays, where it is none, a link or may not be entered."""
        below = _open(name, self.fd)
        self._above.append(_identity(self.fd))
        self._move(below)

    def up(self) -> None:
        """Leave for the folder that this one was entered from. Raises OSError where it was moved meanwhile."""
        self._move(os.open("..", _FOLDER, dir_fd=self.fd))
        if _identity(self.fd) != self._above.pop():
            raise OSError(errno.ESTALE, "a folder was moved while it was looked at")

    def _move(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)


def walk(root: Path) -> Iterator[Entry]:
    """Everything below `root`, in no order; a folder before what is in it, and once more where it turns out to be
    closed. A root that is no folder is empty.

    Raises:
        OSError: a fault of the machine, or something moves folders meanwhile.
    """
    try:
        place = Place(root)
    except OSError as error:
        if error.errno in REFUSED:
            return
        raise
    with place:
        waiting = [(yield from _listed(place, ""))]
        while waiting:
            if not waiting[-1]:
                waiting.pop()
                if waiting:
                    place.up()
                continue
            folder = replace(waiting[-1].pop(), folder=place.fd)
            yield folder
            if _entered(place, folder):
                waiting.append((yield from _listed(place, f"{folder.path}/")))
            else:
                yield replace(folder, closed=True)


def _listed(place: Place, prefix: str) -> Generator[Entry, None, list[Entry]]:
    """Yield what is no folder; the folders."""
    with os.scandir(place.fd) as found:
        entries = list(found)
    folders = []
    for one in entries:
        with suppress(FileNotFoundError):
            entry = Entry(prefix + one.name, place.fd, one.name, one.stat(follow_symlinks=False))
            if one.is_dir(follow_symlinks=False):
                folders.append(entry)
            else:
                yield entry
    return folders


def _entered(place: Place, folder: Entry) -> bool:
    if folder.too_long:
        return False
    try:
        place.down(folder.name)
    except OSError as error:
        if error.errno in REFUSED:
            return False
        raise
    return True


def remove(root: Path) -> None:
    """Remove a folder with all that is in it. What cannot be removed stays, and what it is in."""
    with suppress(OSError):
        if not root.is_symlink():
            root.chmod(0o700)
    with suppress(OSError), Place(root) as place:
        inside: list[str] = []
        waiting = [_cleared(place)]
        while waiting:
            if waiting[-1]:
                try:
                    place.down(name := waiting[-1].pop())
                except OSError:
                    continue
                inside.append(name)
                waiting.append(_cleared(place))
            else:
                waiting.pop()
                if waiting:
                    place.up()
                    with suppress(OSError):
                        os.rmdir(inside.pop(), dir_fd=place.fd)
    with suppress(OSError):
        root.rmdir()


def _cleared(place: Place) -> list[str]:
    """Remove what is no folder; the names of the folders, which are opened to us."""
    with os.scandir(place.fd) as found:
        entries = list(found)
    folders = []
    for one in entries:
        with suppress(OSError):
            if one.is_dir(follow_symlinks=False):
                folders.append(one.name)
                os.chmod(one.name, 0o700, dir_fd=place.fd)
            else:
                os.unlink(one.name, dir_fd=place.fd)
    return folders


def _open(name: str | Path, folder: int | None = None) -> int:
    """Open a folder that can be entered: one that can only be listed has no way back."""
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
