"""The folder of one trajectory: what happened to its files, and how to bring them back.

Only regular files count. Symbolic links, devices, FIFOs and sockets that a program leaves behind are neither followed
nor listed, nor are files that cannot be read or whose names are not UTF-8; empty folders are not kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from mappa_core.errors import ToolError
from mappa_core.records import FileChange, Step

CHUNK = 1 << 20
UNSETTLED_NS = 2_000_000_000
"""Age below which a time stamp cannot tell two writes apart: the coarsest tick of the file systems in use."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What tells cheaply that a file is as before. Unlike the modification time, a program cannot set `ctime_ns`."""

    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Stamp:
        return cls(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


@dataclass(frozen=True, slots=True)
class _Known:
    """A file as `changes` last saw it. One that was not `settled` may have changed again under the same stamp."""

    stamp: _Stamp
    settled: bool
    sha256: str


class FolderWorkspace:
    """Implements protocols.Workspace on a folder, which is made if it is not there.

    With `archive`, a folder that workspaces may share, the contents of created and changed files are kept there by
    their hash, and `restore` can bring them back in this or another workspace. What already lies in the folder is
    reported by the first call of `changes`. Not for concurrent use.
    """

    def __init__(self, path: Path, archive: Path | None = None) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._archive = archive
        self._known: dict[str, _Known] = {}

    @property
    def path(self) -> Path:
        return self._path

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the regular files there, relative to the folder, with slashes, sorted."""
        return tuple(sorted(name for name, _ in _walk(self._path)))

    def changes(self) -> tuple[FileChange, ...]:
        """What happened to the files since the last call, sorted by path. Reads only files that may have changed.

        Raises:
            ToolError: a file cannot be read, or its content cannot be archived.
        """
        now = time.time_ns()
        found: dict[str, _Known] = {}
        changes = []
        for name, status in sorted(_walk(self._path)):
            before = self._known.get(name)
            after = self._look(name, _Stamp.of(status), before, now)
            if after is None:
                continue
            found[name] = after
            if before is None or before.sha256 != after.sha256:
                kind: Literal["created", "changed"] = "created" if before is None else "changed"
                changes.append(FileChange(path=name, kind=kind, size=after.stamp.size, sha256=after.sha256))
        changes += [FileChange(path=name, kind="deleted") for name in self._known.keys() - found.keys()]
        self._known = found
        return tuple(sorted(changes, key=lambda change: change.path))

    def restore(self, changes: Iterable[FileChange]) -> None:
        """Do `changes` again, taking contents from the archive; `changes()` will not report them.

        Raises:
            ToolError: a content is not in the archive, or a path leads out of the folder.
        """
        for change in changes:
            target = self._target(change.path)
            if change.kind == "deleted":
                with suppress(FileNotFoundError, NotADirectoryError):
                    target.unlink()
                self._known.pop(change.path, None)
            else:
                self._write(target, change)

    def _look(self, name: str, stamp: _Stamp, before: _Known | None, now: int) -> _Known | None:
        if before is not None and before.settled and before.stamp == stamp:
            return before
        source = _open_regular(self._path / name)
        if source is None:
            return None
        with source:
            stamp = _Stamp.of(os.fstat(source.fileno()))
            settled = max(stamp.mtime_ns, stamp.ctime_ns) < now - UNSETTLED_NS
            try:
                return _Known(stamp, settled, self._keep(source))
            except OSError as error:
                raise ToolError(f"cannot keep {name!r} of the workspace {self._path}: {error}") from error

    def _keep(self, source: BufferedReader) -> str:
        """Hash what `source` holds and, where there is an archive, put it there under that name."""
        sha256 = hashlib.file_digest(source, "sha256").hexdigest()
        if self._archive is None or (target := _shelf(self._archive, sha256)).exists():
            return sha256
        source.seek(0)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: a killed run leaves no half content under a hash.
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as aside:
            shutil.copyfileobj(source, aside, CHUNK)
        Path(aside.name).replace(target)
        return sha256

    def _target(self, name: str) -> Path:
        target = self._path / name
        root = self._path.resolve()
        if not target.parent.resolve().is_relative_to(root) or target.name in ("", ".."):
            raise ToolError(f"{name!r} leads out of the workspace {self._path}")
        return target

    def _write(self, target: Path, change: FileChange) -> None:
        assert change.sha256 is not None  # only deleted files have no content
        content = None if self._archive is None else _shelf(self._archive, change.sha256)
        if content is None or not content.exists():
            raise ToolError(f"cannot restore {change.path!r}: its content {change.sha256} is not in {self._archive}")
        if target.is_dir():
            shutil.rmtree(target)  # the same changes delete what is in it: a folder became a file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copyfile(content, target)
        with target.open("rb") as restored:
            sha256 = hashlib.file_digest(restored, "sha256").hexdigest()
        if sha256 != change.sha256:
            raise ToolError(f"cannot restore {change.path!r}: {content} is damaged (its hash is {sha256})")
        self._known[change.path] = _Known(_Stamp.of(target.lstat()), False, sha256)


def lineage(steps: Sequence[Step]) -> Mapping[str, tuple[tuple[str, FileChange], ...]]:
    """Which step created, changed or deleted each file: path -> (step id, change) in the order of the steps."""
    history: dict[str, tuple[tuple[str, FileChange], ...]] = {}
    for step in steps:
        for result in step.results:
            for change in result.files:
                history[change.path] = (*history.get(change.path, ()), (step.id, change))
    return history


def _walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Relative path and status of every regular file below `folder`."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        with suppress(OSError), os.scandir(folder / prefix) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name + "/")
                elif entry.is_file(follow_symlinks=False) and _is_utf8(entry.name):
                    yield name, entry.stat(follow_symlinks=False)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _open_regular(path: Path) -> BufferedReader | None:
    """Open for reading, never through a link and never waiting for a FIFO that took the file's place."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    source = os.fdopen(descriptor, "rb")
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return source
    source.close()
    return None


def _shelf(archive: Path, sha256: str) -> Path:
    return archive / sha256[:2] / sha256
