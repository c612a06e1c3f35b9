"""Frozen base models: start weights of policies, bases of adapters, and reference models."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from mappa_engine.adapters import Adapters
from mappa_engine.learning.batching import BatchLayout, MicroBatch
from mappa_engine.learning.logprob_model import LogprobModel, Predictions
from mappa_engine.learning.model_checks import check_model
from mappa_engine.model_info import load_pretrained
from mappa_engine.model_path import resolve_model_path


class FrozenModel:
    """One frozen model on one rank, shared by all policies that are based on it.

    It stays on the host except after `keep_on_device` and inside `on_device`.
    """

    def __init__(self, model_name: str, *, dtype: torch.dtype, device: torch.device, layout: BatchLayout) -> None:
        """Load the model. Raises ModelError where it cannot be used."""
        place = resolve_model_path(model_name)
        model = load_pretrained(
            AutoModelForCausalLM,
            place,
            model_name,
            "weights",
            dtype=dtype,
            use_safetensors=True,
            attn_implementation="sdpa",
        )
        # Dropout would make the learner's log-probabilities differ from the sampler's.
        self.model: Any = model.eval().requires_grad_(False)
        self.model_name = model_name
        self.weights = sum(weight.numel() for weight in model.parameters())
        self.device = device
        self._stays_on_device = False
        self._uses = 0
        with self.on_device():  # where it is going to compute: on the host it would take minutes
            check_model(model, layout, model_name=model_name)
        self.adapters = Adapters(model, model_name=place)

    def copy(self) -> FrozenModel:
        """Return a copy that shares nothing, on the host; before adapters are added."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        other.adapters = Adapters(other.model, model_name=self.model_name)
        return other

    def trainable_copy(self) -> Any:
        """Return a trainable copy for a policy, on the host."""
        return copy.deepcopy(self.model).requires_grad_(True)

    def keep_on_device(self) -> None:
        """Move the model to the device and keep it there."""
        self._stays_on_device = True
        self.model.to(self.device)

    def move_to_host(self) -> None:
        """Move the model back to the host."""
        self._stays_on_device = False
        self.model.to("cpu")

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Keep the model on the device inside the context, and inside those around it."""
        self.model.to(self.device)
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            if not self._stays_on_device and not self._uses:
                self.model.to("cpu")

    def predict_reference(self, batch: MicroBatch, *, adapter: str | None = None) -> Predictions:
        """Run the model on a micro-batch, without an adapter or with that of a reference; inside `on_device`."""
        with self.adapters.active(adapter):
            predictions: Predictions = LogprobModel(self.model)(batch)
        return predictions


def new_value_head(model: Any) -> torch.nn.Linear:
    """Create a linear value head on the last hidden state, initialised to zero: better than random values."""
    head = torch.nn.Linear(model.get_output_embeddings().weight.shape[1], 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head
