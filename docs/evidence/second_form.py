"""The second form of the simulation of `preferences.py`: nothing of the corrector was tuned on it.

Where the first form has actions that are right or wrong, this one has a quality from 0 to 1. The coach gives whole
points, with errors and noise of Student's t with 3 degrees of freedom. A fifth of the actions has what the coach likes,
prompts have two to six samples, lengths vary, and 64 tasks come back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from two_judgements import judge_twice

from mappa_calibration.actions import ActionColumns, Float64, task_cluster

if TYPE_CHECKING:
    from preferences import Case

POOL, TASKS = 64, 16
LIKED = 0.2
QUALITY = {"worse": (0.25, 0.75), "equal": (0.5, 0.5), "better": (0.75, 0.25)}
"""Mean quality where the coach likes what it sees, and elsewhere."""
BASE, MERIT, FREEDOM = 1.0, 8.0, 3
SHARE = 0.25
"""Of actions that are judged twice."""


def played(case: Case, iteration: int, rng: np.random.Generator) -> ActionColumns:
    """The scored actions of one iteration."""
    numbers = (np.arange(TASKS) + iteration * TASKS) % POOL
    place = np.repeat(np.arange(TASKS), 2 + numbers % 5)
    liked = rng.random(len(place)) < LIKED
    mean = np.where(liked, *QUALITY[case.right])
    honest = BASE + MERIT * rng.beta(3 * mean, 3 * (1 - mean))
    doublings = liked + rng.normal(0, 0.2, len(place))
    bonus = case.bonus * (doublings if case.stratifier == "length" else liked)
    points, again = judge_twice(case, honest, bonus, partial(_draw_students_t, rng))
    return ActionColumns(
        agent=np.where(liked | (case.stratifier != "agent"), "liked", "other").astype(object),
        points=_whole(points),
        reference=np.where(rng.random(len(place)) < SHARE, _whole(again), np.nan),
        prompt=place,
        cluster=np.array([task_cluster(str(number)) for number in numbers])[place],
        tokens=64 * 2**doublings if case.stratifier == "length" else np.full(len(place), 64.0),
        strata={"plan": np.where(liked, "sum", "scale").astype(object)},
    )


def _draw_students_t(rng: np.random.Generator, size: int) -> Float64:
    """Of variance 1, which Student's t has only when it is divided by the root of FREEDOM / (FREEDOM - 2)."""
    return rng.standard_t(FREEDOM, size) / np.sqrt(FREEDOM / (FREEDOM - 2))


def _whole(points: Float64) -> Float64:
    found: Float64 = np.clip(np.round(points), 0, 10)
    return found
