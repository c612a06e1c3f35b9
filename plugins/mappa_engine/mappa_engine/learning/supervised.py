"""Supervised loss on a coach's corrections, added to the policy loss.

`L = policy loss + weight * mean over the step's correction tokens of -log p`, with log p of the policy at temperature 1
given the prompt of the corrected action. (Imitation combined with policy gradients as in DAPG, Rajeswaran et al. 2018,
arXiv:1709.10087; here with a constant weight, and on corrections of the policy's own actions.) The mean is over
correction tokens only, so neither the number of rows nor the length of actions changes its weight; a step without
corrections has no such term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from functools import partial

import numpy as np
from torch import Tensor

from mappa_core.engine import Demonstrations, Experience
from mappa_engine.arrays import Int64
from mappa_engine.learning.batching import BatchLayout, MicroBatch, rank_micro_batches
from mappa_engine.learning.learner import Learner
from mappa_engine.learning.training_sequences import TrainingSequence

_NLL, _TOKENS = "supervised.nll", "supervised.tokens"
"""Names of sums; the dots keep them apart from metrics of losses, whose names have none."""


class SupervisedLoss:
    """The supervised loss of one policy in the steps of one iteration. `with_values`: the policy loss gives the value
    head a gradient, so these micro-batches must, too, even if it is 0: sharded learners wait for it."""

    def __init__(
        self, learner: Learner, experience: Experience, weight: float, *, layout: BatchLayout, with_values: bool
    ) -> None:
        self._learner, self._layout, self._with_values = learner, layout, with_values
        self._weight = weight
        self._experience = experience
        self._demonstrations: Demonstrations | None = experience.demonstrations if weight else None

    def micro_batch_losses(self, rows: Int64, sums: MutableMapping[str, float]) -> list[Callable[[], Tensor]]:
        """Return this rank's share of the loss on the demonstrations of `rows`: one function per micro-batch, which
        computes its loss () and adds its sums to `sums`. Every rank gets equally many."""
        demonstrations, learner = self._demonstrations, self._learner
        if demonstrations is None:
            return []
        chosen = np.flatnonzero(np.isin(demonstrations.row, rows))
        if not len(chosen):
            return []
        total = int(np.diff(demonstrations.offsets)[chosen].sum())
        sequences = [_build_sequence(self._experience, demonstrations, row) for row in chosen.tolist()]
        share = rank_micro_batches(
            sequences, self._layout, sampled=None, device=learner.device, rank=learner.rank, ranks=learner.ranks
        )
        return [partial(self._loss, batch, total, sums) for batch in share]

    def _loss(self, batch: MicroBatch, total: int, sums: MutableMapping[str, float]) -> Tensor:
        predictions = self._learner.forward(batch)
        surprise: Tensor = -predictions.logprobs.sum()
        loss = surprise * (0.0 if batch.dummy else self._weight / total)
        if not batch.dummy:
            sums[_NLL] += surprise.item()
            sums[_TOKENS] += len(predictions.logprobs)
        # Sharded learners gather a module's weights in its backward pass, on all ranks or on none.
        return loss + 0.0 * predictions.values.sum() if self._with_values and predictions.values is not None else loss


def pop_supervised_metrics(sums: MutableMapping[str, float]) -> Mapping[str, float]:
    """Remove the supervised sums over all steps and ranks and return them as metrics: `supervised_loss`, the mean of
    -log p in nats per token, and `supervised_tokens`; empty if there were no corrections."""
    surprise, tokens = sums.pop(_NLL, None), sums.pop(_TOKENS, None)
    return (
        {"supervised_loss": surprise / tokens, "supervised_tokens": tokens} if surprise is not None and tokens else {}
    )


def _build_sequence(experience: Experience, demonstrations: Demonstrations, number: int) -> TrainingSequence:
    """Build the sequence of a demonstration after its row's prompt; `source` indexes the tokens of all
    demonstrations."""
    row, source = (
        demonstrations.row[number],
        np.arange(demonstrations.offsets[number], demonstrations.offsets[number + 1]),
    )
    prompt = experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]
    return TrainingSequence(
        tokens=np.concatenate([prompt, demonstrations.tokens[source]]),
        targets=len(prompt) + np.arange(len(source)),
        source=source,
    )
