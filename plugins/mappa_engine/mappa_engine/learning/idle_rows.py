"""Rows from which a policy learns nothing: what all their tokens are worth is 0, and the loss has nothing else."""

from __future__ import annotations

import numpy as np
import torch

from mappa_core.engine import Advantages, Experience, Loss, LossRows, TrainSection, element_indices
from mappa_engine.arrays import Bool, Int64

_REACH = 1.0
"""Nats by which log-probabilities are moved, up and down, where a loss is asked: beyond what it clips."""


def find_idle_rows(
    experience: Experience, rows: Int64, advantages: Advantages, loss: Loss, train: TrainSection
) -> Bool:
    """Return which rows (R,) of the experience, among `rows`, have no gradient whatever their log-probabilities become.

    Their advantages are 0, as where an estimator subtracts the mean of siblings that were all paid the same. None is
    idle where an entropy bonus or values are learned, or where the loss has a gradient at an advantage of 0, like that
    of a divergence: it is asked with the rows' own arrays.
    """
    idle = np.zeros(len(experience.reward), dtype=bool)
    if train.entropy_coef > 0.0 or advantages.value_targets is not None:
        return idle
    worth = np.bincount(
        experience.row_of_token, weights=np.abs(advantages.advantages), minlength=len(experience.reward)
    )
    found = rows[worth[rows] == 0.0]
    idle[found] = not _has_gradient(experience, found, loss)
    return idle


def _has_gradient(experience: Experience, rows: Int64, loss: Loss) -> bool:
    """Whether a loss has a gradient at tokens of `rows` whose advantages are 0."""
    source = element_indices(experience.offsets, rows)
    if not len(source):
        return True
    assert experience.old_logprobs is not None
    old = torch.from_numpy(experience.old_logprobs[source])
    row = np.unique(experience.row_of_token[source], return_inverse=True)[1]
    asked = LossRows(
        logprobs=torch.from_numpy(experience.logprobs[source]),
        old_logprobs=old,
        ref_logprobs=None if experience.ref_logprobs is None else torch.from_numpy(experience.ref_logprobs[source]),
        weight=torch.from_numpy(experience.weight[experience.row_of_token[source]]),
        row=torch.from_numpy(row),
    )
    for moved in (-_REACH, _REACH):
        new = (old + torch.linspace(0.0, moved, len(old))).requires_grad_()
        losses, _ = loss(new, asked, torch.zeros(len(old)))
        (gradient,) = torch.autograd.grad(losses.sum(), new, allow_unused=True) if losses.requires_grad else (None,)
        # NaN is a gradient, too: whatever made it is not to be left out in silence.
        if gradient is not None and not bool((gradient == 0.0).all()):
            return True
    return False
