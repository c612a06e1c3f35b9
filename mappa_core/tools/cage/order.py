"""What the driver asks for: how the warden is set up, and one program with its limits."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


def _fields(text: str | bytes) -> dict[str, Any]:
    """What a JSON object holds, its lists as tuples."""
    fields = json.loads(text)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


@dataclass(frozen=True)
class Setup:
    """How a warden runs programs, the same for all of them. Paths are absolute and resolved.

    `tier` is bubblewrap, landlock, seatbelt or none. `readable` are the places of the interpreter that programs may
    read, less those in `hidden`. `scratch` is a folder of the warden's own, which goes with it.
    """

    tier: str
    scratch: str
    preload: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    bubblewrap: str | None = None
    """The program `bwrap`."""
    sized: bool = False
    """Whether this `bwrap` can limit the size of a file system in memory."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Setup:
        return cls(**_fields(text))


@dataclass(frozen=True)
class Order:
    """One program: its text and arguments, its folder, the files outside it that it may read, and its limits.

    Memory, processes (threads included), CPU time and the files left in the folder count for the program and all that
    it starts; `file_bytes` holds for each file; `head_bytes` and `tail_bytes` are what is kept of each output stream.
    """

    code: str
    folder: str
    wall_s: float
    cpu_s: float
    memory_bytes: int
    file_bytes: int
    processes: int
    workspace_bytes: int
    workspace_files: int
    head_bytes: int
    tail_bytes: int
    arguments: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Order:
        return cls(**_fields(text))
