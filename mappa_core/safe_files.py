"""Files below a folder that a stranger may have made, with the standard library alone: every folder on the way is
entered by a descriptor of its parent, no link is followed, and what is opened is a regular file, at which nothing
waits."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from secrets import token_hex

from mappa_core.safe_walk import FolderCursor

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
    stat.S_IFDIR: "a folder",
}
_CHUNK_BYTES = 1 << 20
# Without waiting: to open a FIFO would otherwise last until somebody opens its other end.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class UnsafeFileError(OSError):
    """What stands at a name is not what may be opened there; the text completes the sentence `FILE …`."""


def split_name(name: str) -> tuple[str, ...]:
    """The parts of a relative path with slashes. Raises UnsafeFileError unless it is plain: it does not begin or end
    with a slash, and has no `.`, no `..` and no empty part."""
    parts = tuple(name.split("/"))
    if "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
        raise UnsafeFileError(errno.EINVAL, "leads out of its folder: its path has to be relative and plain")
    return parts


@contextmanager
def enter_folder(root: Path, folders: tuple[str, ...], *, make: bool = False) -> Iterator[FolderCursor]:
    """A cursor in a folder below `root`, which is opened as it is named, as the user named it; folders that are missing
    are created with `make`. Raises UnsafeFileError for a link (ELOOP) or a file (ENOTDIR) on the way, OSError for other
    faults."""
    # `Path.resolve` would raise RuntimeError for a circle of links.
    with FolderCursor(Path(os.path.realpath(root))) as cursor:
        for number, name in enumerate(folders, start=1):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=cursor.fd)
            try:
                cursor.enter(name)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                status = os.stat(name, dir_fd=cursor.fd, follow_symlinks=False)
                why = f"does not lie in a folder: {'/'.join(folders[:number])!r} is {_name_kind(status)}"
                code = errno.ELOOP if stat.S_ISLNK(status.st_mode) else errno.ENOTDIR
                raise UnsafeFileError(code, why) from error
        yield cursor


def find_regular(root: Path, name: str) -> os.stat_result | None:
    """Status of a regular file; None if there is nothing of the name. Raises UnsafeFileError for anything else."""
    *folders, last = split_name(name)
    try:
        with enter_folder(root, tuple(folders)) as cursor:
            status = os.stat(last, dir_fd=cursor.fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _require_regular(status)
    return status


def open_regular(root: Path, name: str, *, max_bytes: int | None = None) -> BufferedReader:
    """Open a regular file for reading. Raises UnsafeFileError for anything else, or one of more than `max_bytes`;
    FileNotFoundError where there is nothing."""
    *folders, last = split_name(name)
    with enter_folder(root, tuple(folders)) as cursor:
        return open_entry(cursor.fd, last, max_bytes=max_bytes)


def open_entry(folder: int, name: str, *, max_bytes: int | None = None) -> BufferedReader:
    """As `open_regular`, for an entry of the folder of a descriptor."""
    try:
        handle = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        # A link gives ELOOP, a socket ENXIO.
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        _require_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
        raise
    try:
        # Of what was opened, which may be another file than one that was looked at before.
        status = os.fstat(handle)
        _require_regular(status)
        if max_bytes is not None and status.st_size > max_bytes:
            raise UnsafeFileError(errno.EFBIG, f"has {status.st_size:,} bytes, and may have {max_bytes:,}")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bounded(source: BufferedReader, max_bytes: int) -> bytes:
    """The content of an opened file. Raises UnsafeFileError if it has grown beyond `max_bytes` since it was opened."""
    data = source.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UnsafeFileError(errno.EFBIG, f"has more than {max_bytes:,} bytes")
    return data


def create_entry(folder: int, name: str, mode: int = 0o666) -> int:
    """Create a file in the folder of a descriptor; returns a descriptor for writing. Raises FileExistsError if there is
    anything of the name, also a link."""
    return os.open(name, _CREATE, mode, dir_fd=folder)


def replace_file(root: Path, name: str, data: bytes, *, make: bool = False) -> None:
    """Write a whole file atomically and synced: readers see the old content or the new, also after a power cut. A link
    of the name is replaced, not written through. `make` creates missing folders. Raises OSError."""
    *folders, last = split_name(name)
    with enter_folder(root, tuple(folders), make=make) as cursor:
        aside = f".{last}.{token_hex(4)}"
        try:
            with os.fdopen(create_entry(cursor.fd, aside), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, last, src_dir_fd=cursor.fd, dst_dir_fd=cursor.fd)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(aside, dir_fd=cursor.fd)
        # The new name is on the disk only when its folder is synced.
        os.fsync(cursor.fd)


def open_own(root: Path, name: str, *, append: bool = False) -> int:
    """Open a file of one's own for reading and writing in place, and create it if it is missing; its content stays.
    `append` writes at its end. Raises UnsafeFileError for anything but a regular file of one name."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_APPEND if append else 0)
    *folders, last = split_name(name)
    with enter_folder(root, tuple(folders), make=True) as cursor:
        try:
            handle = os.open(last, flags, 0o644, dir_fd=cursor.fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                _require_regular(os.stat(last, dir_fd=cursor.fd, follow_symlinks=False))
            raise
    try:
        status = os.fstat(handle)
        _require_regular(status)
        if status.st_nlink > 1:
            raise UnsafeFileError(errno.EMLINK, "is another file, too: it has several names (hard links)")
    except BaseException:
        os.close(handle)
        raise
    return handle


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeFileError(errno.EINVAL, f"is {_name_kind(status)}, and has to be a regular file")


def _name_kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
