"""How much older the weights that sampled an iteration are than those that learn from it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mappa_core.experience import Experience


def staleness(experience: Experience, iteration: int, *, most: int) -> Mapping[str, float]:
    """Mean and maximum over tokens, in updates; nothing where there are no tokens. Learners have version `iteration`.

    Raises:
        RuntimeError: a token is of weights older than `most` updates, or of weights that are not there yet: the loop
            or the engine is wrong.
    """
    if not len(experience.tokens):
        return {}
    age = iteration - experience.version.astype(np.int64)
    wrong = np.flatnonzero((age < 0) | (age > most))
    if len(wrong):
        step = experience.steps[experience.row_of_token[wrong[0]]]
        raise RuntimeError(
            f"step {step} was sampled by version {experience.version[wrong[0]]} of its weights, and learners of "
            f"version {iteration} may learn from those of {max(0, iteration - most)} to {iteration}"
        )
    return {"staleness_mean": float(age.mean()), "staleness_max": float(age.max())}
