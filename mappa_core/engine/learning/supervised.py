"""The supervised term beside the policy loss: what a coach would rather have seen becomes likelier.

`L = policy loss + weight * mean over the step's correction tokens of -log p`, with log p of the policy at temperature 1
given the prompt that the corrected action had. (Imitation beside policy gradients as in DAPG, Rajeswaran et al. 2018,
arXiv:1709.10087; here with a constant weight, and of corrections of the policy's own actions.) The mean is the term's
own: neither the number of rows nor the length of actions changes what it weighs, and a step that corrects nothing is a
step without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from functools import partial

import numpy as np
from torch import Tensor

from mappa_core.credit.segments import Segment
from mappa_core.engine.learning.layout import Batch, Layout, dealt
from mappa_core.engine.learning.learner import Learner
from mappa_core.experience import Demonstrations, Experience
from mappa_core.records import Int64

_NLL, _TOKENS = "supervised.nll", "supervised.tokens"
"""Sums of a step; a loss has no dots in its names."""


class Supervised:
    """The term of one policy's learner in the steps of one iteration. `valued`: the step's other micro-batches give the
    value head a gradient, so these must, too, if one of 0: sharded learners wait for it."""

    def __init__(
        self, learner: Learner, experience: Experience, weight: float, *, layout: Layout, valued: bool
    ) -> None:
        self._learner, self._layout, self._valued = learner, layout, valued
        self._weight = weight
        self._experience = experience
        self._given: Demonstrations | None = experience.demonstrations if weight else None

    def parts(self, rows: Int64, sums: MutableMapping[str, float]) -> list[Callable[[], Tensor]]:
        """This rank's part of the term over the demonstrations of `rows`: a loss () per micro-batch, computed when it
        is asked for; its sums are then added to `sums`. Every rank has as many."""
        given, learner = self._given, self._learner
        if given is None:
            return []
        chosen = np.flatnonzero(np.isin(given.row, rows))
        if not len(chosen):
            return []
        total = int(np.diff(given.offsets)[chosen].sum())
        chains = [_segment(self._experience, given, one) for one in chosen.tolist()]
        share = dealt(
            chains, self._layout, temperature=None, device=learner.device, rank=learner.rank, ranks=learner.ranks
        )
        return [partial(self._loss, batch, total, sums) for batch in share]

    def _loss(self, batch: Batch, total: int, sums: MutableMapping[str, float]) -> Tensor:
        found = self._learner.forward(batch)
        surprise: Tensor = -found.logprobs.sum()
        loss = surprise * (0.0 if batch.weightless else self._weight / total)
        if not batch.weightless:
            sums[_NLL] += surprise.item()
            sums[_TOKENS] += len(found.logprobs)
        return loss + 0.0 * found.values.sum() if self._valued and found.values is not None else loss


def pop_figures(sums: MutableMapping[str, float]) -> Mapping[str, float]:
    """The sums of the term, over all steps and ranks, as figures: `supervised_loss`, the mean of -log p in nats per
    token, and `supervised_tokens`; none where nothing was learned from."""
    surprise, tokens = sums.pop(_NLL, None), sums.pop(_TOKENS, None)
    return (
        {"supervised_loss": surprise / tokens, "supervised_tokens": tokens} if surprise is not None and tokens else {}
    )


def _segment(experience: Experience, given: Demonstrations, number: int) -> Segment:
    """A demonstration after the prompt of its row; `source` numbers the tokens of all demonstrations."""
    row, source = given.row[number], np.arange(given.offsets[number], given.offsets[number + 1])
    prompt = experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]
    return Segment(
        tokens=np.concatenate([prompt, given.tokens[source]]),
        targets=len(prompt) + np.arange(len(source)),
        source=source,
    )
