"""Models as their folders have them: what policies start from, what adapters are put on, and the reference of both."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from mappa_core.engine.adapters import Adapters
from mappa_core.engine.learning.checks import check_model
from mappa_core.engine.learning.forward import Predictions, Scorer
from mappa_core.engine.learning.layout import Batch, Layout
from mappa_core.engine.models import from_place
from mappa_core.engine.places import locate


class Base:
    """One frozen model on one rank, held once for all policies that are made of it.

    It is on the host until `resident`, or inside `lent`.
    """

    def __init__(self, where: str, *, dtype: torch.dtype, device: torch.device, layout: Layout) -> None:
        """Load it. Raises ModelError where it cannot be used."""
        place = locate(where)
        model = from_place(
            AutoModelForCausalLM, place, where, "weights", dtype=dtype, use_safetensors=True, attn_implementation="sdpa"
        )
        # Dropout would make the learner's log-probabilities differ from the sampler's.
        self.model: Any = model.eval().requires_grad_(False)
        check_model(model, layout, where=where)
        self.where = where
        self.device = device
        self.adapters = Adapters(model, where=place)
        self._resident = False

    def copied(self) -> Any:
        """A model of its own for a policy, on the host, to be trained."""
        return copy.deepcopy(self.model).requires_grad_(True)

    def reside(self) -> None:
        """Stay on the device."""
        self._resident = True
        self.model.to(self.device)

    def leave(self) -> None:
        """Go back to the host."""
        self._resident = False
        self.model.to("cpu")

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Be on the device for a while."""
        self.model.to(self.device)
        try:
            yield
        finally:
            if not self._resident:
                self.model.to("cpu")

    def reference(self, batch: Batch) -> Predictions:
        """What the model says of a micro-batch without any adapter; inside `lent`."""
        with self.adapters.active(None):
            found: Predictions = Scorer(self.model)(batch)
        return found


def new_value_head(model: Any) -> torch.nn.Linear:
    """Linear on the last hidden state, zero to begin with: no value is better than a random one."""
    head = torch.nn.Linear(model.get_output_embeddings().weight.shape[1], 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def checkpoint_activations(model: Any) -> None:
    """Have activations computed again in the backward pass."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in model.modules():
        # transformers does it in training only, and training would turn dropout on.
        if isinstance(layer, GradientCheckpointingLayer):
            layer.training = True
