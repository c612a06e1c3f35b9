"""Reads what is new in files of logs since they were last read. A file may grow, be written anew, renamed (as when logs
are rotated) or removed; lines that were read once are not read again where others were only added."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BufferedReader, BytesIO
from itertools import pairwise
from pathlib import Path

from mappa.look.importing.documents import (
    MAX_BYTES,
    Document,
    decode,
    decompress,
    find_files,
    has_lines,
    is_compressed,
    is_cut_off,
    is_text,
    join_messages,
    parse_line,
    read_file_documents,
    read_whole,
)
from mappa_core import InputError
from mappa_core.files import open_file

_PROBE_BYTES = 4096
"""Bytes at the begin of a file, and before the place it was read to, by which its content is known again."""
_UNFINISHED = "it is still being written, it seems, and is read when it is whole"
Content = BufferedReader | BytesIO


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """How far a file was read: `offset` bytes (unpacked) in `lines` lines. `number` is its own in the run, also after
    it was renamed. By `size`, `mtime_ns` and `inode` it is as it was; by `probe` it begins with what was read.
    `by_lines`: each line is an object, so that others may follow."""

    number: int
    size: int
    mtime_ns: int
    inode: int
    offset: int
    lines: int
    probe: str
    by_lines: bool
    plays: int = 0
    """Plays that were read from it, for the name of the next one."""

    def is_unchanged(self, status: os.stat_result) -> bool:
        return (self.size, self.mtime_ns, self.inode) == (status.st_size, status.st_mtime_ns, status.st_ino)

    def begins(self, content: Content) -> bool:
        """Whether a content begins with what was read. Two places of it say so: a file that grows may be large."""
        return content.seek(0, os.SEEK_END) >= self.offset > 0 and _probe(content, self.offset) == self.probe


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReading:
    """What is new in a file: its objects, with the place of each in bytes (none where they are no lines). `is_whole`:
    it was read from its begin, and may hold what is known. `unfinished` says that its end is still being written, and
    with `state` None the whole file is. `former_name` is the path under which it was known, where it has another one
    now."""

    path: Path
    documents: tuple[Document, ...]
    ranges: tuple[tuple[int, int], ...]
    state: FileState | None
    is_whole: bool
    unfinished: str | None = None
    former_name: str | None = None

    @property
    def name(self) -> str:
        """By which its state is known."""
        return _name(self.path)


def read_new_parts(
    paths: Sequence[Path], states: Mapping[str, FileState], *, may_lack: bool = False
) -> list[FileReading]:
    """Read what is new in the files at `paths` (files, folders and patterns of names), in natural order of their names.
    `states` has how far each was read, by its absolute path. With `may_lack` there may be no file yet.

    Raises:
        InputError: a file cannot be read, or an object in it is invalid; the message names file and line.
    """
    found = find_files(paths, may_lack=may_lack)
    known = dict(states)
    changed = [path for path in found if not _is_unchanged(path, known.get(_name(path)))]
    # Of files that are gone, or hold something else: their content may have another name now.
    missed = {name for name, state in known.items() if not _is_there(Path(name), state)} if changed else set()
    last = max((state.number for state in states.values()), default=-1)
    readings: dict[Path, FileReading] = {}
    # New names first, so that a file under its old name is new if its content was moved away from there.
    for path in sorted(changed, key=lambda one: _name(one) in states):
        name, former = _name(path), None
        with _open(path) as file:
            content = _unpack(path, file)
            if name not in known and content is not None:
                former = next((one for one in missed & known.keys() if known[one].begins(content)), None)
            before = known.pop(former or name, None)
            if before is None:
                last += 1
            reading = _read_part(path, file, content, before, number=last if before is None else before.number)
        readings[path] = replace(reading, former_name=former)
    return [readings[path] for path in changed]


def read_ranges(path: Path, ranges: Sequence[tuple[int, int]]) -> Iterator[Document]:
    """Read lines of a file again, by their places in bytes. Raises InputError."""
    with _open(path) as content:
        for start, length in ranges:
            content.seek(start)
            yield parse_line(decode(path, content.read(length)), f"{path}, byte {start:,}", path)


def _name(path: Path) -> str:
    # A name that is no UTF-8 is kept in a form that is: the database holds no other.
    return os.fsencode(path.absolute()).decode(errors="backslashreplace")


def _is_unchanged(path: Path, state: FileState | None) -> bool:
    return state is not None and path.exists() and state.is_unchanged(path.stat())


def _is_there(path: Path, state: FileState) -> bool:
    """Whether a file still begins with what was read of it."""
    try:
        if state.is_unchanged(path.stat()):
            return True
        with _open(path) as file:
            content = _unpack(path, file)
            return content is not None and state.begins(content)
    except (OSError, InputError):
        return False


def _open(path: Path) -> BufferedReader:
    """Open a file that the user named, whose own name may be a link."""
    target = Path(os.path.realpath(path))
    return open_file(target.parent, target.name)


def _unpack(path: Path, file: BufferedReader) -> Content | None:
    """The content of a file; None where it is compressed and its end is not there."""
    if not is_compressed(path):
        return file
    file.seek(0)
    try:
        return BytesIO(decompress(file.read(MAX_BYTES)))
    except EOFError:
        return None
    except (OSError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _probe(content: Content, offset: int) -> str:
    """A digest of the first bytes of a content and of the last ones before `offset`."""
    digest = sha256()
    for start, end in ((0, min(offset, _PROBE_BYTES)), (max(0, offset - _PROBE_BYTES), offset)):
        content.seek(start)
        digest.update(content.read(end - start))
    return digest.hexdigest()[:32]


def _read_part(
    path: Path, file: BufferedReader, content: Content | None, before: FileState | None, *, number: int
) -> FileReading:
    status = os.fstat(file.fileno())
    ranges: list[tuple[int, int]]
    if content is None:
        return _unfinished_file(path, f"{path} cannot be read: its end is missing")
    if not is_text(path):
        documents, ranges, end, lines, unfinished = list(read_file_documents(path)), [], status.st_size, 0, None
        is_whole, by_lines = True, False
    elif before is not None and before.by_lines and before.begins(content):
        documents, ranges, end, lines, unfinished = _read_lines(path, content, before.offset, before.lines)
        is_whole, by_lines = False, True
    else:
        content.seek(0)
        data = content.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InputError(f"{path} cannot be read: it is larger than {MAX_BYTES:,} bytes")
        # The last line may end within a character, as long as it is being written.
        if has_lines(path, data.decode("utf-8-sig", errors="replace")):
            documents, ranges, end, lines, unfinished = _read_lines(path, content, 0, 0)
        else:
            text = decode(path, data)
            try:
                documents, ranges, end, lines, unfinished = list(read_whole(path, text)), [], len(data), 0, None
            except InputError as error:
                if text.strip() and not is_cut_off(text):
                    raise
                return _unfinished_file(path, str(error))
        joined = join_messages(documents)
        is_whole, by_lines = True, bool(ranges) and joined is documents and not is_compressed(path)
        documents, ranges = joined, ranges if by_lines else []
    return FileReading(
        path=path,
        documents=tuple(documents),
        ranges=tuple(ranges),
        state=FileState(
            number=number,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            inode=status.st_ino,
            offset=end,
            lines=lines,
            probe=_probe(content, end),
            by_lines=by_lines,
        ),
        is_whole=is_whole,
        unfinished=unfinished,
    )


def _unfinished_file(path: Path, problem: str) -> FileReading:
    return FileReading(
        path=path, documents=(), ranges=(), state=None, is_whole=True, unfinished=f"{problem}: {_UNFINISHED}"
    )


def _read_lines(
    path: Path, content: Content, offset: int, lines: int
) -> tuple[list[Document], list[tuple[int, int]], int, int, str | None]:
    """The objects of the lines from `offset` on, before which there are `lines`; their places; where the lines end and
    how many they are then; and what is said of a last one that is not whole."""
    content.seek(offset)
    data = content.read(MAX_BYTES)
    ends = [found.end() for found in re.finditer(b"\n", data)]
    if len(data) > (ends[-1] if ends else 0):
        ends.append(len(data))
    documents, ranges, unfinished, read = [], [], None, 0
    for start, end in pairwise((0, *ends)):
        line, lines = data[start:end], lines + 1
        if not line.endswith(b"\n") and is_cut_off(line.decode("utf-8-sig", errors="replace")):
            unfinished, lines = f"{path}, line {lines}: {_UNFINISHED}", lines - 1
            break
        if line.strip():
            documents.append(parse_line(decode(path, line), f"{path}, line {lines}", path))
            ranges.append((offset + start, end - start))
        read = end
    return documents, ranges, offset + read, lines, unfinished
