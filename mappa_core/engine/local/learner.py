"""Scoring and updating of one policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mappa_core.config.schema import TrainSection
from mappa_core.engine.local.forward import Batch, batches, token_logprobs
from mappa_core.engine.local.optimiser import Optimiser
from mappa_core.engine.local.policy import Policy
from mappa_core.engine.schedule import learning_rate
from mappa_core.errors import EngineError
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import Loss, LossRows
from mappa_core.records import Float32, Int64


def rows_of(experience: Experience, policy: str) -> tuple[Int64, Int64]:
    """The rows of a policy: those of weight > 0, and the others."""
    if policy not in experience.policies:
        none = np.zeros(0, dtype=np.int64)
        return none, none
    own = experience.policy == experience.policies.index(policy)
    return np.flatnonzero(own & (experience.weight > 0)), np.flatnonzero(own & ~(experience.weight > 0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """What a learner says of every sampled token (N,), NaN where it was not asked."""

    logprobs: Float32
    ref_logprobs: Float32
    values: Float32

    @classmethod
    def empty(cls, tokens: int) -> Scores:
        """Nothing said yet."""
        logprobs, ref_logprobs, values = np.full((3, tokens), np.nan, dtype=np.float32)
        return cls(logprobs=logprobs, ref_logprobs=ref_logprobs, values=values)


@torch.inference_mode()
def score(policy: Policy, experience: Experience, scores: Scores, *, budget: int) -> None:
    """Fill in `scores` for the policy's rows. Rows of weight 0 are batched apart, so that they change no other."""
    for rows in rows_of(experience, policy.name):
        for batch in batches(experience, rows, budget=budget, device=policy.model.device):
            logprobs, values = token_logprobs(policy.model, batch, policy.value_head)
            scores.logprobs[batch.source] = logprobs.cpu().numpy()
            scores.ref_logprobs[batch.source] = token_logprobs(policy.source.model, batch, None)[0].cpu().numpy()
            if values is not None:
                scores.values[batch.source] = values.cpu().numpy()


class Update:
    """The optimiser steps that one policy takes on one iteration's experience."""

    def __init__(
        self,
        policy: Policy,
        optimiser: Optimiser,
        experience: Experience,
        advantages: Advantages,
        loss: Loss,
        train: TrainSection,
    ) -> None:
        if experience.old_logprobs is None:
            raise ValueError("an experience is scored before it is learned from")
        self._policy, self._optimiser, self._loss, self._train = policy, optimiser, loss, train
        self._experience, self._advantages = experience, advantages
        self._old_logprobs: Float32 = experience.old_logprobs
        self._rows = rows_of(experience, policy.name)[0]
        self._row_of_token = experience.row_of_token
        self._sums: dict[str, float] = defaultdict(float)
        self._tokens = 0

    def run(self, progress: float, *, seed: int) -> dict[str, float]:
        """Take the steps. Raises EngineError before a step whose loss or gradient is not finite changes any weight."""
        steps = list(self._minibatches(round(progress * self._train.iterations), seed)) if len(self._rows) else []
        losses, norms, rates = [], [], []
        for number, rows in enumerate(steps):
            losses.append(self._gradient(rows))
            norm = self._optimiser.clip()
            if not np.isfinite(norm):
                raise self._not_finite("gradient")
            rates.append(learning_rate(self._train, progress, number, len(steps)))
            norms.append(norm)
            self._optimiser.step(rates[-1])
        self._policy.steps += len(steps)
        counts = {"rows": float(len(self._rows)), "steps": float(len(steps))}
        if not steps:
            return {**counts, "tokens": 0.0}
        return {
            **counts,
            "loss": float(np.mean(losses)),
            "grad_norm": float(np.mean(norms)),
            "lr": rates[-1],
            **self._mismatch(),
            **{name: total / self._tokens for name, total in self._sums.items()},
        }

    def _minibatches(self, iteration: int, seed: int) -> Iterator[Int64]:
        """The rows of each step. The shuffle hangs on seed, policy and iteration alone."""
        rows, size = self._rows, self._train.minibatch_rows or len(self._rows)
        random = np.random.default_rng([seed, iteration, *self._policy.name.encode()])
        for _ in range(self._train.epochs):
            order = rows if size >= len(rows) else random.permutation(rows)
            yield from (order[start : start + size] for start in range(0, len(order), size))

    def _gradient(self, rows: Int64) -> float:
        """Leave the gradient of the mean loss over all sampled tokens of `rows` with the optimiser; the loss."""
        experience = self._experience
        total_weight = float((experience.weight[rows] * experience.lengths[rows]).sum(dtype=np.float64))
        mean_loss = 0.0
        for batch in batches(experience, rows, budget=self._train.micro_tokens, device=self._policy.model.device):
            loss = self._batch_loss(batch) / total_weight
            value = loss.item()
            if not np.isfinite(value):
                raise self._not_finite("loss")
            mean_loss += value
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.accumulate()
        return mean_loss

    def _batch_loss(self, batch: Batch) -> Tensor:
        """Sum of weight times loss over the tokens of a micro-batch."""
        new_logprobs, values = token_logprobs(self._policy.model, batch, self._policy.value_head)
        rows = self._loss_rows(batch)
        losses, sums = self._loss(new_logprobs, rows, self._take(self._advantages.advantages, batch))
        if values is not None and self._advantages.value_targets is not None:
            error = (values - self._take(self._advantages.value_targets, batch)).square()
            losses = losses + self._train.value_coef * error
            self._sums["value_loss"] += error.detach().sum().item()
        self._count(new_logprobs.detach(), rows)
        for name, total in sums.items():
            self._sums[name] += float(total)
        weighted: Tensor = (losses * rows.weight).sum()
        return weighted

    def _count(self, new_logprobs: Tensor, rows: LossRows) -> None:
        self._tokens += len(new_logprobs)
        self._sums["entropy"] -= new_logprobs.sum().item()
        if rows.ref_logprobs is not None:
            gap = rows.ref_logprobs - new_logprobs
            self._sums["kl"] += (torch.expm1(gap) - gap).sum().item()

    def _loss_rows(self, batch: Batch) -> LossRows:
        experience, row_of_token = self._experience, self._row_of_token[batch.source]
        device = self._policy.model.device
        return LossRows(
            logprobs=self._take(experience.logprobs, batch),
            old_logprobs=self._take(self._old_logprobs, batch),
            ref_logprobs=None if experience.ref_logprobs is None else self._take(experience.ref_logprobs, batch),
            weight=torch.from_numpy(experience.weight[row_of_token]).to(device),
            row=torch.from_numpy(np.unique(row_of_token, return_inverse=True)[1]).to(device),
        )

    def _take(self, column: Float32, batch: Batch) -> Tensor:
        return torch.from_numpy(column[batch.source]).to(self._policy.model.device)

    def _mismatch(self) -> dict[str, float]:
        """How far the sampler's log-probabilities are from the learner's, before the update."""
        chosen = np.isin(self._row_of_token, self._rows)
        gap = np.abs(self._experience.logprobs[chosen] - self._old_logprobs[chosen])
        return {
            "tokens": float(chosen.sum()),
            "mismatch_max": float(gap.max()),
            "mismatch_mean": float(gap.mean(dtype=np.float64)),
        }

    def _not_finite(self, what: str) -> EngineError:
        self._optimiser.discard()
        return EngineError(
            f"policy {self._policy.name!r}: the {what} of step {self._policy.steps + 1} is not finite; its weights are "
            f"as they were before this step. A lower train.learning_rate or train.grad_clip may help."
        )
