"""Reads the local folder of a trajectory, and applies to it the changes of a program on a server.

Names and bytes from a server are untrusted: only regular files below the folder are written, and never through a link.
Nothing else writes to the folder at the same time.
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

COPY_CHUNK_BYTES = 1 << 20
MAX_NAME_BYTES = 4096
UNSETTLED_NS = 2_000_000_000
"""Age below which a time stamp cannot tell two writes apart: the coarsest tick of the file systems in use."""
OPEN_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A regular file: size, hash, and a stamp that shows cheaply whether it is unchanged."""

    size: int
    sha256: str
    stamp: tuple[int, int, int]
    settled: bool


class FileHashes:
    """Hashes of files outside of workspaces; a file is read again only where it changed."""

    def __init__(self) -> None:
        self._known: dict[Path, LocalFile] = {}

    def of(self, path: Path) -> LocalFile:
        """Return the file's hash; reading it may take seconds. Raises ToolError where it cannot be read."""
        try:
            known = self._known[path] = _hash_file(path, path.stat(), self._known.get(path))
        except OSError as error:
            raise ToolError(f"the file {path} of a task cannot be read: {error.strerror}") from error
        return known


def scan_folder(folder: Path) -> dict[str, LocalFile]:
    """Hash all regular files below `folder`, by name with slashes.

    Raises:
        ToolError: one cannot be read.
    """
    files = {}
    folders = [""]
    while folders:
        prefix = folders.pop()
        try:
            for entry in _sorted_entries(folder / prefix):
                name = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                elif entry.is_file(follow_symlinks=False) and is_plain_name(name):
                    files[name] = _hash_file(folder / name, entry.stat(follow_symlinks=False), None)
        except OSError as error:
            raise ToolError(f"the workspace {folder} cannot be read: {error}") from error
    return files


def linked_inputs(folder: Path, inputs: Mapping[str, Path]) -> dict[str, Path]:
    """Return the inputs that are still links in `folder`."""
    return {name: path for name, path in inputs.items() if (folder / name).is_symlink()}


def is_plain_name(name: str) -> bool:
    """Whether `name` is a relative path of a file that stays below its folder and is valid on any server."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= MAX_NAME_BYTES and "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def remove_files(folder: Path, names: Collection[str]) -> None:
    """Remove files and links of these names, where they exist."""
    for name in names:
        with suppress(FileNotFoundError, NotADirectoryError), _open_parent(folder, name, make=False) as (parent, last):
            os.unlink(last, dir_fd=parent)


def write_file(folder: Path, name: str, source: Path) -> None:
    """Write a copy of `source` to `name`, replacing what is there.

    Raises:
        ToolError: the name leads out of the folder.
        OSError: the disk does not take it.
    """
    if not is_plain_name(name):
        raise ToolError(f"a server names the file {name!r}, which does not lie in the workspace")
    with _open_parent(folder, name, make=True) as (parent, last):
        _clear_name(folder / name, parent, last)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with source.open("rb") as data, os.fdopen(os.open(last, flags, 0o644, dir_fd=parent), "wb") as target:
            shutil.copyfileobj(data, target, COPY_CHUNK_BYTES)


@contextmanager
def _open_parent(folder: Path, name: str, *, make: bool) -> Iterator[tuple[int, str]]:
    """Open the parent folder of `name` part by part, never through a link; yield it and the last part of the name."""
    *above, last = name.split("/")
    here = os.open(folder, OPEN_FOLDER_FLAGS)
    try:
        for part in above:
            if make:
                _make_folder(here, part)
            outer, here = here, os.open(part, OPEN_FOLDER_FLAGS, dir_fd=here)
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


def _clear_name(path: Path, parent: int, name: str) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(path)  # all files of it are gone on the server; what is left is folders
        else:
            os.unlink(name, dir_fd=parent)


def _sorted_entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _hash_file(path: Path, status: os.stat_result, before: LocalFile | None) -> LocalFile:
    stamp = (status.st_ino, status.st_ctime_ns, status.st_size)
    if before is not None and before.settled and before.stamp == stamp:
        return before
    settled = max(status.st_mtime_ns, status.st_ctime_ns) < time.time_ns() - UNSETTLED_NS
    with path.open("rb") as source:
        return LocalFile(status.st_size, hashlib.file_digest(source, "sha256").hexdigest(), stamp, settled)
