"""The folder of a program as the supervisor sees it: how much lies there, whose it is, and whether it can be read."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from mappa_core.tools.cage.walk import Entry, walk


@dataclass(frozen=True)
class Contents:
    """Bytes (of a sparse file its whole length) and number of all entries, folders included; `closed` where some lie in
    folders that cannot be entered, or so deep that no path leads there."""

    bytes: int
    entries: int
    closed: bool


def measure(folder: str, most_entries: int) -> Contents:
    """What lies in `folder`; stops counting beyond `most_entries`.

    Raises:
        OSError: folders are moved while they are looked at.
    """
    size = entries = 0
    closed = False
    for entry in walk(Path(folder)):
        if entry.closed:
            closed = True
            continue
        if not stat.S_ISDIR(entry.status.st_mode):
            size += max(entry.status.st_size, entry.status.st_blocks * 512)
        entries += 1
        if entries > most_entries:
            break
    return Contents(size, entries, closed)


def tidy(folder: str) -> None:
    """Make everything that a program left readable for its owner."""
    for entry in walk(Path(folder)):
        _mend(entry)


def give(folder: str, uid: int) -> None:
    """Make `uid` the owner of `folder` and all that is in it."""
    os.chown(folder, uid, uid)
    for entry in walk(Path(folder)):
        if entry.status.st_uid != uid:
            os.chown(entry.name, uid, uid, dir_fd=entry.folder, follow_symlinks=False)


def _mend(entry: Entry) -> None:
    mode = entry.status.st_mode
    least = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o600}.get(stat.S_IFMT(mode))
    if least is not None and mode & least != least:
        with contextlib.suppress(OSError):
            os.chmod(entry.name, stat.S_IMODE(mode) | least, dir_fd=entry.folder)
