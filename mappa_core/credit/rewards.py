"""Compute rewards from verdicts: one number per action, or None if a required verdict is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from mappa_core.errors import ConfigError
from mappa_core.protocols import Rewards, Shaper
from mappa_core.records import Phase, Trajectory

LastScores = Mapping[tuple[str, str], float | None]
SCORED_PHASES: tuple[Phase, ...] = ("live", "after")
"""Phases of the verdicts that are given while a run trains: the columns of `Experience.scores`."""


def compute_rewards(trajectory: Trajectory, phases: Mapping[str, float], shapers: Sequence[Shaper]) -> Rewards:
    """Compute one reward per step of `trajectory`, in the order of its steps.

    The initial reward of a step is the sum of its verdicts' scores (0-10 points), weighted by phase with `phases`
    (`coach.reward`); of several verdicts of one phase the last one counts. It is None if any phase of non-zero weight
    has no scored verdict, or if no phase has a weight. The shapers are then applied in order. Raises ConfigError for an
    unknown phase, ValueError if a shaper did not return one reward per step.
    """
    unknown = sorted(set(phases) - set(get_args(Phase)))
    if unknown:
        raise ConfigError(f"coach.reward: {unknown[0]!r} is not a phase; the phases are {', '.join(get_args(Phase))}")
    scores = last_scores(trajectory)
    counted = {phase: weight for phase, weight in phases.items() if weight != 0}
    result: Rewards = tuple(_weighted_score(step.id, counted, scores) for step in trajectory.steps)
    for shaper in shapers:
        result = tuple(shaper(trajectory, result))
        if len(result) != len(trajectory.steps):
            raise ValueError(f"{shaper!r} returned {len(result)} rewards for {len(trajectory.steps)} steps")
    return result


def last_scores(trajectory: Trajectory) -> LastScores:
    """Return the score of the last verdict by step and phase; None if it was not scored."""
    # Verdicts are in order of arrival, and later ones replace earlier ones.
    return {(verdict.step, str(verdict.phase)): verdict.score for verdict in trajectory.verdicts}


def _weighted_score(step: str, weights: Mapping[str, float], scores: LastScores) -> float | None:
    # None and not 0 without weights: an action that nobody rewards carries no gradient.
    total = None
    for phase, weight in weights.items():
        score = scores.get((step, phase))
        # A sum of the other phases would be smaller for no fault of the action.
        if score is None:
            return None
        total = (total or 0.0) + weight * score
    return total
