"""A policy's folder in a checkpoint, as ranks write and read it; what it holds is told in `engine.checkpoint`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open
from torch import Tensor

from mappa_core.engine.checkpoint import MOMENTS, STATE, WEIGHTS, check_weights, write_tensors
from mappa_core.errors import RunError


class Kept(Protocol):
    """What has weights and an optimiser to be kept."""

    steps: int

    def masters(self) -> Iterator[tuple[str, Tensor]]: ...

    def moments(self) -> Iterator[tuple[str, Tensor]]: ...

    def restore(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Versions count publishes, steps those of the optimiser."""

    version: int
    steps: int


def save(learner: Kept, folder: Path, *, version: int, writes: bool) -> None:
    """Write one policy. All ranks take part in gathering; the one that `writes` holds a whole copy on its host."""
    if writes:
        folder.mkdir(parents=True)
    for file, tensors in ((WEIGHTS, learner.masters()), (MOMENTS, learner.moments())):
        held: dict[str, Tensor] = {}
        for name, tensor in tensors:
            if writes:
                held[name] = tensor.detach().cpu().clone()
        if writes:
            write_tensors(held, folder / file)
    if writes:
        (folder / STATE).write_text(json.dumps({"version": version, "steps": learner.steps}))


def load(learner: Kept, folder: Path, shapes: Mapping[str, Any], *, policy: str, where: str) -> State:
    """Take over what any engine saved. Every rank reads the files. Raises RunError where they are of another policy."""
    if not (folder / STATE).is_file():
        raise RunError(f"{folder}: the checkpoint has no policy {policy!r}; were its policies others?")
    if not (folder / MOMENTS).is_file():
        raise RunError(f"{folder}: the checkpoint was written without a learner, so training cannot go on")
    with ExitStack() as files:
        weights, moments = _File(folder / WEIGHTS, files), _File(folder / MOMENTS, files)
        check_weights(weights, shapes, folder, where=where)
        learner.restore(weights, moments)
    found = json.loads((folder / STATE).read_text())
    learner.steps = found["steps"]
    return State(version=found["version"], steps=found["steps"])


class _File(Mapping[str, Tensor]):
    """The tensors of a file, each read when it is asked for."""

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
