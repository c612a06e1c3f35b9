"""A policy: its weights, value head and optimiser."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mappa_core import RunError
from mappa_core.engine import PolicySpec, Receipt, TrainSection
from mappa_engine.adapters import base_weights
from mappa_engine.checkpoint import (
    OPTIMISER_FILE,
    REFERENCE_FOLDER,
    VALUE_HEAD_PREFIX,
    WEIGHTS_FILE,
    SavedCounts,
    StoredTensors,
    check_moments,
    check_shapes,
    copy_weights,
    has_tensors,
    load_start_weights,
    write_tensors,
)
from mappa_engine.learning.batching import MicroBatch
from mappa_engine.learning.logprob_model import LogprobModel, Predictions
from mappa_engine.learning.optimiser import Optimiser
from mappa_engine.local.models import LoadedModel

CHECKED_NUMBERS = 1 << 16


class Policy:
    """One policy. A `full` policy has its own `model`; any other shares the model of its `base`.

    Its reference policy is a frozen copy of the weights in `PolicySpec.reference`, or the base model without adapters.
    """

    def __init__(
        self,
        spec: PolicySpec,
        base: LoadedModel,
        model: Any,
        train: TrainSection | None,
        *,
        seed: int,
        reference_model: Any = None,
    ) -> None:
        """`reference_model` is the module of the reference, which is not the base's for a `full` policy with one of its
        own."""
        self.name = spec.name
        self.base = base
        self.trained = spec.trained
        self.lora = spec.lora
        self.version = 0
        self.steps = 0
        self.published_steps = 0
        """`steps` of the weights that `version` is the number of."""
        self.model = model
        self.value_head = self._value_head() if self.trained and spec.value_head else None
        self.optimiser: Optimiser | None = None
        if self.lora is not None:
            base.adapters.add(spec.name, self.lora, seed=seed)
        if spec.start is not None:
            self._load_start(spec.start)
        self._reference_model = base.model if reference_model is None else reference_model
        self._reference_adapter: str | None = None
        self._has_own_reference = train is not None and self.trained and spec.reference is not None
        if self._has_own_reference:
            assert spec.reference is not None
            self._load_reference(spec.reference)
        if self.trained and train is not None:
            if self.lora is None:
                self.model.requires_grad_(True)
            self.optimiser = Optimiser(self._parameters().items(), train)

    def _value_head(self) -> torch.nn.Linear:
        """Create a linear value head, initialized to zero: no value is better than a random one."""
        head = torch.nn.Linear(self.model.get_output_embeddings().weight.shape[1], 1, device=self.model.device)
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
        return head

    def _parameters(self) -> dict[str, Tensor]:
        """Return the policy's own weights by name, tied ones once."""
        named: dict[str, Tensor] = base_weights(self.model.named_parameters())
        if self.lora is not None:
            named = dict(self.base.adapters.parameters(self.name))
        if self.value_head is not None:
            named |= {f"{VALUE_HEAD_PREFIX}{name}": parameter for name, parameter in self.value_head.named_parameters()}
        return named

    def active(self) -> AbstractContextManager[None]:
        """Activate this policy's adapter, if it has one, inside the context."""
        return self.base.adapters.active(None if self.lora is None else self.name)

    def reference(self, batch: MicroBatch) -> Predictions:
        """Compute the reference policy's predictions for a micro-batch."""
        with self.base.adapters.active(self._reference_adapter):
            predictions: Predictions = LogprobModel(self._reference_model)(batch)
        return predictions

    def publish(self) -> Receipt:
        """Publish the current weights as a new version. Sampler and learner share a module, so nothing is compared; the
        checksum covers up to `CHECKED_NUMBERS` of every tensor, evenly spaced."""
        if self.trained:
            self.version += 1
        self.published_steps = self.steps
        digest = hashlib.sha256()
        for name, parameter in self._parameters().items():
            digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
            numbers = parameter.detach().flatten()
            sample = numbers[:: -(-len(numbers) // CHECKED_NUMBERS)].contiguous().cpu()
            digest.update(sample.view(torch.uint8).numpy().data)
        return Receipt(version=self.version, checksum=digest.hexdigest())

    def checkpoint_bytes(self, dtype: torch.dtype) -> int:
        """Compute the size of what `save` writes, after a first step."""
        weights = self._parameters() if self.trained else {}
        moments = 2 * torch.float32.itemsize if self.optimiser is not None else 0
        reference = sum(weight.numel() * weight.itemsize for weight in self._own_reference().values())
        stored = self._stored_dtype(dtype).itemsize
        return sum(weight.numel() for weight in weights.values()) * (stored + moments) + reference

    def _stored_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if self.lora is None else torch.float32

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write what `load` needs to resume training, with weights of float32 bit-exactly. An adapter is always
        float32."""
        if not self.trained:
            return
        folder.mkdir(parents=True)
        weights = self._parameters() if self.optimiser is None else self.optimiser.weights()
        stored = self._stored_dtype(dtype)
        write_tensors(((name, weights[name].to(stored)) for name in sorted(weights)), folder / WEIGHTS_FILE)
        if self.optimiser is not None:
            write_tensors(sorted(self.optimiser.moments().items()), folder / OPTIMISER_FILE)
        if reference := self._own_reference():
            (folder / REFERENCE_FOLDER).mkdir()
            write_tensors(sorted(reference.items()), folder / REFERENCE_FOLDER / WEIGHTS_FILE)
        SavedCounts(version=self.version, steps=self.steps).write(folder)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. A policy that is only sampled restores the weights alone."""
        if not self.trained:
            return
        counts = SavedCounts.read(folder, self.name)
        with StoredTensors(folder / WEIGHTS_FILE) as weights, StoredTensors(folder / OPTIMISER_FILE) as moments:
            check_shapes(weights.shapes, self._shapes(), folder, model_name=self.base.model_name)
            if self.optimiser is None:
                self._copy_weights(weights)
            elif has_tensors(folder / OPTIMISER_FILE):
                check_moments(moments, weights.shapes, steps=counts.steps)
                self.optimiser.restore(weights, moments)
            else:
                raise RunError(f"{folder}: the checkpoint was written without a learner, so training cannot go on")
        self.version, self.steps, self.published_steps = counts.version, counts.steps, counts.steps

    def _load_start(self, folder: Path) -> None:
        self._copy_weights(load_start_weights(folder, self._shapes(), model_name=self.base.model_name))

    def _load_reference(self, folder: Path) -> None:
        own = self._parameters()
        shapes = {name: weight.shape for name, weight in own.items() if not name.startswith(VALUE_HEAD_PREFIX)}
        weights = load_start_weights(folder, shapes, model_name=self.base.model_name)
        if self.lora is not None:
            self._reference_adapter = self.base.adapters.add_reference(self.name, self.lora, weights)
        else:
            copy_weights(base_weights(self._reference_model.named_parameters()), weights)

    def _own_reference(self) -> Mapping[str, Tensor]:
        """Return the weights of the reference, where these are not the base's."""
        if not self._has_own_reference:
            return {}
        if self._reference_adapter is not None:
            return self.base.adapters.parameters(self._reference_adapter)
        return base_weights(self._reference_model.named_parameters())

    def _shapes(self) -> dict[str, torch.Size]:
        return {name: parameter.shape for name, parameter in self._parameters().items()}

    def _copy_weights(self, weights: Mapping[str, Tensor]) -> None:
        copy_weights(self._parameters(), weights)
