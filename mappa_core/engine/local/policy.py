"""A policy: weights, and what is needed to train them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from mappa_core.config.schema import TrainSection
from mappa_core.engine.adapters import base_weights, write_folder
from mappa_core.engine.checkpoint import (
    MOMENTS,
    STATE,
    VALUE_HEAD,
    WEIGHTS,
    check_weights,
    start_weights,
    write_tensors,
)
from mappa_core.engine.learning.forward import Predictions, Scorer
from mappa_core.engine.learning.layout import Batch
from mappa_core.engine.learning.optimiser import Optimiser
from mappa_core.engine.local.models import Source
from mappa_core.engine.places import locate
from mappa_core.errors import RunError
from mappa_core.experience import Receipt
from mappa_core.protocols import PolicySpec


class Policy:
    """One policy. `model` is its own where it is `full`, and that of its source, which others use too, where it is not.

    The module of the source, without any adapter, is its reference.
    """

    def __init__(self, spec: PolicySpec, source: Source, model: Any, train: TrainSection | None, *, seed: int) -> None:
        self.name = spec.name
        self.source = source
        self.trained = spec.trained
        self.lora = spec.lora
        self.version = 0
        self.steps = 0
        self.model = model
        self.value_head = self._value_head() if self.trained and spec.value_head else None
        self.optimiser: Optimiser | None = None
        if self.lora is not None:
            source.adapters.add(spec.name, self.lora, seed=seed)
        if spec.start is not None:
            self._start(spec.start)
        if self.trained and train is not None:
            if self.lora is None:
                self.model.requires_grad_(True)
            self.optimiser = Optimiser(self._parameters().items(), train)

    def _value_head(self) -> torch.nn.Linear:
        """Linear on the last hidden state, zero to begin with: no value is better than a random one."""
        head = torch.nn.Linear(self.model.get_output_embeddings().weight.shape[1], 1, device=self.model.device)
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
        return head

    def _parameters(self) -> dict[str, Tensor]:
        """Its own weights by name, tied ones once."""
        named: dict[str, Tensor] = base_weights(self.model.named_parameters())
        if self.lora is not None:
            named = dict(self.source.adapters.parameters(self.name))
        if self.value_head is not None:
            named |= {f"{VALUE_HEAD}{name}": one for name, one in self.value_head.named_parameters()}
        return named

    def active(self) -> AbstractContextManager[None]:
        """Let `model` compute as this policy, for all that is asked of it inside."""
        return self.source.adapters.active(None if self.lora is None else self.name)

    def reference(self, batch: Batch) -> Predictions:
        """What the reference says of a micro-batch."""
        with self.source.adapters.active(None):
            found: Predictions = Scorer(self.source.model)(batch)
        return found

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
        write_tensors({name: one.detach().contiguous() for name, one in weights.items()}, folder / WEIGHTS)
        if optimiser is not None:
            write_tensors(optimiser.moments(), folder / MOMENTS)
        (folder / STATE).write_text(json.dumps({"version": self.version, "steps": self.steps}))

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote. A policy that is only sampled takes the weights alone."""
        if not self.trained:
            return
        if not (folder / STATE).is_file():
            raise RunError(f"{folder}: the checkpoint has no policy {self.name!r}; were its policies others?")
        weights = load_file(folder / WEIGHTS)
        check_weights(weights, self._shapes(), folder, where=self.source.where)
        if self.optimiser is not None:
            if not (folder / MOMENTS).is_file():
                raise RunError(f"{folder}: the checkpoint was written without a learner, so training cannot go on")
            self.optimiser.restore(weights, load_file(folder / MOMENTS))
        else:
            self._take(weights)
        state = json.loads((folder / STATE).read_text())
        self.version, self.steps = state["version"], state["steps"]

    def _start(self, folder: Path) -> None:
        self._take(start_weights(folder, self._shapes(), where=self.source.where))

    def _shapes(self) -> dict[str, torch.Size]:
        return {name: one.shape for name, one in self._parameters().items()}

    @torch.no_grad()
    def _take(self, weights: Mapping[str, Tensor]) -> None:
        own = self._parameters()
        for name, one in weights.items():
            own[name].copy_(one)

    def export(self, folder: Path) -> None:
        """Write an ordinary Hugging Face folder, of a `lora` policy its adapter. A value head is no part of it."""
        if self.lora is None:
            self.model.save_pretrained(folder, state_dict=base_weights(self.model.state_dict().items()))
            self.source.chat.tokenizer.save_pretrained(folder)
        else:
            adapter = self.source.adapters.parameters(self.name)
            write_folder(adapter, self.lora, folder, base=locate(self.source.where))
