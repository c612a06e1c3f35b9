"""The learner of one policy in this process."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mappa_core.engine.learning.forward import Predictions, Scorer
from mappa_core.engine.learning.layout import Batch
from mappa_core.engine.learning.optimiser import Optimiser
from mappa_core.engine.local.policy import Policy


class LocalLearner:
    """The weights and the optimiser of a policy as `learning.update` drives them: one rank, which has everything."""

    rank = 0
    ranks = 1

    def __init__(self, policy: Policy, optimiser: Optimiser) -> None:
        self._policy, self._optimiser = policy, optimiser
        self._scorer = Scorer(policy.model, policy.value_head)

    @property
    def name(self) -> str:
        """Of the policy."""
        return self._policy.name

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        device: torch.device = self._policy.model.device
        return device

    @property
    def steps(self) -> int:
        """Optimiser steps taken so far."""
        return self._policy.steps

    def forward(self, batch: Batch, *, entropy: bool = False) -> Predictions:
        """What the weights say of a micro-batch, with gradient."""
        found: Predictions = self._scorer(batch, entropy=entropy)
        return found

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of `loss` to that of the masters."""
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.accumulate()

    def norm(self) -> float:
        """Norm of the gradient before clipping."""
        return self._optimiser.norm()

    def step(self, learning_rate: float) -> None:
        """Move the weights by the clipped gradient."""
        self._optimiser.step(learning_rate)
        self._policy.steps += 1

    def discard(self) -> None:
        """Forget the gradient."""
        self._optimiser.discard()

    def summed(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The sums as they are: there is no other rank."""
        return dict(sums)
