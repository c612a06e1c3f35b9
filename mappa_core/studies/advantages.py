"""How the advantages of the same actions differ between two sets of rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.evaluation.agreement import Estimate, correlation, estimate
from mappa_core.experience import Advantages, Experience
from mappa_core.records import Float64

ZERO = 1e-6
"""An advantage of a smaller magnitude is rounding and has no sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action under both rewards, with its advantage, the mean over its sampled tokens: None where its reward is
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
    def moved(self) -> float | None:
        """By how much the advantage differs; None where there are not both."""
        return None if self.before is None or self.after is None else abs(self.after - self.before)

    @property
    def flipped(self) -> bool:
        """Whether what was encouraged is now discouraged, or the other way round."""
        if self.before is None or self.after is None or min(abs(self.before), abs(self.after)) < ZERO:
            return False
        return (self.before > 0) != (self.after > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What became of the advantages of some actions. Of `actions`, `compared` have an advantage under both rewards; of
    these come `correlation` (Pearson's, its interval by trajectory) and `flips`, how many changed their sign."""

    actions: int
    missing_before: int
    missing_after: int
    compared: int
    correlation: Estimate | None
    flips: int

    @property
    def flip_share(self) -> float | None:
        """Share of the compared actions that changed their sign, 0-1."""
        return self.flips / self.compared if self.compared else None


def actions_of(
    iteration: int, before: tuple[Experience, Advantages], after: tuple[Experience, Advantages]
) -> list[Action]:
    """The rows of one iteration under both rewards; both experiences hold the same actions in the same order."""
    experience = before[0]
    if experience.steps != after[0].steps:
        raise ValueError("both experiences must hold the same actions in the same order")
    old, new = _by_row(*before), _by_row(*after)
    return [
        Action(
            step=experience.steps[row],
            trajectory=experience.trajectories[experience.trajectory[row]],
            agent=experience.agents[experience.agent[row]],
            iteration=iteration,
            reward_before=_known(experience.reward[row]),
            reward_after=_known(after[0].reward[row]),
            before=_known(old[row]),
            after=_known(new[row]),
        )
        for row in range(len(experience.steps))
    ]


def change_of(actions: Sequence[Action]) -> Change:
    """Compare the advantages of `actions`, both over those that have both."""
    both = [(one.before, one.after, one.trajectory) for one in actions if one.moved is not None]
    before, after, trajectories = zip(*both, strict=True) if both else ((), (), ())
    return Change(
        actions=len(actions),
        missing_before=sum(one.before is None for one in actions),
        missing_after=sum(one.after is None for one in actions),
        compared=len(both),
        correlation=estimate(correlation(before, after), trajectories),
        flips=sum(one.flipped for one in actions),
    )


def movers(actions: Sequence[Action], most: int) -> tuple[Action, ...]:
    """The actions whose advantage moved furthest, at most so many, the furthest first."""
    moved = [(one.moved, one) for one in actions if one.moved is not None and one.moved >= ZERO]
    return tuple(one for _, one in sorted(moved, key=lambda pair: (-pair[0], pair[1].step))[:most])


def _by_row(experience: Experience, advantages: Advantages) -> Float64:
    """The mean advantage of each row's tokens, (R,), NaN on rows of weight 0."""
    lengths = experience.lengths
    sums = np.bincount(experience.row_of_token, advantages.advantages, minlength=len(lengths))
    means: Float64 = np.where(experience.weight > 0, sums / lengths, np.nan)
    return means


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
