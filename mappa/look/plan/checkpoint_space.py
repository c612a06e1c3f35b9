"""Disk space that the checkpoints of a run take, against what is free."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from mappa_core.config.schema import RunConfig
from mappa_core.engine import EnginePlan

GB = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpace:
    """Checkpoints of `size` bytes: `kept` ones, and one more while it is written. `free` is the space in `folder`."""

    size: int
    kept: int
    folder: str
    free: int

    @property
    def needed(self) -> int:
        """Bytes that all take together."""
        return self.size * (self.kept + 1)

    @property
    def text(self) -> str:
        """The arithmetic, in a line."""
        return (
            f"checkpoints: {_format_bytes(self.needed)} = {self.kept + 1} of {_format_bytes(self.size)}, {self.kept} "
            f"kept and one being written; {_format_bytes(self.free)} are free for {self.folder}"
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """Advice where they do not fit the disk."""
        if self.needed <= self.free:
            return ()
        return (
            f"checkpoints do not fit the disk of {self.folder}: set run.root to a larger one, a smaller "
            "checkpoint.keep, or checkpoint.dtype=bfloat16",
        )


def plan_checkpoints(config: RunConfig, memory: EnginePlan) -> CheckpointSpace | None:
    """Return the space of a run's checkpoints; None where the engine does not tell their size, or learns nothing."""
    sizes = memory.details.get("checkpoint_bytes")
    size = 0 if sizes is None else sizes[config.checkpoint.dtype]
    if not size:
        return None
    root = Path(config.run.root).absolute()
    existing = next(place for place in (root, *root.parents) if place.exists())
    kept = config.checkpoint.keep + config.checkpoint.best
    return CheckpointSpace(size=size, kept=kept, folder=config.run.root, free=shutil.disk_usage(existing).free)


def _format_bytes(size: int) -> str:
    return f"{size / GB:.1f} GB" if size >= GB else f"{1000 * size / GB:.1f} MB"
