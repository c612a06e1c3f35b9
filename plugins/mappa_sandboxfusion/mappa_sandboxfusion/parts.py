"""Files on their way to a server: cut into parts, packed into calls of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from mappa_core import ToolError
from mappa_sandboxfusion.local import LocalFile

T = TypeVar("T")
Row = tuple[str, str, str, int, int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """`size` bytes from `offset` on of the file `source`, which is `name` of a trajectory, or an input of that hash."""

    kind: Literal["file", "input"]
    name: str
    source: Path
    sha256: str
    total: int
    offset: int
    size: int

    @property
    def row(self) -> Row:
        """The part as remote/run.py reads it."""
        return self.kind, self.name, self.sha256, self.total, self.offset, self.size


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What remote/run.py writes. `files`: name, size, sha256, and where the bytes begin in changed.bin, if there."""

    lost: str | None = None
    gone: list[str] = []
    stamps: dict[str, list[int]] = {}
    reply: Mapping[str, Any] | None = None
    files: list[tuple[str, int, str, int | None]] = []
    linked: list[str] = []
    left: list[str] = []


def parts_of(kind: Literal["file", "input"], name: str, source: Path, file: LocalFile, chunk: int) -> Iterator[Part]:
    """The file in parts of at most `chunk` bytes; an empty one is one part."""
    for offset in range(0, max(1, file.size), chunk):
        yield Part(kind, name, source, file.sha256, file.size, offset, min(chunk, file.size - offset))


def packed(things: Iterable[T], size: Callable[[T], int], chunk: int) -> list[list[T]]:
    """`things` in order, in groups of at most `chunk` bytes, or of one; at least one group, which may be empty."""
    groups: list[list[T]] = [[]]
    room = chunk
    for thing in things:
        if size(thing) > room and groups[-1]:
            groups.append([])
            room = chunk
        groups[-1].append(thing)
        room -= size(thing)
    return groups


def batches(parts: Iterable[Part], chunk: int) -> list[list[Part]]:
    """`parts` in order, in groups of at most `chunk` bytes; at least one group, which may be empty."""
    return packed(parts, lambda part: part.size, chunk)


def load(parts: Sequence[Part]) -> bytes:
    """The bytes of all `parts` in a row.

    Raises:
        ToolError: a file is not as it was when it was looked at.
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
