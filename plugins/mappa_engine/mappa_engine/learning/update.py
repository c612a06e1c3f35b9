"""The update of one policy on one iteration, the same algorithm for every learner."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import structlog
import torch
from torch import Tensor

from mappa_core.engine import Advantages, Experience, Loss, LossRows, TrainSection
from mappa_engine.arrays import Float32, Int64
from mappa_engine.learning.batching import BatchLayout, MicroBatch, build_batches
from mappa_engine.learning.idle_rows import find_idle_rows
from mappa_engine.learning.importance_weights import ImportanceWeights, compute_importance_weights
from mappa_engine.learning.learner import Learner
from mappa_engine.learning.loss_reduction import LossReduction
from mappa_engine.learning.metrics import (
    LOSS,
    TOKENS,
    OptimiserStep,
    add_token_metrics,
    add_value_metrics,
    build_metrics,
    pop_ratio_max,
)
from mappa_engine.learning.scoring import find_policy_rows
from mappa_engine.learning.supervised import SupervisedLoss, pop_supervised_metrics
from mappa_engine.losses.value_loss import value_losses
from mappa_engine.lr_schedule import learning_rate

log = structlog.get_logger()

_MAX_GRAD_NORM = math.sqrt(torch.finfo(torch.float32).max)
"""Above it the square of a gradient, of which AdamW keeps a mean, is infinite in float32. Whether the norm itself is
finite depends on the dtype in which a learner sums squares, which must not decide which steps are taken."""


class PolicyUpdate:
    """The optimiser steps of one policy on one iteration's experience. Every rank of a learner creates one, on the same
    experience, and processes its own share of each step's micro-batches."""

    def __init__(
        self,
        learner: Learner,
        experience: Experience,
        advantages: Advantages,
        loss: Loss,
        train: TrainSection,
        *,
        layout: BatchLayout,
        skips_idle: bool = False,
    ) -> None:
        """`skips_idle`: leave rows without a gradient (`idle_rows`) out of the passes. Sums are then of other numbers
        in another order; and metrics of tokens are those of the rows that were computed."""
        if experience.old_logprobs is None:
            raise ValueError("an experience is scored before it is learned from")
        self._learner, self._loss, self._train, self._layout = learner, loss, train, layout
        self._experience, self._advantages = experience, advantages
        self._old_logprobs: Float32 = experience.old_logprobs
        self._rows = find_policy_rows(experience, learner.name)[0]
        self._row_of_token = experience.row_of_token
        self._skips_idle = skips_idle
        self._idle = np.zeros(len(experience.reward), dtype=bool)
        if skips_idle:
            self._idle = find_idle_rows(experience, self._rows, advantages, loss, train)
        self._reduction = LossReduction(experience, train)
        self._correction: ImportanceWeights = compute_importance_weights(experience, self._rows, train.correction)
        self._supervised = SupervisedLoss(
            learner,
            experience,
            train.supervised.weight,
            layout=layout,
            with_values=advantages.value_targets is not None,
        )
        self._sums: dict[str, float] = defaultdict(float)
        """Sums over the steps taken and all ranks."""

    def run(self, progress: float, *, seed: int) -> dict[str, float]:
        """Take the steps; return the metrics over all ranks.

        A step whose loss or gradient is not finite, or too large to be squared in float32, is skipped and counted,
        without a change of weights. Step metrics cover only steps taken, and are absent if there were none.
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
        if self._skips_idle:
            counts["idle_rows"] = float(self._idle.sum())
        return {
            **counts,
            **self._correction.metrics,
            **pop_supervised_metrics(self._sums),
            **build_metrics(taken, self._sums),
        }

    def _minibatches(self, iteration: int, seed: int) -> Iterator[Int64]:
        """Yield the rows of each step: as few steps as `minibatch_rows` allows, and as even, since under Adam a step on
        one row moves the weights as far as one on many. The shuffle depends on seed, policy and iteration alone."""
        rows = self._rows
        count = math.ceil(len(rows) / (self._train.minibatch_rows or len(rows)))
        random = np.random.default_rng([seed, iteration, *self._learner.name.encode()])
        for _ in range(self._train.epochs):
            yield from np.array_split(rows if count == 1 else self._shuffle(rows, random), count)

    def _shuffle(self, rows: Int64, random: np.random.Generator) -> Int64:
        """Shuffle rows; where micro-batches share prefixes, siblings stay beside each other, as their prompts begin
        alike."""
        shuffled: Int64 = random.permutation(rows)
        if not self._layout.shares_prefixes:
            return shuffled
        groups, group = np.unique(self._experience.group[shuffled], return_inverse=True)
        return shuffled[np.argsort(random.permutation(len(groups))[group], kind="stable")]

    def _step(self, rows: Int64, rate: float) -> OptimiserStep | None:
        """Take one optimiser step on `rows`; None if it was skipped. All ranks decide the same, and all learners."""
        learner = self._learner
        # Ranks decide from sums of all, and from a norm that is the same on each: one that stepped alone would differ
        # from the others from then on, and wait for them.
        sums = learner.all_reduce(self._gradient(rows))
        loss, ratio_max, grad_norm = sums.pop(LOSS), pop_ratio_max(sums), learner.grad_norm()
        if not (math.isfinite(loss) and grad_norm <= _MAX_GRAD_NORM):  # false of NaN, too
            learner.zero_grad()
            if learner.rank == 0:
                log.warning("step.skipped", policy=learner.name, step=learner.steps + 1, loss=loss, grad_norm=grad_norm)
            return None
        learner.step(rate)
        for name, total in sums.items():
            self._sums[name] += total
        return OptimiserStep(loss=loss, grad_norm=grad_norm, rate=rate, ratio_max=ratio_max)

    def _gradient(self, rows: Int64) -> dict[str, float]:
        """Accumulate this rank's share of the gradient of the mean loss of `rows`, and of the supervised loss; return
        this rank's sums."""
        experience, learner = self._experience, self._learner
        # A step whose rows are all idle is taken as well, as it is without leaving out: Adam's moments decay.
        computed = rows[~self._idle[rows]] if not self._idle[rows].all() else rows[:1]
        share = build_batches(
            experience, computed, self._layout, device=learner.device, rank=learner.rank, ranks=learner.ranks
        )
        sums: dict[str, float] = defaultdict(float, {LOSS: 0.0, TOKENS: 0.0})
        divisor = self._reduction.divisor(rows)
        parts: list[Callable[[], Tensor]] = [partial(self._batch_loss, batch, divisor, sums) for batch in share]
        parts += self._supervised.micro_batch_losses(rows, sums)
        for number, part in enumerate(parts, start=1):
            loss = part()
            sums[LOSS] += loss.item()
            # A loss that is not finite is passed on as well: other ranks wait for this one in the backward pass.
            learner.backward(loss, last=number == len(parts))
        return sums

    def _batch_loss(self, batch: MicroBatch, divisor: float, sums: dict[str, float]) -> Tensor:
        """Return the sum of scale times loss over the tokens of a micro-batch, divided by the step's `divisor`; add its
        metrics to `sums`."""
        predictions = self._learner.forward(batch, entropy=self._train.entropy_coef > 0.0)
        targets = self._advantages.value_targets
        if batch.dummy:
            # Sharded learners gather weights in each output's backward pass, so a dummy must use the same outputs.
            used = (predictions.logprobs, predictions.entropy, None if targets is None else predictions.values)
            return torch.stack([0.0 * output.sum() for output in used if output is not None]).sum()
        rows = self._loss_rows(batch)
        losses, metrics = self._loss(predictions.logprobs, rows, self._gather(self._advantages.advantages, batch))
        if self._correction.weights is not None:
            losses = losses * self._gather(self._correction.weights, batch)
        if predictions.entropy is not None:
            losses = losses - self._train.entropy_coef * predictions.entropy
        if predictions.values is not None and targets is not None:
            losses = losses + self._train.value_coef * self._value_losses(predictions.values, targets, batch, sums)
        add_token_metrics(predictions, rows, sums, rank=self._learner.rank)
        for name, value in metrics.items():
            sums[name] += float(value)
        # Divided by the whole step's divisor, not the micro-batch's own: the sum is then the same for every split.
        scale = torch.from_numpy(self._reduction.scale[self._row_of_token[batch.source]])
        weighted: Tensor = (losses * scale.to(losses)).sum()
        return weighted / divisor

    def _value_losses(self, values: Tensor, targets: Float32, batch: MicroBatch, sums: dict[str, float]) -> Tensor:
        old, clip = self._experience.values, self._train.value_clip
        wanted = self._gather(targets, batch)
        losses = value_losses(values, None if old is None else self._gather(old, batch), wanted, clip)
        add_value_metrics(values, wanted, losses, sums)
        return losses

    def _loss_rows(self, batch: MicroBatch) -> LossRows:
        experience, row_of_token = self._experience, self._row_of_token[batch.source]
        device = self._learner.device
        return LossRows(
            logprobs=self._gather(experience.logprobs, batch),
            old_logprobs=self._gather(self._old_logprobs, batch),
            ref_logprobs=None if experience.ref_logprobs is None else self._gather(experience.ref_logprobs, batch),
            weight=torch.from_numpy(experience.weight[row_of_token]).to(device),
            row=torch.from_numpy(np.unique(row_of_token, return_inverse=True)[1]).to(device),
        )

    def _gather(self, column: Float32, batch: MicroBatch) -> Tensor:
        return torch.from_numpy(column[batch.source]).to(self._learner.device)
