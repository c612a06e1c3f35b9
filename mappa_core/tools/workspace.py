"""The workspace of one trajectory: records the changes of its files, and restores them.

Only regular files are kept. What else a program leaves, as links, FIFOs or files that cannot be read or named, is
reported and never followed. The files of the task are links to the originals, and count while these are unchanged.

A program may have done anything to the folder, but none is running while it is inspected.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from mappa_core.errors import ToolError
from mappa_core.records import FileChange, Step
from mappa_core.redaction import clean_line
from mappa_core.safe_files import UnsafeFileError, enter_folder, open_entry, split_name
from mappa_core.safe_walk import ACCESS_ERRNOS, Entry, walk
from mappa_core.tools import task_files as task_files
from mappa_core.tools.file_archive import (
    MAX_CONTENT_BYTES,
    archived_path,
    open_content,
    place_content,
    remove_entry,
    store_content,
)

# Age below which a time stamp cannot distinguish two writes: the coarsest tick of the file systems in use.
UNSETTLED_NS = 2_000_000_000
_KINDS = {
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "block device",
    stat.S_IFCHR: "character device",
    stat.S_IFDIR: "folder that cannot be opened",
}


@dataclass(frozen=True, slots=True)
class _Stamp:
    """A cheap test for an unchanged file. Unlike the modification time, a program cannot set `ctime_ns`."""

    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Stamp:
        return cls(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


@dataclass(frozen=True, slots=True)
class _Known:
    """A file at the last call of `changes`. If not `settled`, it may have changed again with the same stamp."""

    stamp: _Stamp
    settled: bool
    sha256: str


class FolderWorkspace:
    """Implements protocols.Workspace on a folder, which is created if needed. Not for concurrent use.

    With `archive`, a folder that workspaces may share, the contents of created and changed files are stored there by
    their hash, and `restore` can restore them in this or another workspace. Files that already exist in the folder are
    reported by the first call of `changes`.

    `inputs` are the files of the task by name; the folder gets links to them. A file in the place of a link is a change
    of that file, and a missing link a deletion. Raises TaskError if an input cannot be used, ToolError if the folder
    cannot be created.
    """

    def __init__(self, path: Path, archive: Path | None = None, inputs: Mapping[str, Path] | None = None) -> None:
        self._path = path
        self._archive = archive
        self._inputs = task_files.resolve_task_files(inputs or {})
        self._linked = dict(self._inputs)
        self._known: dict[str, _Known] = {}
        self._left: tuple[str, ...] = ()
        with _as_tool_error(f"cannot make the workspace {path}"):
            path.mkdir(parents=True, exist_ok=True)
            task_files.link_task_files(self._inputs, path)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def inputs(self) -> Mapping[str, Path]:
        return self._inputs

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the regular files and of the inputs, relative to the folder, with slashes, sorted."""
        with _as_tool_error(f"cannot look through the workspace {self._path}"):
            entries = (entry for entry in walk(self._path) if self._is_input(entry) or _reason_not_kept(entry) is None)
            return tuple(sorted(entry.path for entry in entries))

    def changes(self) -> tuple[FileChange, ...]:
        """Return the changes of files since the last call, sorted by path. Reads only files that may have changed.
        Raises ToolError if the machine cannot read a file, or store its content."""
        now = time.time_ns()
        current: dict[str, _Known] = {}
        linked: dict[str, Path] = {}
        left = []
        with _as_tool_error(f"cannot look through the workspace {self._path}"):
            for entry in walk(self._path):
                if self._is_input(entry):
                    linked[entry.path] = self._linked[entry.path]
                    continue
                if stat.S_ISDIR(entry.status.st_mode) and not entry.inaccessible:
                    continue
                reason = _reason_not_kept(entry)
                known = None if reason is not None else self._read_file(entry, now)
                if known is None:
                    left.append(f"{clean_line(entry.path)} ({reason or 'cannot be read'})")
                else:
                    current[entry.path] = known
        changes = self._diff(current, linked)
        self._known, self._linked, self._left = current, linked, tuple(sorted(left))
        return changes

    def irregular_files(self) -> tuple[str, ...]:
        """Entries that the last call of `changes` did not keep, as `link.csv (symbolic link)`, sorted."""
        return self._left

    def restore(self, changes: Iterable[FileChange]) -> None:
        """Apply `changes` again, with contents from the archive; `changes()` will not report them. Raises ToolError if
        a content is not in the archive, or a path leads out of the folder."""
        for change in changes:
            with _as_tool_error(f"cannot restore {change.path!r} in the workspace {self._path}"):
                self._linked.pop(change.path, None)
                self._known.pop(change.path, None)
                if change.kind == "deleted":
                    self._delete(change.path)
                else:
                    self._known[change.path] = self._write(change)

    def _is_input(self, entry: Entry) -> bool:
        target = self._linked.get(entry.path)
        if target is None or not stat.S_ISLNK(entry.status.st_mode):
            return False
        return os.readlink(entry.name, dir_fd=entry.folder) == os.fspath(target)

    def _read_file(self, entry: Entry, now: int) -> _Known | None:
        """Hash and store a regular file if it may have changed; None if it cannot be read."""
        before, stamp = self._known.get(entry.path), _Stamp.of(entry.status)
        if before is not None and before.settled and before.stamp == stamp:
            return before
        source = _open_regular(entry)
        if source is None:
            return None
        with source:
            # Of the file that was opened, which may be another than the entry that was seen.
            stamp = _Stamp.of(os.fstat(source.fileno()))
            settled = max(stamp.mtime_ns, stamp.ctime_ns) < now - UNSETTLED_NS
            with _as_tool_error(f"cannot keep {entry.path!r} of the workspace {self._path}"):
                return _Known(stamp, settled, self._store(source))

    def _diff(self, current: Mapping[str, _Known], linked: Mapping[str, Path]) -> tuple[FileChange, ...]:
        changes = []
        for name, after in current.items():
            before = self._known.get(name)
            if before is None or before.sha256 != after.sha256:
                new = before is None and name not in self._linked
                kind: Literal["created", "changed"] = "created" if new else "changed"
                changes.append(FileChange(path=name, kind=kind, size=after.stamp.size, sha256=after.sha256))
        names_before = self._known.keys() | self._linked.keys()
        changes += [FileChange(path=name, kind="deleted") for name in names_before - current.keys() - linked.keys()]
        return tuple(sorted(changes, key=lambda change: change.path))

    def _store(self, source: BufferedReader) -> str:
        """Hash the content of `source` and, if there is an archive, store it there under its hash."""
        if self._archive is None:
            return hashlib.file_digest(source, "sha256").hexdigest()
        return store_content(self._archive, source)

    def _delete(self, path: str) -> None:
        *folders, name = split_name(path)
        try:
            with enter_folder(self._path, tuple(folders)) as cursor:
                remove_entry(cursor, name)
        except FileNotFoundError:
            pass  # gone with its folder
        except UnsafeFileError as error:
            if error.errno != errno.ENOTDIR:
                raise
            # Gone, too: a file took the place of its folder.

    def _write(self, change: FileChange) -> _Known:
        missing = f"cannot restore {change.path!r}: its content {change.sha256} is not in {self._archive}"
        if self._archive is None or change.sha256 is None:
            raise ToolError(missing)
        try:
            content = open_content(self._archive, change.sha256)
        except FileNotFoundError as error:
            raise ToolError(missing) from error
        with content:
            status, sha256 = place_content(self._path, change.path, content)
        if sha256 != change.sha256:
            content_path = archived_path(self._archive, change.sha256)
            raise ToolError(f"cannot restore {change.path!r}: {content_path} is damaged (its hash is {sha256})")
        # Not settled: it was written just now, and a program may change it within the same tick.
        return _Known(_Stamp.of(status), False, sha256)


def file_lineage(steps: Sequence[Step]) -> Mapping[str, tuple[tuple[str, FileChange], ...]]:
    """Return the history of each file: path -> (step id, change) in the order of the steps."""
    history: dict[str, list[tuple[str, FileChange]]] = {}
    for step in steps:
        for result in step.results:
            for change in result.files:
                history.setdefault(change.path, []).append((step.id, change))
    return {path: tuple(changes) for path, changes in history.items()}


@contextmanager
def _as_tool_error(what: str) -> Iterator[None]:
    try:
        yield
    except UnsafeFileError as error:
        raise ToolError(f"{what}: it {error.strerror}") from error
    except OSError as error:
        raise ToolError(f"{what}: {error}") from error


def _reason_not_kept(entry: Entry) -> str | None:
    """Why an entry is not kept; None for a regular file, as far as is known without opening it."""
    if entry.too_long:
        return "its path is too long"
    if entry.status.st_size > MAX_CONTENT_BYTES:
        return "it is too large"
    if entry.path.encode(errors="ignore").decode() != entry.path:
        return "its name is not UTF-8"
    kind = stat.S_IFMT(entry.status.st_mode)
    return None if kind == stat.S_IFREG else _KINDS.get(kind, "no regular file")


def _open_regular(entry: Entry) -> BufferedReader | None:
    """Open for reading; never follows a link or waits for a FIFO that replaced the file. None if it cannot be read."""
    try:
        return open_entry(entry.folder, entry.name)
    except UnsafeFileError:
        return None
    except OSError as error:
        if error.errno in ACCESS_ERRNOS:
            return None
        raise
