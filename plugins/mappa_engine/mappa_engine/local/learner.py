"""The learner of one policy in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mappa_engine.learning.batching import MicroBatch
from mappa_engine.learning.logprob_model import Predictions
from mappa_engine.learning.optimiser import Optimiser
from mappa_engine.local.policy import Policy


class LocalLearner:
    """The `Learner` of a policy in this process: a single rank with all weights. `predict`: its `LogprobModel`."""

    rank = 0
    ranks = 1

    def __init__(self, policy: Policy, optimiser: Optimiser, predict: Callable[..., Predictions]) -> None:
        self._policy, self._optimiser, self._predict = policy, optimiser, predict

    @property
    def name(self) -> str:
        """Name of the policy."""
        return self._policy.name

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        device: torch.device = self._policy.model.device
        return device

    @property
    def steps(self) -> int:
        """Number of optimiser steps taken so far."""
        return self._policy.steps

    def forward(self, batch: MicroBatch, *, entropy: bool = False) -> Predictions:
        """Compute the predictions for a micro-batch, with gradient."""
        return self._predict(batch, entropy=entropy)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of `loss` to that of the master weights."""
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.accumulate()

    def grad_norm(self) -> float:
        """Return the norm of the gradient before clipping."""
        return self._optimiser.grad_norm()

    def step(self, learning_rate: float) -> None:
        """Update the weights with the clipped gradient."""
        self._optimiser.step(learning_rate)
        self._policy.steps += 1

    def zero_grad(self) -> None:
        """Clear the gradient."""
        self._optimiser.zero_grad()

    def all_reduce(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the sums unchanged: there is no other rank."""
        return dict(sums)
