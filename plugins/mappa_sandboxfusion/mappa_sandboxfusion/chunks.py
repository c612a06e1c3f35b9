"""Splits files into chunks and packs them into calls of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from mappa_core import ToolError
from mappa_sandboxfusion.local import LocalFile

T = TypeVar("T")
ChunkRow = tuple[str, str, str, int, int, int]


@dataclass(frozen=True, slots=True)
class FileChunk:
    """`size` bytes from `offset` of the file `source`: a trajectory's file `name`, or the input with that hash."""

    kind: Literal["file", "input"]
    name: str
    source: Path
    sha256: str
    total: int
    offset: int
    size: int

    @property
    def row(self) -> ChunkRow:
        """The chunk in the form that remote/run.py reads."""
        return self.kind, self.name, self.sha256, self.total, self.offset, self.size


class RemoteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The response of remote/run.py. `files`: name, size, sha256, and the offset in changed.bin (None: not in it)."""

    lost: str | None = None
    gone: list[str] = []
    stamps: dict[str, list[int]] = {}
    reply: Mapping[str, Any] | None = None
    files: list[tuple[str, int, str, int | None]] = []
    linked: list[str] = []
    left: list[str] = []


def split_file(
    kind: Literal["file", "input"], name: str, source: Path, file: LocalFile, chunk: int
) -> Iterator[FileChunk]:
    """Split a file into chunks of at most `chunk` bytes; an empty file is one chunk."""
    for offset in range(0, max(1, file.size), chunk):
        yield FileChunk(kind, name, source, file.sha256, file.size, offset, min(chunk, file.size - offset))


def pack(things: Iterable[T], size: Callable[[T], int], chunk: int) -> list[list[T]]:
    """Group `things` in order, up to `chunk` bytes per group; a larger thing is a group of its own. At least one
    group, which may be empty."""
    groups: list[list[T]] = [[]]
    room = chunk
    for thing in things:
        if size(thing) > room and groups[-1]:
            groups.append([])
            room = chunk
        groups[-1].append(thing)
        room -= size(thing)
    return groups


def pack_chunks(parts: Iterable[FileChunk], chunk: int) -> list[list[FileChunk]]:
    """Group file chunks in order, up to `chunk` bytes per group. At least one group, which may be empty."""
    return pack(parts, lambda part: part.size, chunk)


def read_chunks(parts: Sequence[FileChunk]) -> bytes:
    """Read and concatenate the bytes of all `parts`.

    Raises:
        ToolError: a file cannot be read, or became shorter since it was hashed.
    """
    data = bytearray()
    for part in parts:
        try:
            with part.source.open("rb") as source:
                source.seek(part.offset)
                piece = source.read(part.size)
        except OSError as error:
            raise ToolError(f"{part.source} cannot be read: {error.strerror}") from error
        if len(piece) < part.size:
            raise ToolError(f"{part.source} became shorter while it was sent to a server")
        data += piece
    return bytes(data)
