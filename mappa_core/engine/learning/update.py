"""The optimiser steps that one policy takes on one iteration: one algorithm, whatever learner it drives."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import structlog
import torch
from torch import Tensor

from mappa_core.config.schema import TrainSection
from mappa_core.engine.learning.correction import Correction, correct
from mappa_core.engine.learning.figures import LOSS, TOKENS, Step, count, count_values, figures, peak
from mappa_core.engine.learning.layout import Batch, Layout, batches
from mappa_core.engine.learning.learner import Learner
from mappa_core.engine.learning.means import Mean
from mappa_core.engine.learning.scoring import rows_of
from mappa_core.engine.learning.supervised import Supervised, pop_figures
from mappa_core.engine.losses.value import value_losses
from mappa_core.engine.schedule import learning_rate
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import Loss, LossRows
from mappa_core.records import Float32, Int64

log = structlog.get_logger()


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
        self._mean = Mean(experience, train)
        self._correction: Correction = correct(experience, self._rows, train.correction)
        self._supervised = Supervised(
            learner,
            experience,
            train.supervised.weight,
            layout=layout,
            valued=advantages.value_targets is not None,
        )
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
        return {**counts, **self._correction.metrics, **pop_figures(self._sums), **figures(taken, self._sums)}

    def _minibatches(self, iteration: int, seed: int) -> Iterator[Int64]:
        """The rows of each step. The shuffle hangs on seed, policy and iteration alone."""
        rows, size = self._rows, self._train.minibatch_rows or len(self._rows)
        random = np.random.default_rng([seed, iteration, *self._learner.name.encode()])
        for _ in range(self._train.epochs):
            order = rows if size >= len(rows) else random.permutation(rows)
            yield from (order[start : start + size] for start in range(0, len(order), size))

    def _step(self, rows: Int64, rate: float) -> Step | None:
        """One optimiser step on `rows`; None where it was skipped. All ranks decide alike."""
        learner = self._learner
        sums = learner.summed(self._gradient(rows))
        loss, ratio_max, norm = sums.pop(LOSS), peak(sums), learner.norm()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            learner.discard()
            if learner.rank == 0:
                log.warning("step.skipped", policy=learner.name, step=learner.steps + 1, loss=loss, grad_norm=norm)
            return None
        learner.step(rate)
        for name, total in sums.items():
            self._sums[name] += total
        return Step(loss=loss, norm=norm, rate=rate, ratio_max=ratio_max)

    def _gradient(self, rows: Int64) -> dict[str, float]:
        """Leave this rank's part of the gradient of the mean loss of `rows`, and of the supervised term, with the
        learner; this rank's sums."""
        experience, learner = self._experience, self._learner
        share = batches(experience, rows, self._layout, device=learner.device, rank=learner.rank, ranks=learner.ranks)
        sums: dict[str, float] = defaultdict(float, {LOSS: 0.0, TOKENS: 0.0})
        total = self._mean.total(rows)
        parts: list[Callable[[], Tensor]] = [partial(self._batch_loss, batch, total, sums) for batch in share]
        parts += self._supervised.parts(rows, sums)
        for number, part in enumerate(parts, start=1):
            loss = part()
            sums[LOSS] += loss.item()
            # A loss that is not finite goes through as well: other ranks wait for this one in the backward pass.
            learner.backward(loss, last=number == len(parts))
        return sums

    def _batch_loss(self, batch: Batch, total: float, sums: dict[str, float]) -> Tensor:
        """Sum of scale times loss over the tokens of a micro-batch, divided by the step's `total`; its metrics are
        added to `sums`."""
        found = self._learner.forward(batch, entropy=self._train.entropy_coef > 0.0)
        targets = self._advantages.value_targets
        if batch.weightless:
            # Sharded learners gather weights for each output's backward pass: what others use must be used here, too.
            used = (found.logprobs, found.entropy, None if targets is None else found.values)
            return torch.stack([0.0 * one.sum() for one in used if one is not None]).sum()
        rows = self._loss_rows(batch)
        losses, metrics = self._loss(found.logprobs, rows, self._take(self._advantages.advantages, batch))
        if self._correction.weights is not None:
            losses = losses * self._take(self._correction.weights, batch)
        if found.entropy is not None:
            losses = losses - self._train.entropy_coef * found.entropy
        if found.values is not None and targets is not None:
            losses = losses + self._train.value_coef * self._value_losses(found.values, targets, batch, sums)
        count(found, rows, sums, rank=self._learner.rank)
        for name, one in metrics.items():
            sums[name] += float(one)
        scale = torch.from_numpy(self._mean.scale[self._row_of_token[batch.source]])
        weighted: Tensor = (losses * scale.to(losses)).sum()
        return weighted / total

    def _value_losses(self, values: Tensor, targets: Float32, batch: Batch, sums: dict[str, float]) -> Tensor:
        old, clip = self._experience.values, self._train.value_clip
        wanted = self._take(targets, batch)
        losses = value_losses(values, None if old is None else self._take(old, batch), wanted, clip)
        count_values(values, wanted, losses, sums)
        return losses

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
