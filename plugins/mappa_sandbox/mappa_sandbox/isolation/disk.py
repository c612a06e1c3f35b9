"""The folders of a program, from the supervisor: measure and trim them, change their owner, make them readable."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mappa_core.safe_walk import Entry, remove_tree, walk

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SHORT_LINK_BYTES = 128
"""Links in memory that are shorter take no page of their own."""


@dataclass(frozen=True)
class FolderUsage:
    """Bytes (in whole pages, sparse files in full) and number of all entries, folders included; `inaccessible` if some
    are in folders that cannot be entered, or too deep for a path."""

    bytes: int
    entries: int
    inaccessible: bool


def measure(folders: Sequence[str], max_entries: int) -> FolderUsage:
    """Measure the content of `folders`; stops counting beyond `max_entries`.

    Raises:
        OSError: folders are moved meanwhile.
    """
    size = entries = 0
    inaccessible = False
    for entry in chain.from_iterable(walk(Path(folder)) for folder in folders):
        if entry.inaccessible:
            inaccessible = True
            continue
        size += _bytes(entry.status)
        entries += 1
        if entries > max_entries:
            break
    return FolderUsage(size, entries, inaccessible)


def make_readable(folder: str) -> None:
    """Make everything that a program left readable for its owner. If it removed `folder`, create it again, empty."""
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | 0o700)
    for entry in walk(Path(folder)):
        _make_entry_readable(entry)


def trim(folder: str, max_bytes: int, max_entries: int) -> None:
    """Remove the newest entries until the rest fits the limits, and all that no path can reach."""
    status_of: dict[str, os.stat_result] = {}
    unreachable = set()
    for entry in walk(Path(folder)):
        if entry.inaccessible:
            unreachable.add(entry.path.partition("/")[0])
        else:
            status_of[entry.path] = entry.status
    for name in unreachable:
        remove_tree(Path(folder, name))
    status_of = {path: status for path, status in status_of.items() if path.partition("/")[0] not in unreachable}
    size, entries = sum(map(_bytes, status_of.values())), len(status_of)
    for path in _latest_first(status_of):
        if size <= max_bytes and entries <= max_entries:
            return
        try:
            (os.rmdir if stat.S_ISDIR(status_of[path].st_mode) else os.unlink)(f"{folder}/{path}")
        except OSError:
            continue
        size -= _bytes(status_of[path])
        entries -= 1


def change_owner(folder: str, uid: int) -> None:
    """Make `uid` the owner of `folder` and all that is in it."""
    os.chown(folder, uid, uid)
    # Not through links, and by the open folder: nothing that a program moves meanwhile leads elsewhere.
    for entry in walk(Path(folder)):
        if entry.status.st_uid != uid:
            os.chown(entry.name, uid, uid, dir_fd=entry.folder, follow_symlinks=False)


def _latest_first(status_of: Mapping[str, os.stat_result]) -> list[str]:
    """Paths by time of creation, latest first; a folder comes after its content, which changes the folder's own
    time."""
    created = {path: status.st_ctime_ns for path, status in status_of.items()}
    for path in sorted(created, reverse=True):
        parent = path.rpartition("/")[0]
        if parent:
            created[parent] = min(created[parent], created[path])
    return sorted(created, key=lambda path: (created[path], path), reverse=True)


def _bytes(status: os.stat_result) -> int:
    if stat.S_ISDIR(status.st_mode):
        return 0
    # Blocks are of 512 bytes on every file system, and more than the size where room was reserved (`fallocate`).
    size = max(status.st_size, status.st_blocks * 512)
    # In memory a file takes whole pages, and so does a link from a length on; a disk may pack small ones.
    is_short_link = stat.S_ISLNK(status.st_mode) and status.st_size < SHORT_LINK_BYTES
    return size if is_short_link else -(-size // PAGE_BYTES) * PAGE_BYTES


def _make_entry_readable(entry: Entry) -> None:
    mode = entry.status.st_mode
    required = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o600}.get(stat.S_IFMT(mode))
    if required is not None and mode & required != required:
        with contextlib.suppress(OSError):
            os.chmod(entry.name, stat.S_IMODE(mode) | required, dir_fd=entry.folder)
