"""Writes and reads a policy's folder in a checkpoint, on all ranks; `engine.checkpoint` defines its files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mappa_core import RunError
from mappa_engine.checkpoint import (
    OPTIMISER_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    StoredTensors,
    check_shapes,
    has_tensors,
    write_tensors,
)


class Checkpointable(Protocol):
    """A learner whose weights and optimiser state can be saved and loaded."""

    steps: int

    def masters(self) -> Iterator[tuple[str, Tensor]]: ...

    def moments(self) -> Iterator[tuple[str, Tensor]]: ...

    def restore(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCounts:
    """`version` counts publishes, `steps` optimiser steps."""

    version: int
    steps: int


def save_policy(
    learner: Checkpointable, folder: Path, *, version: int, rank: int, ranks: int, dtype: torch.dtype
) -> None:
    """Write one policy, its weights in `dtype`. All ranks take part in the gathers, and each writes its shards."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = ((name, tensor.to(dtype)) for name, tensor in learner.masters())
    write_tensors(weights, folder / WEIGHTS_FILE, rank=rank, ranks=ranks)
    write_tensors(learner.moments(), folder / OPTIMISER_FILE, rank=rank, ranks=ranks)
    if rank == 0:
        (folder / STATE_FILE).write_text(json.dumps({"version": version, "steps": learner.steps}))


def load_policy(
    learner: Checkpointable, folder: Path, shapes: Mapping[str, Any], *, policy: str, model_name: str
) -> SavedCounts:
    """Load what any engine saved. Every rank reads the files. Raises RunError where they are of another policy."""
    if not (folder / STATE_FILE).is_file():
        raise RunError(f"{folder}: the checkpoint has no policy {policy!r}; were its policies others?")
    if not has_tensors(folder / OPTIMISER_FILE):
        raise RunError(f"{folder}: the checkpoint was written without a learner, so training cannot go on")
    with StoredTensors(folder / WEIGHTS_FILE) as weights, StoredTensors(folder / OPTIMISER_FILE) as moments:
        check_shapes(weights.shapes, shapes, folder, model_name=model_name)
        learner.restore(weights, moments)
    state = json.loads((folder / STATE_FILE).read_text())
    learner.steps = state["steps"]
    return SavedCounts(version=state["version"], steps=state["steps"])
