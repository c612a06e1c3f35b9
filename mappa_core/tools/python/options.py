"""Options of the tool `python`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PythonOptions:
    workers: int | None = None
    """Programs that run at once; None: as many as there are CPUs, at least 2. Further ones wait in order."""
