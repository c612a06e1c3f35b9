"""A race of fixes against the team as it is, on the same tasks: three looks, after which those that are behind stop.

At a look, fixes whose interval lies below 0 stop, and of the others only the best go on (successive halving: Karnin,
Koren and Somekh 2013). Intervals hold for all fixes and looks together at 95 %: of alpha, 0.005 is kept for the looks
before the end (Haybittle 1971; Peto et al. 1976), the rest for the end, and both are divided by the number of fixes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mappa.statistics import CONFIDENCE_LEVEL, Interval, difference_bounds, effective_clusters, number_clusters

Name = TypeVar("Name", bound=Hashable)
INTERIM_ALPHA = 0.005
LOOKS = (0.25, 0.5, 1.0)
"""Shares of the tasks that are played at each look."""
MIN_TASKS = 32
"""Tasks of a race at its end, below which hardly any gain is significant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RacePlan:
    """The number of `fixes` at the start, and how many tasks are played by each look."""

    fixes: int
    looks: tuple[int, ...]

    @classmethod
    def within(cls, rollouts: int, fixes: int, tasks: int) -> RacePlan:
        """The race on as many of `tasks` as `rollouts` are enough for."""
        size = max((n for n in range(1, tasks + 1) if race_cost(n, fixes) <= rollouts), default=0)
        return cls(fixes=fixes, looks=_looks(size))

    def alpha(self, look: int) -> float:
        """Significance level of one fix at a look (from 0)."""
        if look < len(LOOKS) - 1:
            return INTERIM_ALPHA / ((len(LOOKS) - 1) * self.fixes)
        return (1 - CONFIDENCE_LEVEL - INTERIM_ALPHA) / self.fixes

    def survivors(self, gains: Mapping[Name, Interval], look: int) -> list[Name]:
        """The fixes that go on after a look: the best by mean, without those that are clearly worse than the
        team as it is."""
        alive = [name for name, gain in gains.items() if gain.high is None or gain.high >= 0]
        alive.sort(key=lambda name: -gains[name].mean)
        return alive[: _max_fixes(self.fixes, look + 1)]


def race_cost(tasks: int, fixes: int) -> int:
    """Maximum rollouts of a race of so many fixes, those of the team as it is included."""
    looks, before, cost = _looks(tasks), 0, 0
    for place, after in enumerate(looks):
        cost += (after - before) * (1 + _max_fixes(fixes, place))
        before = after
    return cost


def gain_at(
    before: Mapping[str, float], after: Mapping[str, float], clusters: Mapping[str, Hashable], alpha: float
) -> Interval | None:
    """Mean of `after - before` over the tasks that have both, at level `1 - alpha`; None if there is no such task.
    Without bounds if the tasks are of fewer than two clusters."""
    both = [task for task in before if task in after]
    if not both:
        return None
    differences = np.array([after[task] - before[task] for task in both], dtype=np.float64)
    mean = float(differences.mean())
    groups = number_clusters([clusters[task] for task in both], len(both))
    if effective_clusters(groups) < 2:
        return Interval(mean=mean)
    low, high = difference_bounds(differences, groups, alpha)
    return Interval(mean=mean, low=low, high=high)


def _looks(tasks: int) -> tuple[int, ...]:
    return tuple(math.ceil(share * tasks) for share in LOOKS)


def _max_fixes(fixes: int, look: int) -> int:
    """Fixes that play before a look: half of them after each, and two until the last part."""
    return min(fixes, max(math.ceil(fixes / 2.0**look), len(LOOKS) - look))
