"""Files of runs, which a stranger may have made: read within bounds, without links and special files; written whole or
not at all; read by their version. And storage errors with advice."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec

from mappa_core.errors import RunError
from mappa_core.safe_files import (
    UnsafeFileError,
    enter_folder,
    find_regular,
    open_own,
    open_regular,
    read_bounded,
    replace_file,
    split_name,
)

T = TypeVar("T")

_ADVICE = {
    errno.ENOSPC: "free some space or choose another folder (of runs: run.root)",
    errno.EDQUOT: "free some of your quota or choose another folder (of runs: run.root)",
    errno.EFBIG: "raise the limit on the size of files or choose another folder (of runs: run.root)",
    errno.EACCES: "choose a folder that you may write to (of runs: run.root)",
    errno.EPERM: "choose a folder that you may write to (of runs: run.root)",
    errno.EROFS: "choose a folder that you may write to (of runs: run.root)",
    errno.ENOTDIR: "a part of this path is a file; choose another folder (of runs: run.root)",
    errno.ENOENT: "its folder is missing or cannot be made; make it, or choose another",
    errno.EEXIST: "a file stands in its place or in that of its folder; choose another name or folder",
    errno.EISDIR: "a folder stands in its place; choose another name",
    errno.ENOTEMPTY: "another run took this name; choose another run.name",
    errno.ENAMETOOLONG: "choose a shorter run.name or run.root",
    errno.EIO: "the disk or the connection to it is failing",
}


_REMEDY = "put the file itself in its place, or leave this folder alone if a stranger made it"


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert storage faults under `path` (space, permission, names, links) to RunError; other errors propagate."""
    try:
        yield
    except UnsafeFileError as error:
        raise RunError(f"{path} {error.strerror}: {_REMEDY}") from error
    except OSError as error:
        if error.errno not in _ADVICE:
            raise
        raise RunError(f"{path}: cannot be written: {error.strerror}: {_ADVICE[error.errno]}") from error


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a whole file atomically: readers see the old content or the new, also after a kill or a power cut. Raises
    RunError if the storage fails; the old content then remains."""
    write_file(path.parent, path.name, data)


def write_file(folder: Path, name: str, data: str | bytes) -> None:
    """As `write_atomic`, for the file `name`, a relative path, of a run folder or another that a stranger may have
    made: missing folders in it are created, and none is entered through a link."""
    with storage_errors(folder / name):
        replace_file(folder, name, data.encode() if isinstance(data, str) else data, make=True)


def read_file(folder: Path, name: str, *, max_bytes: int) -> bytes:
    """Read the file `name`, a relative path, of a folder that a stranger may have made. Raises RunError if it is
    missing, larger than `max_bytes`, no regular file, behind a link, or cannot be read."""
    with _reading(folder / name), open_regular(folder, name, max_bytes=max_bytes) as source:
        return read_bounded(source, max_bytes)


def read_named_file(path: Path, *, max_bytes: int) -> bytes:
    """As `read_file`, for a file that the user named, whose own name may be a link."""
    target = Path(os.path.realpath(path))
    with _reading(path), open_regular(target.parent, target.name, max_bytes=max_bytes) as source:
        return read_bounded(source, max_bytes)


def read_text(folder: Path, name: str, *, max_bytes: int) -> str:
    """As `read_file`, for text in UTF-8."""
    try:
        return read_file(folder, name, max_bytes=max_bytes).decode()
    except UnicodeDecodeError as error:
        raise RunError(f"{folder / name} cannot be read: byte {error.start} is not UTF-8") from error


def open_file(folder: Path, name: str) -> BufferedReader:
    """Open the file `name` as `read_file` does, for content of any size that is read in parts."""
    with _reading(folder / name):
        return open_regular(folder, name)


def open_log(folder: Path, name: str) -> TextIO:
    """Open the file `name` of a folder that a stranger may have made, to add lines at its end. Raises RunError if the
    storage fails, or if it is no regular file or lies behind a link."""
    with storage_errors(folder / name):
        return os.fdopen(open_own(folder, name, append=True), "a", encoding="utf-8")


def has_file(folder: Path, name: str) -> bool:
    """Whether there is a file `name` in a folder that a stranger may have made. Raises RunError if it is no regular
    file or lies behind a link."""
    with _reading(folder / name):
        return find_regular(folder, name) is not None


def has_folder(folder: Path, name: str) -> bool:
    """Whether there is a folder `name` in a folder that a stranger may have made. Raises RunError for anything else of
    the name, and for a link on the way."""
    try:
        with _reading(folder / name), enter_folder(folder, split_name(name)):
            return True
    except RunError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except UnsafeFileError as error:
        raise RunError(f"{path} {error.strerror}: {_REMEDY}") from error
    except OSError as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise RunError(f"{path} {problem}") from error


def read_versioned(folder: Path, name: str, known: int, decode: Callable[[bytes], T], *, max_bytes: int) -> T:
    """Read a JSON file with a field `schema` as `read_file` does, and decode it by `decode`. Raises RunError if the
    file cannot be read, has another schema than `known`, or is rejected by `decode`."""
    text, path = read_file(folder, name, max_bytes=max_bytes), folder / name
    with damage_reported(path):
        schema = msgspec.json.decode(text, type=_Versioned).schema
        if schema != known:
            raise RunError(
                f"{path} has schema {schema}, and this version of Mappa reads schema {known} alone: use the version "
                "that wrote it"
            )
        return decode(text)


@contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Raise RunError where the values of a damaged file make the code inside fail (msgspec: ValueError)."""
    try:
        yield
    except RunError:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}") from error


class _Versioned(msgspec.Struct):
    schema: int


def fsync_path(path: Path) -> None:
    """Sync a file's content, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
