"""The optimiser steps that one policy takes on one iteration: one algorithm, whatever learner it drives."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import structlog
import torch
from torch import Tensor

from mappa_core.config.schema import TrainSection
from mappa_core.engine.learning.correction import Correction, correct
from mappa_core.engine.learning.layout import Batch, Layout, batches
from mappa_core.engine.learning.scoring import rows_of
from mappa_core.engine.schedule import learning_rate
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import Loss, LossRows
from mappa_core.records import Float32, Int64

log = structlog.get_logger()

_LOSS, _TOKENS = "step.loss", "step.tokens"
"""Sums of a step beside those that the loss names; a loss has no dots in its names."""


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

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities (n,) in nats and, with a value head, values (n,): float32, with gradient."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A step that was taken: the mean loss, the norm of the gradient, the learning rate."""

    loss: float
    norm: float
    rate: float


class Update:
    """The optimiser steps of one policy on one iteration's experience. Every rank of a learner makes one, on the same
    experience, and works on its own share of each step's micro-batches."""

    def __init__(
        self,
        learner: Learner,
        experience: Experience,
        advantages: Advantages,
        loss: Loss,
        train: TrainSection,
        *,
        layout: Layout,
    ) -> None:
        if experience.old_logprobs is None:
            raise ValueError("an experience is scored before it is learned from")
        self._learner, self._loss, self._train, self._layout = learner, loss, train, layout
        self._experience, self._advantages = experience, advantages
        self._old_logprobs: Float32 = experience.old_logprobs
        self._rows = rows_of(experience, learner.name)[0]
        self._row_of_token = experience.row_of_token
        self._correction: Correction = correct(experience, self._rows, train.correction)
        self._sums: dict[str, float] = defaultdict(float)
        """Of the steps taken, over all ranks."""

    def run(self, progress: float, *, seed: int) -> dict[str, float]:
        """Take the steps; metrics of all ranks together.

        A step whose loss or gradient is not finite is skipped and counted: no weight moves. Figures of steps are of
        those taken, and are not there where none was.
        """
        steps = list(self._minibatches(round(progress * self._train.iterations), seed)) if len(self._rows) else []
        taken = []
        for number, rows in enumerate(steps):
            step = self._step(rows, learning_rate(self._train, progress, number, len(steps)))
            if step is not None:
                taken.append(step)
        counts = {
            "rows": float(len(self._rows)),
            "tokens": float(self._experience.lengths[self._rows].sum()),
            "steps": float(len(taken)),
            "skipped": float(len(steps) - len(taken)),
        }
        return {**counts, **self._correction.metrics, **self._figures(taken)}

    def _figures(self, taken: list[_Step]) -> dict[str, float]:
        if not taken:
            return {}
        tokens = self._sums.pop(_TOKENS)
        return {
            "loss": float(np.mean([step.loss for step in taken])),
            "grad_norm": float(np.mean([step.norm for step in taken])),
            "lr": taken[-1].rate,
            **{name: total / tokens for name, total in self._sums.items()},
        }

    def _minibatches(self, iteration: int, seed: int) -> Iterator[Int64]:
        """The rows of each step. The shuffle hangs on seed, policy and iteration alone."""
        rows, size = self._rows, self._train.minibatch_rows or len(self._rows)
        random = np.random.default_rng([seed, iteration, *self._learner.name.encode()])
        for _ in range(self._train.epochs):
            order = rows if size >= len(rows) else random.permutation(rows)
            yield from (order[start : start + size] for start in range(0, len(order), size))

    def _step(self, rows: Int64, rate: float) -> _Step | None:
        """One optimiser step on `rows`; None where it was skipped. All ranks decide alike."""
        learner = self._learner
        sums = learner.summed(self._gradient(rows))
        loss, norm = sums.pop(_LOSS), learner.norm()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            learner.discard()
            if learner.rank == 0:
                log.warning("step.skipped", policy=learner.name, step=learner.steps + 1, loss=loss, grad_norm=norm)
            return None
        learner.step(rate)
        for name, total in sums.items():
            self._sums[name] += total
        return _Step(loss=loss, norm=norm, rate=rate)

    def _gradient(self, rows: Int64) -> dict[str, float]:
        """Leave this rank's part of the gradient of the mean loss over all sampled tokens of `rows` with the learner;
        this rank's sums."""
        experience, learner = self._experience, self._learner
        total_weight = float((experience.weight[rows] * experience.lengths[rows]).sum(dtype=np.float64))
        share = batches(experience, rows, self._layout, device=learner.device, rank=learner.rank, ranks=learner.ranks)
        sums: dict[str, float] = defaultdict(float, {_LOSS: 0.0, _TOKENS: 0.0})
        for number, batch in enumerate(share, start=1):
            loss = self._batch_loss(batch, sums) / total_weight
            sums[_LOSS] += loss.item()
            # A loss that is not finite goes through as well: other ranks wait for this one in the backward pass.
            learner.backward(loss, last=number == len(share))
        return sums

    def _batch_loss(self, batch: Batch, sums: dict[str, float]) -> Tensor:
        """Sum of weight times loss over the tokens of a micro-batch; its metrics are added to `sums`."""
        new_logprobs, values = self._learner.forward(batch)
        targets = self._advantages.value_targets
        if batch.weightless:
            nothing: Tensor = 0.0 * new_logprobs.sum()
            return nothing if values is None or targets is None else nothing + 0.0 * values.sum()
        rows = self._loss_rows(batch)
        losses, metrics = self._loss(new_logprobs, rows, self._take(self._advantages.advantages, batch))
        if self._correction.weights is not None:
            losses = losses * self._take(self._correction.weights, batch)
        if values is not None and targets is not None:
            error = (values - self._take(targets, batch)).square()
            losses = losses + self._train.value_coef * error
            sums["value_loss"] += error.detach().sum().item()
        _count(new_logprobs.detach(), rows, sums)
        for name, total in metrics.items():
            sums[name] += float(total)
        weighted: Tensor = (losses * rows.weight).sum()
        return weighted

    def _loss_rows(self, batch: Batch) -> LossRows:
        experience, row_of_token = self._experience, self._row_of_token[batch.source]
        device = self._learner.device
        return LossRows(
            logprobs=self._take(experience.logprobs, batch),
            old_logprobs=self._take(self._old_logprobs, batch),
            ref_logprobs=None if experience.ref_logprobs is None else self._take(experience.ref_logprobs, batch),
            weight=torch.from_numpy(experience.weight[row_of_token]).to(device),
            row=torch.from_numpy(np.unique(row_of_token, return_inverse=True)[1]).to(device),
        )

    def _take(self, column: Float32, batch: Batch) -> Tensor:
        return torch.from_numpy(column[batch.source]).to(self._learner.device)


def _count(new_logprobs: Tensor, rows: LossRows, sums: dict[str, float]) -> None:
    sums[_TOKENS] += len(new_logprobs)
    sums["entropy"] -= new_logprobs.sum().item()
    if rows.ref_logprobs is not None:
        gap = rows.ref_logprobs - new_logprobs
        sums["kl"] += (torch.expm1(gap) - gap).sum().item()
