"""What a policy's folder in a checkpoint holds: the same files for every engine, so that either goes on from the other.

    weights.safetensors     float32, by the model's own names; of a `lora` policy the adapter alone, by peft's names
    optimiser.safetensors   AdamW's exp_avg.NAME, exp_avg_sq.NAME and step.NAME; none where nothing was learned
    state.json              {"version": …, "steps": …}

A value head is `value_head.weight` and `value_head.bias` among the weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mappa_core.errors import RunError

WEIGHTS, MOMENTS, STATE = "weights.safetensors", "optimiser.safetensors", "state.json"
VALUE_HEAD = "value_head."


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a file of tensors. Raises OSError where the storage fails: safetensors has errors of its own, and whoever
    keeps checkpoints tells a full disk by the system's."""
    try:
        save_file(dict(tensors), file)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error


def check_weights(weights: Mapping[str, Tensor], shapes: Mapping[str, Any], folder: Path, *, where: str) -> None:
    """Raise RunError unless `weights`, read from `folder`, have the names and `shapes` of a policy on model `where`."""
    differing = sorted(shapes.keys() ^ weights.keys()) or [
        name for name, shape in shapes.items() if tuple(shape) != tuple(weights[name].shape)
    ]
    if differing:
        raise RunError(
            f"{folder}: the weights are not those of {where}: {differing[0]} differs "
            f"({len(differing)} tensors in all). Use the model that the checkpoint was made from."
        )


def start_weights(folder: Path, shapes: Mapping[str, Any], *, where: str) -> dict[str, Tensor]:
    """The weights of another run's policy for one of these `shapes` to start with, float32, on the CPU.

    A value head starts with them where both have one. Raises RunError where any other weight is not that of `where`.
    """
    if not (folder / WEIGHTS).is_file():
        raise RunError(f"{folder}: there are no weights ({WEIGHTS}) of a policy to start with")
    weights = load_file(folder / WEIGHTS)
    heads = {name for name in (*shapes, *weights) if name.startswith(VALUE_HEAD)}
    common = {name for name in heads if name in shapes and name in weights}
    weights = {name: one for name, one in weights.items() if name not in heads or name in common}
    wanted = {name: shape for name, shape in shapes.items() if name not in heads or name in common}
    check_weights(weights, wanted, folder, where=where)
    return weights
