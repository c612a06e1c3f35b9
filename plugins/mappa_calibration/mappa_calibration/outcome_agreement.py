"""Agreement of a coach's verdicts with the outcomes that the workflow grades by rule, over the iterations of a run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from mappa_core import Trajectory

FALSE_ALARM_RATE = 0.05
CHANCE = 0.5
"""Agreement of scores that say nothing."""
_STAKES = (0.1, 0.25, 0.5, 0.9)


class OutcomeAgreement:
    """How often, of two rollouts of one task with different outcomes, the better one has the higher mean score.

    Every task of an iteration with such a pair is one observation, the share of its pairs that the scores put in order,
    a tie counting half. Labels of actions and outcomes are not the same (an error may be mended), so what is tested is
    that their mean lies at least half-way between chance and `fitted`, the agreement with the labels. It is tested by
    betting against it (Waudby-Smith and Ramdas 2024): wealth is multiplied by 1 + stake * (1 - observed / half-way),
    averaged over stakes. If the mean never is lower, the chance that it ever grows to 1 / FALSE_ALARM_RATE is
    FALSE_ALARM_RATE at most (Ville 1939), however often one looks.
    """

    def __init__(self, metric: str, fitted: float) -> None:
        self._metric = metric
        self._fitted = fitted
        self._half_way = (CHANCE + fitted) / 2
        self._log_wealth = [0.0] * len(_STAKES)
        self._total = 0.0
        self._tasks = 0
        self._told = False

    def observe(self, trajectories: Sequence[Trajectory]) -> str | None:
        """Take the trajectories of one iteration. Returns a sentence, once, when the agreement is certainly too low, or
        when nothing can be compared as the outcomes have another name."""
        names = {name for trajectory in trajectories for name in trajectory.outcome}
        if names and self._metric not in names and not self._told:
            self._told = True
            return (
                f"the calibrated jury is not held against outcomes: no rollout has the outcome {self._metric!r}; "
                f"metric of the ensemble may be {' or '.join(sorted(names))}"
            )
        for observed in _task_agreements(trajectories, self._metric):
            self._total += observed
            self._tasks += 1
            for place, stake in enumerate(_STAKES):
                self._log_wealth[place] += math.log(1 + stake * (1 - observed / self._half_way))
        if self._told or fmean(map(math.exp, self._log_wealth)) < 1 / FALSE_ALARM_RATE:
            return None
        self._told = True
        return (
            f"the calibrated jury has put the rollouts of a task in the order of their outcomes in "
            f"{self._total / self._tasks:.0%} of {self._tasks} cases, certainly less than half-way from chance to the "
            f"{self._fitted:.0%} that it agrees with the labels it was fitted on: calibrate it on labelled runs of now"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"log_wealth": self._log_wealth, "total": self._total, "tasks": self._tasks, "told": self._told}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._log_wealth, self._told = list(state["log_wealth"]), state["told"]
        self._total, self._tasks = state["total"], state["tasks"]


def _task_agreements(trajectories: Sequence[Trajectory], metric: str) -> list[float]:
    """The share of pairs in order, for every task with rollouts that were judged and came out differently."""
    siblings: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for trajectory in trajectories:
        scores = [verdict.score for verdict in trajectory.verdicts if verdict.score is not None]
        if scores and metric in trajectory.outcome:
            siblings[trajectory.task.id].append((trajectory.outcome[metric], fmean(scores)))
    ordered = [
        [_order(*sorted(pair)) for pair in combinations(rollouts, 2) if pair[0][0] != pair[1][0]]
        for rollouts in siblings.values()
    ]
    return [fmean(pairs) for pairs in ordered if pairs]


def _order(worse: tuple[float, float], better: tuple[float, float]) -> float:
    return 0.5 if worse[1] == better[1] else float(better[1] > worse[1])
