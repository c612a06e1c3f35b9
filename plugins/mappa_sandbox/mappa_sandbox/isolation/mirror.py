"""Make one folder like another: how the files of a workspace come into memory before a program, and back after it.

No program runs meanwhile. What one has left may be anything: nothing is entered or opened through a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from mappa_core.safe_walk import FolderCursor, remove_tree

_CHUNK_BYTES = 1 << 20
_KEPT_MODE = 0o777
"""Not the bits for set-user-id: a file that a program made may come back as one of root."""
_KINDS = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO})
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def mirror(source: FolderCursor, target: FolderCursor, owner: int | None) -> None:
    """Make the content of the folder of `target` like that of `source`: files, folders, links and FIFOs, with modes
    and, for files, times. A file with the same content stays untouched, so that its inode and its times still tell that
    nothing changed. All of it belongs to the user `owner` afterwards; None: what is made belongs to this process's.
    Devices and sockets are left out.

    Raises:
        OSError: an entry cannot be read or written.
    """
    waiting = [_mirror_entries(source.fd, target.fd, owner)]
    while waiting:
        if waiting[-1]:
            name = waiting[-1].pop()
            source.enter(name)
            target.enter(name)
            waiting.append(_mirror_entries(source.fd, target.fd, owner))
        else:
            waiting.pop()
            if waiting:
                source.leave()
                target.leave()


def _mirror_entries(source: int, target: int, owner: int | None) -> list[str]:
    """Mirror all entries but the content of folders; returns the names of these."""
    wanted = {name: status for name, status in _list_entries(source) if stat.S_IFMT(status.st_mode) in _KINDS}
    kept = {}
    for name, status in _list_entries(target):
        if name in wanted and _is_alike(name, wanted[name], status, source, target):
            kept[name] = status
        elif stat.S_ISDIR(status.st_mode):
            remove_tree(Path(name), target)
        else:
            os.unlink(name, dir_fd=target)
    for name, status in wanted.items():
        if name not in kept:
            _create(name, status, source, target)
        _copy_metadata(name, status, kept.get(name), target, owner)
    return [name for name, status in wanted.items() if stat.S_ISDIR(status.st_mode)]


def _list_entries(folder: int) -> list[tuple[str, os.stat_result]]:
    with os.scandir(folder) as scanned:
        return [(item.name, item.stat(follow_symlinks=False)) for item in scanned]


def _is_alike(name: str, wanted: os.stat_result, present: os.stat_result, source: int, target: int) -> bool:
    """Whether an entry is there already, apart from its metadata."""
    if stat.S_IFMT(wanted.st_mode) != stat.S_IFMT(present.st_mode):
        return False
    if stat.S_ISLNK(wanted.st_mode):
        return os.readlink(name, dir_fd=source) == os.readlink(name, dir_fd=target)
    if not stat.S_ISREG(wanted.st_mode):
        return True
    if wanted.st_size != present.st_size:
        return False
    with open(name, "rb", opener=_open_in(source)) as theirs, open(name, "rb", opener=_open_in(target)) as ours:
        while chunk := theirs.read(_CHUNK_BYTES):
            if chunk != ours.read(_CHUNK_BYTES):
                return False
    return True


def _open_in(folder: int) -> Callable[[str, int], int]:
    return lambda name, _: os.open(name, _READ, dir_fd=folder)


def _create(name: str, status: os.stat_result, source: int, target: int) -> None:
    """Make an entry like one of `source`; a folder is empty."""
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        os.mkdir(name, 0o700, dir_fd=target)
    elif kind == stat.S_IFLNK:
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
    elif kind == stat.S_IFIFO:
        os.mkfifo(name, 0o600, dir_fd=target)
    else:
        theirs = os.open(name, _READ, dir_fd=source)
        ours = os.open(name, _CREATE, 0o600, dir_fd=target)
        try:
            while os.sendfile(ours, theirs, None, _CHUNK_BYTES):
                pass
        finally:
            os.close(theirs)
            os.close(ours)


def _copy_metadata(
    name: str, wanted: os.stat_result, present: os.stat_result | None, target: int, owner: int | None
) -> None:
    """Give an entry its owner, mode and times; nothing is set that is so already, as that would change its times."""
    if owner is not None and (present is None or present.st_uid != owner):
        os.chown(name, owner, owner, dir_fd=target, follow_symlinks=False)
    if stat.S_ISLNK(wanted.st_mode):
        return
    mode = stat.S_IMODE(wanted.st_mode) & _KEPT_MODE
    if present is None or stat.S_IMODE(present.st_mode) != mode:
        os.chmod(name, mode, dir_fd=target)
    if stat.S_ISREG(wanted.st_mode) and (present is None or present.st_mtime_ns != wanted.st_mtime_ns):
        times = (wanted.st_atime_ns, wanted.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)
