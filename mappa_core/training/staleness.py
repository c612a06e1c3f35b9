"""Staleness: how many updates the sampling weights are behind the learner."""

from __future__ import annotations

import numpy as np

from mappa_core.experience import Experience
from mappa_core.store.iteration_report import Staleness


def measure_staleness(experience: Experience, iteration: int, *, max_staleness: int) -> Staleness | None:
    """Mean and maximum staleness over tokens, in updates; None without tokens. Learners have version `iteration`.

    Raises:
        RuntimeError: a token was sampled by weights more than `max_staleness` updates old, or of a future version: a
            bug of the loop or the engine.
    """
    if not len(experience.tokens):
        return None
    age = iteration - experience.version.astype(np.int64)
    wrong = np.flatnonzero((age < 0) | (age > max_staleness))
    if len(wrong):
        step = experience.steps[experience.row_of_token[wrong[0]]]
        raise RuntimeError(
            f"step {step} was sampled by version {experience.version[wrong[0]]} of its weights, and learners of "
            f"version {iteration} may learn from those of {max(0, iteration - max_staleness)} to {iteration}"
        )
    return Staleness(mean=float(age.mean()), max=float(age.max()))
