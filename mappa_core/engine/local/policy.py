"""A policy: weights, and what is needed to train them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mappa_core.config.schema import TrainSection
from mappa_core.engine.local.models import Source
from mappa_core.engine.local.optimiser import Optimiser
from mappa_core.errors import RunError
from mappa_core.experience import Receipt
from mappa_core.protocols import PolicySpec

_WEIGHTS, _MOMENTS, _STATE = "weights.safetensors", "optimiser.safetensors", "state.json"


class Policy:
    """One policy. `model` is its own where it is `full`; the module of its source is then its reference."""

    def __init__(self, spec: PolicySpec, source: Source, model: Any, train: TrainSection | None) -> None:
        self.name = spec.name
        self.source = source
        self.trained = spec.kind == "full"
        self.version = 0
        self.steps = 0
        self.model = model
        self.value_head = self._value_head() if self.trained and spec.value_head else None
        self.optimiser: Optimiser | None = None
        if self.trained and train is not None:
            self.model.requires_grad_(True)
            self.optimiser = Optimiser(self._parameters().items(), train)

    def _value_head(self) -> torch.nn.Linear:
        """Linear on the last hidden state, zero to begin with: no value is better than a random one."""
        head = torch.nn.Linear(self.model.get_output_embeddings().weight.shape[1], 1, device=self.model.device)
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
        return head

    def _parameters(self) -> dict[str, Tensor]:
        """All weights by name, tied ones once."""
        named = dict(self.model.named_parameters())
        if self.value_head is not None:
            named |= {f"value_head.{name}": one for name, one in self.value_head.named_parameters()}
        return named

    def publish(self) -> Receipt:
        """The weights as they are now become a version. Sampler and learner are one module, so there is no probe."""
        if self.trained:
            self.version += 1
        digest = hashlib.sha256()
        for name, parameter in self._parameters().items():
            digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
            digest.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return Receipt(version=self.version, checksum=digest.hexdigest())

    def save(self, folder: Path) -> None:
        """Write what `load` needs to go on training to the bit."""
        if not self.trained:
            return
        folder.mkdir(parents=True)
        optimiser = self.optimiser
        weights = self._parameters() if optimiser is None else optimiser.weights()
        save_file({name: one.detach().contiguous() for name, one in weights.items()}, folder / _WEIGHTS)
        if optimiser is not None:
            save_file(optimiser.moments(), folder / _MOMENTS)
        (folder / _STATE).write_text(json.dumps({"version": self.version, "steps": self.steps}))

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote. A policy that is only sampled takes the weights alone."""
        if not self.trained:
            return
        if not (folder / _STATE).is_file():
            raise RunError(f"{folder}: the checkpoint has no policy {self.name!r}; were its policies others?")
        weights = load_file(folder / _WEIGHTS)
        self._check(weights, folder)
        if self.optimiser is not None:
            if not (folder / _MOMENTS).is_file():
                raise RunError(f"{folder}: the checkpoint was written without a learner, so training cannot go on")
            self.optimiser.restore(weights, load_file(folder / _MOMENTS))
        else:
            with torch.no_grad():
                for name, parameter in self._parameters().items():
                    parameter.copy_(weights[name])
        state = json.loads((folder / _STATE).read_text())
        self.version, self.steps = state["version"], state["steps"]

    def _check(self, weights: dict[str, Tensor], folder: Path) -> None:
        own = self._parameters()
        differing = sorted(own.keys() ^ weights.keys()) or [
            name for name, one in own.items() if one.shape != weights[name].shape
        ]
        if differing:
            raise RunError(
                f"{folder}: the weights are not those of {self.source.where}: {differing[0]} differs "
                f"({len(differing)} tensors in all). Use the model that the checkpoint was made from."
            )

    def export(self, folder: Path) -> None:
        """Write an ordinary Hugging Face folder. A value head is no part of it."""
        self.model.save_pretrained(folder)
        self.source.chat.tokenizer.save_pretrained(folder)
