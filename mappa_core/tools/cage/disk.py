"""The folder of a program as the supervisor sees it: how much lies there, whose it is, and whether it can be read."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
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
    found, out_of_reach = [], set()
    for entry in walk(Path(folder)):
        if entry.closed:
            out_of_reach.add(entry.path.partition("/")[0])
        else:
            found.append((entry.status.st_ctime_ns, entry.path, entry.status))
    for name in out_of_reach:
        remove(Path(folder, name))
    size = sum(_bytes(status) for _, _, status in found)
    entries = len(found)
    # Of one moment, what lies deeper goes first: a folder is empty before it is its turn.
    for _, path, status in sorted(found, key=lambda one: (one[0], one[1]), reverse=True):
        if size <= most_bytes and entries <= most_entries:
            return
        with contextlib.suppress(OSError):
            (os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink)(f"{folder}/{path}")
        size -= _bytes(status)
        entries -= 1


def give(folder: str, uid: int) -> None:
    """Make `uid` the owner of `folder` and all that is in it."""
    os.chown(folder, uid, uid)
    for entry in walk(Path(folder)):
        if entry.status.st_uid != uid:
            os.chown(entry.name, uid, uid, dir_fd=entry.folder, follow_symlinks=False)


def _bytes(status: os.stat_result) -> int:
    return 0 if stat.S_ISDIR(status.st_mode) else max(status.st_size, status.st_blocks * 512)


def _mend(entry: Entry) -> None:
    mode = entry.status.st_mode
    least = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o600}.get(stat.S_IFMT(mode))
    if least is not None and mode & least != least:
        with contextlib.suppress(OSError):
            os.chmod(entry.name, stat.S_IMODE(mode) | least, dir_fd=entry.folder)
