"""The folder of a trajectory on our side: what is in it, and what a program on a server did to it.

Names and bytes that come from a server are not trusted: only regular files below the folder are written, and never
through a link. While this is done nothing else writes there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mappa_core import ToolError

CHUNK = 1 << 20
LONGEST_NAME = 4096
UNSETTLED_NS = 2_000_000_000
"""Age below which a time stamp cannot tell two writes apart: the coarsest tick of the file systems in use."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A regular file: bytes, hash, and what tells cheaply that it is as before."""

    size: int
    sha256: str
    stamp: tuple[int, int, int]
    settled: bool


class Hashes:
    """Hashes of files outside of workspaces, each read once as long as it stays as it is."""

    def __init__(self) -> None:
        self._known: dict[Path, LocalFile] = {}

    def of(self, path: Path) -> LocalFile:
        """Raises ToolError where the file cannot be read. Reads it, which may take seconds."""
        try:
            known = self._known[path] = _look(path, path.stat(), self._known.get(path))
        except OSError as error:
            raise ToolError(f"the file {path} of a task cannot be read: {error.strerror}") from error
        return known


def scan(folder: Path) -> dict[str, LocalFile]:
    """The regular files below `folder` by name with slashes. Reads all of them.

    Raises:
        ToolError: one cannot be read.
    """
    found = {}
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            for entry in _entries(folder / prefix):
                name = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{name}/")
                elif entry.is_file(follow_symlinks=False) and is_plain(name):
                    found[name] = _look(folder / name, entry.stat(follow_symlinks=False), None)
        except OSError as error:
            raise ToolError(f"the workspace {folder} cannot be read: {error}") from error
    return found


def intact(folder: Path, inputs: Mapping[str, Path]) -> dict[str, Path]:
    """The inputs that still stand in `folder` as links."""
    return {name: path for name, path in inputs.items() if (folder / name).is_symlink()}


def is_plain(name: str) -> bool:
    """Whether `name` is a path of a file below a folder, and could be one on any server."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= LONGEST_NAME and "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def remove(folder: Path, names: Collection[str]) -> None:
    """Remove files and links of these names, where they are there."""
    for name in names:
        with suppress(FileNotFoundError, NotADirectoryError), _parent(folder, name, make=False) as (parent, last):
            os.unlink(last, dir_fd=parent)


def write(folder: Path, name: str, source: Path) -> None:
    """Put a copy of `source` at `name`, in place of whatever stands there.

    Raises:
        ToolError: the name leads out of the folder.
        OSError: the disk does not take it.
    """
    if not is_plain(name):
        raise ToolError(f"a server names the file {name!r}, which does not lie in the workspace")
    with _parent(folder, name, make=True) as (parent, last):
        _clear(folder / name, parent, last)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with source.open("rb") as data, os.fdopen(os.open(last, flags, 0o644, dir_fd=parent), "wb") as target:
            shutil.copyfileobj(data, target, CHUNK)


@contextmanager
def _parent(folder: Path, name: str, *, make: bool) -> Iterator[tuple[int, str]]:
    """The folder that `name` lies in, opened name by name and never through a link, and the last part of the name."""
    *above, last = name.split("/")
    here = os.open(folder, FOLDER)
    try:
        for part in above:
            if make:
                _make_folder(here, part)
            outer, here = here, os.open(part, FOLDER, dir_fd=here)
            os.close(outer)
        yield here, last
    finally:
        os.close(here)


def _make_folder(parent: int, name: str) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)


def _clear(path: Path, parent: int, name: str) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(path)  # all files of it are gone on the server; what is left is folders
        else:
            os.unlink(name, dir_fd=parent)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _look(path: Path, status: os.stat_result, before: LocalFile | None) -> LocalFile:
    stamp = (status.st_ino, status.st_ctime_ns, status.st_size)
    if before is not None and before.settled and before.stamp == stamp:
        return before
    settled = max(status.st_mtime_ns, status.st_ctime_ns) < time.time_ns() - UNSETTLED_NS
    with path.open("rb") as source:
        return LocalFile(status.st_size, hashlib.file_digest(source, "sha256").hexdigest(), stamp, settled)
