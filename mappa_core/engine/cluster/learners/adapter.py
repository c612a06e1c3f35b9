"""A learner of one adapter: the base lies whole on every rank, and only the adapter has gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from mappa_core.config.schema import TrainSection
from mappa_core.engine.checkpoint import VALUE_HEAD
from mappa_core.engine.cluster.learners.bases import Base
from mappa_core.engine.cluster.learners.joining import summed
from mappa_core.engine.learning.forward import Predictions, Scorer
from mappa_core.engine.learning.layout import Batch
from mappa_core.engine.learning.optimiser import Optimiser


class AdapterLearner:
    """One policy on one rank. Whoever calls has the base on its device and the policy's adapter active.

    Every rank takes the same step on the same gradient, so adapters stay equal without being sent.
    """

    def __init__(self, name: str, base: Base, value_head: torch.nn.Linear | None, train: TrainSection) -> None:
        self.name = name
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.steps = 0
        self.device = base.device
        self._scorer = Scorer(base.model, value_head)
        self._parameters: dict[str, Tensor] = dict(base.adapters.parameters(name))
        if value_head is not None:
            self._parameters |= {f"{VALUE_HEAD}{key}": one for key, one in value_head.named_parameters()}
        self._optimiser = Optimiser(self._parameters.items(), train)

    def forward(self, batch: Batch, *, entropy: bool = False) -> Predictions:
        """What the weights say of a micro-batch."""
        found: Predictions = self._scorer(batch, entropy=entropy)
        return found

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add to the gradient of the step; with the last micro-batch, those of all ranks."""
        loss.backward()  # type: ignore[no-untyped-call]
        if last and self.ranks > 1:
            self._share()

    def norm(self) -> float:
        """Of the whole gradient before it is clipped."""
        return self._optimiser.norm()

    def step(self, learning_rate: float) -> None:
        """Clip, move the adapter, forget the gradient."""
        self._optimiser.step(learning_rate)
        self.steps += 1

    def discard(self) -> None:
        """Forget the gradient."""
        self._optimiser.discard()

    def summed(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Over all ranks, by name."""
        return summed(sums)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The adapter by peft's names, and the value head, float32: what the optimiser moves."""
        yield from self._optimiser.weights().items()

    masters = weights

    def moments(self) -> Iterator[tuple[str, Tensor]]:
        """AdamW's state as `moment.parameter`; none before the first step."""
        yield from self._optimiser.moments().items()

    def restore(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """Take over what `masters` and `moments` gave."""
        self._optimiser.restore(weights, moments)

    def offload(self) -> None:
        """Nothing: an adapter is small, and its base is moved by whoever holds it."""

    def reload(self) -> None:
        """Nothing: see `offload`."""

    def _share(self) -> None:
        """The sum of the ranks' gradients, in one message."""
        parameters = list(self._parameters.values())
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        flat = torch.cat([one.flatten() for one in gradients])
        dist.all_reduce(flat)
        for one, part in zip(parameters, torch.split(flat, [one.numel() for one in parameters]), strict=True):
            one.grad = part.view_as(one)
