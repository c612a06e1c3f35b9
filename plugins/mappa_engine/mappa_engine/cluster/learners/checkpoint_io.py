"""Writes and reads a policy's folder in a checkpoint, on all ranks; `engine.checkpoint` defines its files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open
from torch import Tensor

from mappa_core import RunError
from mappa_engine.checkpoint import OPTIMISER_FILE, STATE_FILE, WEIGHTS_FILE, check_weights, write_tensors


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


def save_policy(learner: Checkpointable, folder: Path, *, version: int, writes: bool) -> None:
    """Write one policy. All ranks take part in the gathers; the one with `writes` holds a whole copy on its host."""
    if writes:
        folder.mkdir(parents=True)
    for file, tensors in ((WEIGHTS_FILE, learner.masters()), (OPTIMISER_FILE, learner.moments())):
        held: dict[str, Tensor] = {}
        for name, tensor in tensors:
            if writes:
                held[name] = tensor.detach().cpu().clone()
        if writes:
            write_tensors(held, folder / file)
    if writes:
        (folder / STATE_FILE).write_text(json.dumps({"version": version, "steps": learner.steps}))


def load_policy(
    learner: Checkpointable, folder: Path, shapes: Mapping[str, Any], *, policy: str, model_name: str
) -> SavedCounts:
    """Load what any engine saved. Every rank reads the files. Raises RunError where they are of another policy."""
    if not (folder / STATE_FILE).is_file():
        raise RunError(f"{folder}: the checkpoint has no policy {policy!r}; were its policies others?")
    if not (folder / OPTIMISER_FILE).is_file():
        raise RunError(f"{folder}: the checkpoint was written without a learner, so training cannot go on")
    with ExitStack() as files:
        weights, moments = _LazyTensors(folder / WEIGHTS_FILE, files), _LazyTensors(folder / OPTIMISER_FILE, files)
        check_weights(weights, shapes, folder, model_name=model_name)
        learner.restore(weights, moments)
    state = json.loads((folder / STATE_FILE).read_text())
    learner.steps = state["steps"]
    return SavedCounts(version=state["version"], steps=state["steps"])


class _LazyTensors(Mapping[str, Tensor]):
    """Tensors of a safetensors file, each read on access."""

    def __init__(self, path: Path, files: ExitStack) -> None:
        self._file = files.enter_context(safe_open(path, framework="pt"))
        self._names = list(self._file.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
