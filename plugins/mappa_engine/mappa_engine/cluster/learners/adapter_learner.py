"""Learner of one LoRA adapter: every rank holds the whole base model, and only the adapter has gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from mappa_core.engine import TrainSection
from mappa_engine.checkpoint import VALUE_HEAD_PREFIX
from mappa_engine.cluster.learners.frozen_model import FrozenModel
from mappa_engine.cluster.learners.presence import Presence
from mappa_engine.cluster.learners.process_group import all_reduce_sums
from mappa_engine.learning.batching import MicroBatch
from mappa_engine.learning.logprob_model import LogprobModel, Predictions
from mappa_engine.learning.optimiser import Optimiser


class AdapterLearner:
    """One policy on one rank. Callers move the base to its device and activate the policy's adapter first.

    Every rank takes the same step on the same gradient, so adapters stay equal without being broadcast.
    """

    def __init__(self, name: str, base: FrozenModel, value_head: torch.nn.Linear | None, train: TrainSection) -> None:
        self.name = name
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.steps = 0
        self.device = base.device
        self._scorer = LogprobModel(base.model, value_head)
        self._parameters: dict[str, Tensor] = dict(base.adapters.parameters(name))
        if value_head is not None:
            self._parameters |= {
                f"{VALUE_HEAD_PREFIX}{key}": parameter for key, parameter in value_head.named_parameters()
            }
        self._optimiser = Optimiser(self._parameters.items(), train)

    def forward(self, batch: MicroBatch, *, entropy: bool = False) -> Predictions:
        """Run the model on a micro-batch."""
        predictions: Predictions = self._scorer(batch, entropy=entropy)
        return predictions

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Accumulate the gradient of the step; the last micro-batch sums it over all ranks."""
        loss.backward()  # type: ignore[no-untyped-call]
        if last and self.ranks > 1:
            self._all_reduce_gradients()

    def grad_norm(self) -> float:
        """Return the norm of the whole gradient before clipping."""
        return self._optimiser.grad_norm()

    def step(self, learning_rate: float) -> None:
        """Clip the gradient, update the adapter, reset the gradient."""
        self._optimiser.step(learning_rate)
        self.steps += 1

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self._optimiser.zero_grad()

    def all_reduce(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Sum each value over all ranks, by name."""
        return all_reduce_sums(sums)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the adapter by peft's names, and the value head, in float32: what the optimiser updates."""
        yield from self._optimiser.weights().items()

    masters = weights

    def moments(self) -> Iterator[tuple[str, Tensor]]:
        """Yield AdamW's state as `moment.parameter`; empty before the first step."""
        yield from self._optimiser.moments().items()

    def restore(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """Load what `masters` and `moments` returned."""
        self._optimiser.restore(weights, moments)

    def move(self, presence: Presence) -> None:
        """Do nothing: an adapter is small, and the owner of its base moves that."""

    def _all_reduce_gradients(self) -> None:
        """Sum gradients over the ranks, in one message."""
        parameters = list(self._parameters.values())
        # A rank whose micro-batches were all dummies may have no gradient of some weights, and takes part all the same.
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters
        ]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for parameter, part in zip(
            parameters, torch.split(flat, [parameter.numel() for parameter in parameters]), strict=True
        ):
            parameter.grad = part.view_as(parameter)
