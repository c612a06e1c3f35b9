"""What an update drives: a policy's trained weights, wherever they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from mappa_core.engine.learning.forward import Predictions
from mappa_core.engine.learning.layout import Batch


class Learner(Protocol):
    """The trained weights of one policy, or one rank's part of them. All ranks make the same calls in the same order.

    The gradient of a step is the sum over all micro-batches and all ranks of what is handed to `backward`.
    """

    @property
    def name(self) -> str:
        """Of the policy."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def steps(self) -> int:
        """Optimiser steps taken so far, in all iterations."""
        ...

    def forward(self, batch: Batch, *, entropy: bool = False) -> Predictions:
        """What the weights say of a micro-batch, with gradient."""
        ...

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of `loss` () to the step's. `last`: it is this rank's last micro-batch of the step."""
        ...

    def norm(self) -> float:
        """Norm of the whole gradient of the step, over all ranks, before clipping; not finite where any part is."""
        ...

    def step(self, learning_rate: float) -> None:
        """Clip the gradient, move the weights, forget the gradient, count the step. `norm` was asked before."""
        ...

    def discard(self) -> None:
        """Forget the gradient and move nothing."""
        ...

    def summed(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Sums over ranks by name. A rank may lack names that another one has."""
        ...
