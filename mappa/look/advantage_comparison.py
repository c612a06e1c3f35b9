"""Compares the advantages of the same actions under two sets of rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mappa.look.arrays import Float64
from mappa.look.coach_eval.bootstrap import Estimate, correlation, estimate
from mappa_core import Advantages, Experience

ROUNDING_TOLERANCE = 1e-6
"""An advantage of a smaller magnitude is a rounding error and has no sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionAdvantages:
    """One action under both sets of rewards. Its advantage is the mean over its sampled tokens, None if its reward is
    missing."""

    step: str
    trajectory: str
    agent: str
    iteration: int
    reward_before: float | None
    reward_after: float | None
    before: float | None
    after: float | None

    @property
    def shift(self) -> float | None:
        """Absolute difference of the two advantages; None if either is missing."""
        return None if self.before is None or self.after is None else abs(self.after - self.before)

    @property
    def flips_sign(self) -> bool:
        """Whether the advantage changes its sign, so that training would push the action the other way."""
        if self.before is None or self.after is None or min(abs(self.before), abs(self.after)) < ROUNDING_TOLERANCE:
            return False
        return (self.before > 0) != (self.after > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageComparison:
    """The advantages of some actions, compared. `compared` of the `actions` have an advantage under both rewards; over
    these, `correlation` is Pearson's (its interval by trajectory) and `flips` counts changes of sign."""

    actions: int
    missing_before: int
    missing_after: int
    compared: int
    correlation: Estimate | None
    flips: int

    @property
    def flip_share(self) -> float | None:
        """Share of the compared actions whose advantage changed its sign, 0-1."""
        return self.flips / self.compared if self.compared else None


def align_actions(
    iteration: int, before: tuple[Experience, Advantages], after: tuple[Experience, Advantages]
) -> list[ActionAdvantages]:
    """Pair the rows of one iteration; both experiences must hold the same actions in the same order."""
    experience = before[0]
    if experience.steps != after[0].steps:
        raise ValueError("both experiences must hold the same actions in the same order")
    old, new = _mean_by_row(*before), _mean_by_row(*after)
    return [
        ActionAdvantages(
            step=experience.steps[row],
            trajectory=experience.trajectories[experience.trajectory[row]],
            agent=experience.agents[experience.agent[row]],
            iteration=iteration,
            reward_before=_finite_or_none(experience.reward[row]),
            reward_after=_finite_or_none(after[0].reward[row]),
            before=_finite_or_none(old[row]),
            after=_finite_or_none(new[row]),
        )
        for row in range(len(experience.steps))
    ]


def compare_advantages(actions: Sequence[ActionAdvantages]) -> AdvantageComparison:
    """Compare the advantages of `actions`, over those that have both."""
    both = [(one.before, one.after, one.trajectory) for one in actions if one.shift is not None]
    before, after, trajectories = zip(*both, strict=True) if both else ((), (), ())
    return AdvantageComparison(
        actions=len(actions),
        missing_before=sum(one.before is None for one in actions),
        missing_after=sum(one.after is None for one in actions),
        compared=len(both),
        correlation=estimate(correlation(before, after), trajectories),
        flips=sum(one.flips_sign for one in actions),
    )


def select_movers(actions: Sequence[ActionAdvantages], limit: int) -> tuple[ActionAdvantages, ...]:
    """The `limit` actions whose advantage changed most, the largest change first."""
    moved = [(one.shift, one) for one in actions if one.shift is not None and one.shift >= ROUNDING_TOLERANCE]
    return tuple(one for _, one in sorted(moved, key=lambda pair: (-pair[0], pair[1].step))[:limit])


def _mean_by_row(experience: Experience, advantages: Advantages) -> Float64:
    """The mean advantage of each row's tokens, (R,); NaN for rows of weight 0."""
    lengths = experience.lengths
    sums = np.bincount(experience.row_of_token, advantages.advantages, minlength=len(lengths))
    means: Float64 = np.where(experience.weight > 0, sums / lengths, np.nan)
    return means


def _finite_or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
