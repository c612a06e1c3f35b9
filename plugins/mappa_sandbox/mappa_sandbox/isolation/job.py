"""Messages of the driver: the configuration of the fork server, and one job, a program with its limits; and how a
supervisor hands the job on to the process that becomes the program."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


def _load_fields(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; its lists become tuples."""
    fields = json.loads(text)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


@dataclass(frozen=True)
class SandboxConfig:
    """How a fork server runs all of its programs. Paths are absolute and resolved.

    `backend` is bubblewrap, landlock or none. Programs may read the paths in `readable`, except those in
    `hidden`. `scratch` is the fork server's own folder, removed when it ends.
    """

    backend: str
    scratch: str
    workers: int = 1
    """Programs that run at once; no more are prepared."""
    preload: tuple[str, ...] = ()
    warm_up: str = ""
    """Source of a program that is run once, before all others."""
    readable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    bubblewrap: str | None = None
    """Path of the program `bwrap`."""
    held: tuple[str, ...] = ()
    """Limits that control groups hold (`control_groups`): none where there are none."""
    launcher: tuple[str, ...] = ()
    """Command that starts the fork server in a control group of its own."""
    may_mount: bool = False
    """Whether supervisors may mount, where the backend can do without; the fork server finds it."""
    control_base: str = ""
    """Folder of the control groups of programs; the fork server finds it."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SandboxConfig:
        return cls(**_load_fields(text))


@dataclass(frozen=True)
class SandboxJob:
    """One program: its code and arguments, its working folder, the files outside it that it may read, and its limits.

    Limits on memory, processes (threads included), CPU time and the files left in the folder count for the program and
    all that it starts; `file_bytes` limits each file; `head_bytes` and `tail_bytes` of each output stream are kept.
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
    def from_json(cls, text: str | bytes) -> SandboxJob:
        return cls(**_load_fields(text))


@dataclass(frozen=True)
class Assignment:
    """A job, and the user that its program runs as; None: the user that the fork server runs as."""

    job: SandboxJob
    uid: int | None

    def to_json(self) -> str:
        return f"{json.dumps(self.uid)}\n{self.job.to_json()}"

    @classmethod
    def from_json(cls, text: bytes) -> Assignment:
        uid, _, job = text.partition(b"\n")
        return cls(SandboxJob.from_json(job), json.loads(uid))
