"""The second form of the simulation of `preferences.py`: nothing of the corrector was tuned on it.

Where the first form has actions that are right or wrong, this one has a quality from 0 to 1. The coach gives whole
points, with noise of Student's t with 3 degrees of freedom. The chance that later agents make a success of an action
rises with its quality on an S-shaped curve, some poor ones are repaired, and tasks differ in how far later agents get.
A fifth of the actions has what the coach likes, prompts have two to six samples, lengths vary, and 64 tasks come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mappa_calibration.actions import ActionColumns, Float64, task_cluster

if TYPE_CHECKING:
    from preferences import Case

POOL, TASKS = 64, 16
LIKED = 0.2
QUALITY = {"worse": (0.25, 0.75), "equal": (0.5, 0.5), "better": (0.75, 0.25)}
"""Mean quality where the coach likes what it sees, and elsewhere."""
BASE, MERIT, NOISE, FREEDOM = 1.0, 8.0, 0.8, 3
REPAIRED, TASKS_DIFFER = 0.15, 0.1
SHARE = 0.25
"""Of actions that are judged twice."""


def played(case: Case, stratifier: str, iteration: int, rng: np.random.Generator) -> ActionColumns:
    """The scored actions of one iteration."""
    numbers = (np.arange(TASKS) + iteration * TASKS) % POOL
    place = np.repeat(np.arange(TASKS), 2 + numbers % 5)
    liked = (rng.random(TASKS) < LIKED)[place] if stratifier == "task" else rng.random(len(place)) < LIKED
    mean = np.where(liked, *QUALITY[case.right])
    quality = rng.beta(3 * mean, 3 * (1 - mean))
    doublings = liked + rng.normal(0, 0.2, len(place))
    hidden = stratifier == "agent" or case.way.endswith("blind judgement")
    bonus = case.bonus * (doublings if stratifier == "length" else liked)
    return ActionColumns(
        agent=np.where(liked | (stratifier != "agent"), "liked", "other").astype(object),
        points=points(quality, bonus, rng),
        reference=np.where(rng.random(len(place)) < SHARE, points(quality, 0.0 if hidden else bonus, rng), np.nan),
        outcome=successes(quality, np.where(liked, *case.later), numbers[place], rng),
        prompt=place,
        cluster=np.array([task_cluster(str(number)) for number in numbers])[place],
        tokens=64 * 2**doublings if stratifier == "length" else np.full(len(place), 64.0),
        strata={name: np.where(liked, "sum", "scale").astype(object) for name in ("plan", "task")},
    )


def points(quality: Float64, bonus: Float64 | float, rng: np.random.Generator) -> Float64:
    """Whole points of the coach, with noise of its own in every judgement."""
    given = BASE + MERIT * quality + bonus + NOISE * rng.standard_t(FREEDOM, len(quality))
    found: Float64 = np.clip(np.round(given), 0, 10)
    return found


def successes(quality: Float64, later: Float64, task: np.ndarray, rng: np.random.Generator) -> Float64:
    """Outcomes of the team, 0 or 1."""
    effect = np.array([np.random.default_rng(number).normal(0, TASKS_DIFFER) for number in range(POOL)])[task]
    curve = quality**2 * (3 - 2 * quality)
    chance = np.clip(later + effect, 0, 1) * (REPAIRED + (1 - REPAIRED) * curve)
    return (rng.random(len(quality)) < chance).astype(np.float64)
