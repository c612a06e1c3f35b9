"""Activation checkpointing: activations are computed again in the backward pass, instead of kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer


def enable_activation_checkpointing(model: Any) -> None:
    """Recompute activations in the backward pass from now on. The model then cannot decode with a cache."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    _set_training(model, True)


@contextmanager
def activation_checkpointing(model: Any) -> Iterator[None]:
    """Recompute activations in the backward pass inside the context."""
    enable_activation_checkpointing(model)
    try:
        yield
    finally:
        _set_training(model, False)
        model.gradient_checkpointing_disable()


def _set_training(model: Any, training: bool) -> None:
    for layer in model.modules():
        # transformers looks at the mode of the layer itself; that of the whole model would turn dropout on.
        if isinstance(layer, GradientCheckpointingLayer):
            layer.training = training
