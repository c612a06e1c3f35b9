"""Atomic file writes, versioned reads, and storage errors with advice."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

import msgspec

from mappa_core.errors import RunError

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


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert storage faults under `path` (space, permission, names) to RunError; other errors propagate."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ADVICE:
            raise
        raise RunError(f"{path}: cannot be written: {error.strerror}: {_ADVICE[error.errno]}") from error


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a whole file atomically: readers see the old content or the new, also after a kill or a power cut. Raises
    RunError if the storage fails; the old content then remains."""
    aside = path.with_name(f".{path.name}.{token_hex(4)}")
    with storage_errors(path):
        try:
            with aside.open("xb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        # The new name is on the disk only when its folder is synced.
        fsync_path(path.parent)


def read_versioned(path: Path, known: int, decode: Callable[[bytes], T]) -> T:
    """Read a JSON file with a field `schema` and decode it by `decode`. Raises RunError if the file cannot be read, has
    another schema than `known`, or is rejected by `decode`."""
    try:
        text = path.read_bytes()
        schema = msgspec.json.decode(text, type=_Versioned).schema
        if schema != known:
            raise RunError(
                f"{path} has schema {schema}, and this version of Mappa reads schema {known} alone: use the version "
                "that wrote it"
            )
        return decode(text)
    except OSError as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise RunError(f"{path} {problem}") from error
    except msgspec.DecodeError as error:
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
