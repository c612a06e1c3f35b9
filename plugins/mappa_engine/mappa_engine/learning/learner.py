"""Interface between the update algorithm and an engine's trained weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from mappa_engine.learning.batching import MicroBatch
from mappa_engine.learning.logprob_model import Predictions


class Learner(Protocol):
    """The trained weights of one policy, or one rank's shard of them. All ranks make the same calls in the same order.

    The gradient of a step is the sum of the losses passed to `backward`, over all micro-batches and ranks.
    """

    @property
    def name(self) -> str:
        """Name of the policy."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def steps(self) -> int:
        """Number of optimiser steps taken so far, in all iterations."""
        ...

    def forward(self, batch: MicroBatch, *, entropy: bool = False) -> Predictions:
        """Compute the predictions for a micro-batch, with gradient."""
        ...

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Accumulate the gradient of `loss` (). `last`: this is the rank's last micro-batch of the step."""
        ...

    def grad_norm(self) -> float:
        """Return the norm of the step's gradient over all ranks, before clipping; not finite if any part is not. The
        dtype in which squares are summed is the learner's own."""
        ...

    def step(self, learning_rate: float) -> None:
        """Clip the gradient, update the weights, clear the gradient, count the step. Call `grad_norm` before."""
        ...

    def zero_grad(self) -> None:
        """Clear the gradient without updating the weights."""
        ...

    def all_reduce(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Sum the values over ranks, by name. A rank may lack names that another one has."""
        ...
