"""RLOO, GRPO and Dr. GRPO: group-relative advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappa_core.credit.estimators.common import ActiveRows, KlOptions, row_rewards, scatter_to_tokens
from mappa_core.credit.estimators.grouping import GroupBaseline, GroupBy, assign_groups
from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience
from mappa_core.records import Float64, Int64


@dataclass
class RlooOptions(KlOptions):
    """RLOO: reward minus the mean reward of the siblings."""

    groups: GroupBy = "turn"
    """Groups within one agent and task: `turn` (same turn), `state` (same prompt), `episode` (all actions)."""


@dataclass
class GrpoOptions(RlooOptions):
    """GRPO: reward normalised by the mean and standard deviation of its group."""

    eps: float = 1e-6
    """Added to the standard deviation."""


@dataclass
class DrGrpoOptions(RlooOptions):
    """Dr. GRPO: reward minus the mean of its group."""


class _GroupRelative:
    """Base of the estimators: an advantage per row, relative to the row's group, on every token of the row."""

    def __init__(self, options: RlooOptions) -> None:
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows, options = ActiveRows.from_experience(experience), self._options
        group = assign_groups(experience, rows, options.groups)
        reward = row_rewards(experience, rows, options.kl_coef)
        baseline = GroupBaseline.from_rewards(reward, group, experience.trajectory[rows.index])
        advantages = rows.repeat_per_token(self._advantages(baseline, group))
        return scatter_to_tokens(experience, rows, advantages), state

    def _advantages(self, baseline: GroupBaseline, group: Int64) -> Float64:
        raise NotImplementedError


class Rloo(_GroupRelative):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv:2402.14740): `A_i = R_i - mean of the group's other R` on
    every token of the row. The others are rows of other trajectories, which in `turn` groups of n are all except the
    row itself: `A_i = (R_i - mean) * n / (n - 1)`.

    The baseline does not depend on the action, so there is no bias for any grouping. A row without siblings has
    advantage 0, while its tokens still count in the engine's mean over tokens: a bias towards the tasks and turns that
    have siblings.
    """

    def _advantages(self, baseline: GroupBaseline, group: Int64) -> Float64:
        return baseline.leave_one_out


class Grpo(_GroupRelative):
    """GRPO (Shao et al. 2024, arXiv:2402.03300): `A = (R - mean) / (std + eps)` in the group, sample standard
    deviation, on every token of the row. A row without siblings has advantage 0.

    Biased by design: dividing by the standard deviation gives the highest weight to tasks on which nearly all siblings
    succeed or fail.
    """

    def __init__(self, options: GrpoOptions) -> None:
        if not options.eps > 0:
            raise ConfigError(f"grpo: eps is {options.eps:g}; it must be above 0, for groups of equal rewards")
        super().__init__(options)
        self._eps = options.eps

    def _advantages(self, baseline: GroupBaseline, group: Int64) -> Float64:
        return baseline.normalize(group, self._eps)


class DrGrpo(_GroupRelative):
    """Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): `A = R - mean` of the group, on every token of the row. A row
    without siblings has advantage 0.

    The mean includes the row itself, which scales the expectation by (n - 1)/n in `turn` groups of n. The other half of
    Dr. GRPO, dividing the sum over tokens by a fixed length, belongs to the loss (`train.mean`), not to the estimator.
    """

    def _advantages(self, baseline: GroupBaseline, group: Int64) -> Float64:
        return baseline.centred
