"""Files of a policy in a checkpoint. Both engines write the same, so that either can resume from the other.

    weights.safetensors     float32, by the model's own names; for a `lora` policy only the adapter, by peft's names
    optimiser.safetensors   AdamW's exp_avg.NAME, exp_avg_sq.NAME and step.NAME; absent if nothing was trained
    state.json              {"version": …, "steps": …}

A value head is stored among the weights as `value_head.weight` and `value_head.bias`.
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

from mappa_core import RunError

WEIGHTS_FILE, OPTIMISER_FILE, STATE_FILE = "weights.safetensors", "optimiser.safetensors", "state.json"
VALUE_HEAD_PREFIX = "value_head."


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a file of tensors. Turns safetensors' own storage errors into OSError, by which callers recognize a full
    disk."""
    try:
        save_file(dict(tensors), file)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error


def check_weights(weights: Mapping[str, Tensor], shapes: Mapping[str, Any], folder: Path, *, model_name: str) -> None:
    """Raise RunError unless `weights`, read from `folder`, match the names and `shapes` of a policy of `model_name`."""
    differing = sorted(shapes.keys() ^ weights.keys()) or [
        name for name, shape in shapes.items() if tuple(shape) != tuple(weights[name].shape)
    ]
    if differing:
        raise RunError(
            f"{folder}: the weights are not those of {model_name}: {differing[0]} differs "
            f"({len(differing)} tensors in all). Use the model that the checkpoint was made from."
        )


def load_start_weights(folder: Path, shapes: Mapping[str, Any], *, model_name: str) -> dict[str, Tensor]:
    """Load the weights of another run's policy as initial weights for one of these `shapes`, float32, on the CPU.

    The value head is loaded only if both have one. Raises RunError if any other weight does not match `model_name`.
    """
    if not (folder / WEIGHTS_FILE).is_file():
        raise RunError(f"{folder}: there are no weights ({WEIGHTS_FILE}) of a policy to start with")
    weights = load_file(folder / WEIGHTS_FILE)
    heads = {name for name in (*shapes, *weights) if name.startswith(VALUE_HEAD_PREFIX)}
    common = {name for name in heads if name in shapes and name in weights}
    weights = {name: one for name, one in weights.items() if name not in heads or name in common}
    wanted = {name: shape for name, shape in shapes.items() if name not in heads or name in common}
    check_weights(weights, wanted, folder, model_name=model_name)
    return weights
