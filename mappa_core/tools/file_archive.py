"""Archive of the files that agents wrote: contents by their hash, as `ab/abcd…`. It may come from a stranger: nothing
in it is followed, and a content that is read is that of its name."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from mappa_core.errors import ToolError
from mappa_core.safe_files import create_entry, enter_folder, find_regular, open_regular, split_name
from mappa_core.safe_walk import FolderCursor, remove_tree, walk

MAX_CONTENT_BYTES = 8 << 30
"""Size of one content; a larger file is not kept."""
_CHUNK_BYTES = 1 << 20
_SHA256 = re.compile("[0-9a-f]{64}")


def archived_path(archive: Path, sha256: str) -> Path:
    """Path of a content. Raises ToolError for what is no hash, as a record of a stranger may hold any text there."""
    if not _SHA256.fullmatch(sha256):
        raise ToolError(f"{sha256[:80]!r} is no hash of a content in {archive}")
    return archive / sha256[:2] / sha256


def store_content(archive: Path, source: BufferedReader) -> str:
    """Store the content of an opened file unless it is there; returns its hash. Raises OSError."""
    sha256 = hashlib.file_digest(source, "sha256").hexdigest()
    name = _archived_name(archive, sha256)
    if find_regular(archive.parent, name) is None:
        source.seek(0)
        archive.mkdir(parents=True, exist_ok=True)
        *folders, last = split_name(name)
        with enter_folder(archive.parent, tuple(folders), make=True) as cursor:
            # Written aside and renamed, so that a killed run leaves no partial content under a hash.
            aside = f".{token_hex(8)}"
            try:
                with os.fdopen(create_entry(cursor.fd, aside), "wb") as target:
                    _copy(source, target)
                    os.fchmod(target.fileno(), 0o644)  # programs that inspect it run as another user
                os.replace(aside, last, src_dir_fd=cursor.fd, dst_dir_fd=cursor.fd)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(aside, dir_fd=cursor.fd)
    return sha256


def copy_archive(source: Path, target: Path) -> None:
    """Copy the contents of an archive into another; what else lies in it is left. Raises OSError."""
    for entry in walk(source):
        if stat.S_ISREG(entry.status.st_mode) and _SHA256.fullmatch(entry.name):
            with open_content(source, entry.name) as content:
                store_content(target, content)


def open_content(archive: Path, sha256: str) -> BufferedReader:
    """Open a content for reading. Raises ToolError as `archived_path`, and OSError where it is missing, no regular file
    or too large."""
    return open_regular(archive.parent, _archived_name(archive, sha256), max_bytes=MAX_CONTENT_BYTES)


def _archived_name(archive: Path, sha256: str) -> str:
    # With the archive's own name, as the archive itself may be a link.
    return archived_path(archive, sha256).relative_to(archive.parent).as_posix()


def place_content(folder: Path, name: str, source: BufferedReader) -> tuple[os.stat_result, str]:
    """Write the content of an opened file as `name`, a relative path, below `folder`, and return status and hash of
    what was written; folders are created where they are missing, and a file or link of the name gives way. Raises
    OSError, above all UnsafeFileError for a path that leads out of the folder."""
    *folders, last = split_name(name)
    with enter_folder(folder, tuple(folders), make=True) as cursor:
        remove_entry(cursor, last)
        remove_tree(folder / name)  # a folder became a file
        with os.fdopen(create_entry(cursor.fd, last), "wb") as target:
            sha256 = _copy(source, target)
            target.flush()
            return os.fstat(target.fileno()), sha256


def remove_entry(cursor: FolderCursor, name: str) -> None:
    """Remove what stands at a name, unless it is a folder."""
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=cursor.fd, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=cursor.fd)


def _copy(source: BinaryIO, target: BinaryIO) -> str:
    sha256 = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        sha256.update(chunk)
        target.write(chunk)
    return sha256.hexdigest()
