"""The estimator `gdpo`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from mappa_core import ConfigError
from mappa_core.engine import SCORED_PHASES, Advantages, Experience
from mappa_engine.arrays import Float64, Int32, Int64

REWARDS = (*SCORED_PHASES, "outcome", "reward")


@dataclass
class GDPOOptions:
    """GDPO: several rewards, each normalised in its group, then weighted and added."""

    weights: dict[str, float] = field(default_factory=dict)
    """Weight of each reward: `live` and `after` (points of the live and the hindsight verdict), `outcome` (the
    workflow's main metric), `reward` (what `shapers` made). Empty: 1 for `live` and `after`."""
    eps: float = 1e-6
    """Added to standard deviations."""
    normalize: Literal["policy", "agent", "all", "none"] = "agent"
    """Actions whose sums are normalised together; `none`: sums are not normalised again."""

    def check(self) -> None:
        if unknown := sorted(set(self.weights) - set(REWARDS)):
            raise ConfigError(f"weights: must be of {', '.join(REWARDS)}, not of {unknown[0]!r}")
        if not all(map(math.isfinite, self.weights.values())) or (self.weights and not any(self.weights.values())):
            raise ConfigError("weights: must be finite, one of them other than 0")
        if not 0.0 < self.eps < math.inf:
            raise ConfigError(f"eps: must be above 0, for groups of equal rewards, and finite, not {self.eps:g}")

    @property
    def weighted(self) -> Mapping[str, float]:
        """The rewards that count, with their weights."""
        chosen = self.weights or dict.fromkeys(SCORED_PHASES, 1.0)
        return {name: weight for name, weight in chosen.items() if weight}

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases whose verdicts are read: a run where one of them has no weight is refused."""
        return tuple(phase for phase in SCORED_PHASES if phase in self.weighted)


class GDPO:
    """Group reward-Decoupled Normalization Policy Optimization (Liu et al. 2026, arXiv:2601.05242): with r_k the k-th
    reward of a row, and mean and sample standard deviation over the rows of one agent, task and turn,

        S = sum_k w_k (r_k - mean(r_k)) / (std(r_k) + eps)
        A = (S - mean(S)) / (std(S) + eps)

    on every token of the row; the second line over the rows that `normalize` names. So a reward of small spread counts
    as much as one of large spread, and different pairs of rewards with one sum have different advantages, where GRPO
    normalises the sum. Biased by design, as GRPO is, and more where a reward hardly varies: its noise is made large.

    A row that lacks one of the rewards, or a sibling that has all, has advantage 0 and enters no mean.
    """

    def __init__(self, options: GDPOOptions) -> None:
        self._weights = options.weighted
        self._eps, self._normalize = options.eps, options.normalize

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rewards = np.stack([self._column(experience, name) for name in self._weights], axis=1)
        rows = np.flatnonzero((experience.weight > 0) & np.isfinite(rewards).all(axis=1))
        rows = rows[np.bincount(experience.group[rows], minlength=1)[experience.group[rows]] > 1]
        sums = self._normalized(rewards[rows], experience.group[rows]) @ np.array(list(self._weights.values()))
        if self._normalize != "none":
            keys = {"policy": experience.policy, "agent": experience.agent, "all": np.zeros_like(experience.agent)}
            sums = self._normalized(sums[:, None], keys[self._normalize][rows])[:, 0]
        advantages = np.zeros(len(experience.reward))
        advantages[rows] = sums
        return Advantages(advantages=np.repeat(advantages, experience.lengths).astype(np.float32)), state

    def _column(self, experience: Experience, name: str) -> Float64:
        """Return a reward of all rows, (R,). Raises ConfigError if rows have a reward, and none of them this one."""
        if name in SCORED_PHASES:
            if experience.scores is None:
                raise ValueError("the experience has no column `scores`")
            column = experience.scores[:, SCORED_PHASES.index(name)]
        else:
            column = experience.outcome if name == "outcome" else experience.reward
        active = experience.weight > 0
        if active.any() and not np.isfinite(column[active]).any():
            raise ConfigError(
                f"estimator gdpo: no action has the reward {name}: take it out of estimator.options.weights, or see "
                "that it is given (coach.reward.live for live, coach.reward.after and coach.hindsight for after, a "
                "metric of the workflow for outcome)"
            )
        return column.astype(np.float64)

    def _normalized(self, values: Float64, keys: Int32) -> Float64:
        """Normalise columns (K, P) over the rows of one key: by mean and sample standard deviation; 0 for one row."""
        _, key, counts = np.unique(keys, return_inverse=True, return_counts=True)
        size, centred = counts[key][:, None], values - _sum_by_key(values, key) / counts[key][:, None]
        std = np.sqrt(_sum_by_key(np.square(centred), key) / np.maximum(size - 1, 1))
        normalized: Float64 = centred / (std + self._eps)
        return normalized


def _sum_by_key(values: Float64, key: Int64) -> Float64:
    """Return for each row (K, P) the sum over the rows with its key."""
    sums = np.zeros((key.max(initial=-1) + 1, values.shape[1]))
    np.add.at(sums, key, values)
    return sums[key]
