"""The folder of a program as the supervisor sees it: how much lies there, whose it is, and whether it can be read."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mappa_core.tools.cage.walk import Entry, remove, walk


@dataclass(frozen=True)
class Contents:
    """Bytes (of a sparse file its whole length) and number of all entries, folders included; `closed` where some lie in
    folders that cannot be entered, or so deep that no path leads there."""

    bytes: int
    entries: int
    closed: bool


def measure(folders: Sequence[str], most_entries: int) -> Contents:
    """What lies in `folders`; stops counting beyond `most_entries`.

    Raises:
        OSError: folders are moved while they are looked at.
    """
    size = entries = 0
    closed = False
    for entry in chain.from_iterable(walk(Path(folder)) for folder in folders):
        if entry.closed:
            closed = True
            continue
        size += _bytes(entry.status)
        entries += 1
        if entries > most_entries:
            break
    return Contents(size, entries, closed)


def tidy(folder: str) -> None:
    """Make everything that a program left readable for its owner. A folder that it removed is there again, empty."""
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | 0o700)
    for entry in walk(Path(folder)):
        _mend(entry)


def trim(folder: str, most_bytes: int, most_entries: int) -> None:
    """Remove what came last until the rest fits, and what no path leads to."""
    found: dict[str, os.stat_result] = {}
    out_of_reach = set()
    for entry in walk(Path(folder)):
        if entry.closed:
            out_of_reach.add(entry.path.partition("/")[0])
        else:
            found[entry.path] = entry.status
    for name in out_of_reach:
        remove(Path(folder, name))
    found = {path: status for path, status in found.items() if path.partition("/")[0] not in out_of_reach}
    size, entries = sum(map(_bytes, found.values())), len(found)
    for path in _latest_first(found):
        if size <= most_bytes and entries <= most_entries:
            return
        try:
            (os.rmdir if stat.S_ISDIR(found[path].st_mode) else os.unlink)(f"{folder}/{path}")
        except OSError:
            continue
        size -= _bytes(found[path])
        entries -= 1


def give(folder: str, uid: int) -> None:
    """Make `uid` the owner of `folder` and all that is in it."""
    os.chown(folder, uid, uid)
    for entry in walk(Path(folder)):
        if entry.status.st_uid != uid:
            os.chown(entry.name, uid, uid, dir_fd=entry.folder, follow_symlinks=False)


def _latest_first(found: Mapping[str, os.stat_result]) -> list[str]:
    """The paths by the time they came, a folder after all that is in it: what is put into it changes its own time."""
    came = {path: status.st_ctime_ns for path, status in found.items()}
    for path in sorted(came, reverse=True):
        parent = path.rpartition("/")[0]
        if parent:
            came[parent] = min(came[parent], came[path])
    return sorted(came, key=lambda path: (came[path], path), reverse=True)


def _bytes(status: os.stat_result) -> int:
    return 0 if stat.S_ISDIR(status.st_mode) else max(status.st_size, status.st_blocks * 512)


def _mend(entry: Entry) -> None:
    mode = entry.status.st_mode
    least = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o600}.get(stat.S_IFMT(mode))
    if least is not None and mode & least != least:
        with contextlib.suppress(OSError):
            os.chmod(entry.name, stat.S_IMODE(mode) | least, dir_fd=entry.folder)
