"""Writes and reads a policy's folder in a checkpoint, on all ranks; `engine.checkpoint` defines its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mappa_core import RunError
from mappa_engine.checkpoint import (
    OPTIMISER_FILE,
    REFERENCE_FOLDER,
    WEIGHTS_FILE,
    SavedCounts,
    StoredTensors,
    check_moments,
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


def save_policy(
    learner: Checkpointable, folder: Path, *, version: int, rank: int, ranks: int, dtype: torch.dtype
) -> None:
    """Write one policy, its weights in `dtype`. All ranks take part in the gathers, and each writes its shards."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = ((name, tensor.to(dtype)) for name, tensor in learner.masters())
    write_tensors(weights, folder / WEIGHTS_FILE, rank=rank, ranks=ranks)
    write_tensors(learner.moments(), folder / OPTIMISER_FILE, rank=rank, ranks=ranks)
    if rank == 0:
        SavedCounts(version=version, steps=learner.steps).write(folder)


def save_reference(weights: Mapping[str, Tensor], folder: Path, *, rank: int, ranks: int) -> None:
    """Write the weights of a policy's own reference into the policy's `folder`, as they are. Each rank has all of them,
    and writes its shards."""
    own = folder / REFERENCE_FOLDER
    own.mkdir(parents=True, exist_ok=True)
    write_tensors(weights.items(), own / WEIGHTS_FILE, rank=rank, ranks=ranks)


def load_policy(
    learner: Checkpointable, folder: Path, shapes: Mapping[str, Any], *, policy: str, model_name: str
) -> SavedCounts:
    """Load what any engine saved. Every rank reads the files. Raises RunError where they are of another policy."""
    counts = SavedCounts.read(folder, policy)
    if not has_tensors(folder / OPTIMISER_FILE):
        raise RunError(f"{folder}: the checkpoint was written without a learner, so training cannot go on")
    with StoredTensors(folder / WEIGHTS_FILE) as weights, StoredTensors(folder / OPTIMISER_FILE) as moments:
        check_shapes(weights.shapes, shapes, folder, model_name=model_name)
        check_moments(moments, weights.shapes, steps=counts.steps)
        learner.restore(weights, moments)
    learner.steps = counts.steps
    return counts
