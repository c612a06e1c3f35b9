"""RLOO, GRPO and Dr. GRPO: an action against those that it can be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappa_core.credit.estimators.groups import Compared, Groups, groups_of
from mappa_core.credit.estimators.rows import Rows, row_rewards, spread
from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience
from mappa_core.records import Int64


@dataclass
class RlooOptions:
    """RLOO: each row against the mean of its siblings'."""

    groups: Groups = "turn"
    """Of one agent and task: `turn` (the same turn), `state` (the same prompt), `episode` (all actions)."""
    kl_coef: float = 0.0
    """Reward taken off per nat of the row's summed k1 against the reference policy; 0: no reference."""


class Rloo:
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv:2402.14740): `A_i = R_i - mean of the group's other R` on
    every token of the row; the others are those of other trajectories, which in `turn` groups of n are all but the row
    itself: `A_i = (R_i - mean) * n / (n - 1)`.

    The baseline does not hang on the action, so there is no bias by any grouping. A row with nothing to be compared
    with has advantage 0, and its tokens still count in the mean over tokens that the engine takes: what it would have
    said is lost, which is a bias towards the tasks and turns that have siblings.
    """

    def __init__(self, options: RlooOptions) -> None:
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows = Rows.of(experience)
        compared, _ = _compared(experience, rows, self._options.groups, self._options.kl_coef)
        return spread(experience, rows, rows.each_token(compared.left_out)), state


@dataclass
class GrpoOptions:
    """GRPO: each row against the mean and the standard deviation of its group."""

    eps: float = 1e-6
    """Added to the standard deviation."""
    groups: Groups = "turn"
    """Of one agent and task: `turn` (the same turn), `state` (the same prompt), `episode` (all actions)."""
    kl_coef: float = 0.0
    """Reward taken off per nat of the row's summed k1 against the reference policy; 0: no reference."""


class Grpo:
    """GRPO (Shao et al. 2024, arXiv:2402.03300): `A = (R - mean) / (std + eps)` in the group, sample standard
    deviation, on every token of the row. A row with nothing to be compared with has advantage 0.

    Biased by design: dividing by the standard deviation weighs tasks by how rare their rewards are, the most where
    nearly all siblings succeed or fail.
    """

    def __init__(self, options: GrpoOptions) -> None:
        if not options.eps > 0:
            raise ConfigError(f"grpo: eps is {options.eps:g}; it must be above 0, for groups of equal rewards")
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows = Rows.of(experience)
        compared, group = _compared(experience, rows, self._options.groups, self._options.kl_coef)
        return spread(experience, rows, rows.each_token(compared.over_std(group, self._options.eps))), state


@dataclass
class DrGrpoOptions:
    """Dr. GRPO: each row against the mean of its group."""

    groups: Groups = "turn"
    """Of one agent and task: `turn` (the same turn), `state` (the same prompt), `episode` (all actions)."""
    kl_coef: float = 0.0
    """Reward taken off per nat of the row's summed k1 against the reference policy; 0: no reference."""


class DrGrpo:
    """Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): `A = R - mean` of the group, on every token of the row. A row with
    nothing to be compared with has advantage 0.

    The mean holds the row itself, which scales the expectation by (n - 1)/n in `turn` groups of n. The other half of
    Dr. GRPO, a sum over tokens over a fixed length, is the loss's mean and not the estimator's.
    """

    def __init__(self, options: DrGrpoOptions) -> None:
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows = Rows.of(experience)
        compared, _ = _compared(experience, rows, self._options.groups, self._options.kl_coef)
        return spread(experience, rows, rows.each_token(compared.centred)), state


def _compared(experience: Experience, rows: Rows, groups: Groups, kl_coef: float) -> tuple[Compared, Int64]:
    """What the rows earned beside the others of their groups, and the groups."""
    group = groups_of(experience, rows, groups)
    reward = row_rewards(experience, rows, kl_coef)
    return Compared.of(reward, group, experience.trajectory[rows.index]), group
