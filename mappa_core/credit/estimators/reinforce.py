"""REINFORCE and REINFORCE++: a policy's, an agent's or everyone's tokens share a baseline and a scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mappa_core.credit.estimators.groups import Compared, Groups, groups_of
from mappa_core.credit.estimators.rows import (
    Normalize,
    Rows,
    check_discount,
    k1,
    mean,
    row_rewards,
    spread,
    token_rewards,
    whitened,
)
from mappa_core.credit.ragged import returns_to_go
from mappa_core.experience import Advantages, Experience


@dataclass
class ReinforceOptions:
    """REINFORCE: the reward of the row on each of its tokens."""

    baseline: Literal["none", "mean"] = "none"
    """`mean`: subtract the mean reward of the policy's rows in this iteration."""
    kl_coef: float = 0.0
    """Reward taken off per nat of the row's summed k1 against the reference policy; 0: no reference."""


class Reinforce:
    """REINFORCE (Williams 1992): `A = R - baseline` on every token of the row, R less `kl_coef` times the row's k1.

    Without a baseline there is no bias, whatever the number of rows. The mean holds the row itself: with n rows of a
    policy, each of a trajectory of its own, it scales the expectation by (n - 1)/n; with several rows of a trajectory
    it also bends it by how much later own rewards hang on the action.
    """

    def __init__(self, options: ReinforceOptions) -> None:
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows = Rows.of(experience)
        reward = row_rewards(experience, rows, self._options.kl_coef)
        baselines = {"none": np.zeros_like(reward), "mean": mean(reward, experience.policy[rows.index])}
        return spread(experience, rows, rows.each_token(reward - baselines[self._options.baseline])), state


@dataclass
class ReinforcePlusPlusOptions:
    """REINFORCE++: token-level KL, return-to-go in the row, one whitening an iteration."""

    gamma: float = 1.0
    """Discount per token, 0 to 1."""
    kl_coef: float = 0.01
    """Reward taken off per nat that a sampled token is likelier than under the reference policy; 0: no reference."""
    normalize: Normalize = "policy"
    """Whose tokens share one mean and one standard deviation; `none` leaves the returns as they are."""


class ReinforcePlusPlus:
    """REINFORCE++ (Hu et al. 2025, arXiv:2501.03262). A row's reward arrives with its last token; every token pays
    `kl_coef * k1`; the returns-to-go inside the row, G, are whitened over all tokens:
    `A = (G - mean) / sqrt(max(variance, 1e-8))`, population variance, once per iteration.

    Long rows have more say in the mean, and the mean and the scale hold the row itself: biased by design, the less the
    more tokens there are. Without normalisation and with gamma 1 there is no bias.
    """

    def __init__(self, options: ReinforcePlusPlusOptions) -> None:
        check_discount("reinforce_plus_plus", "gamma", options.gamma)
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows, options = Rows.of(experience), self._options
        returns = returns_to_go(token_rewards(experience, rows, options.kl_coef), rows.offsets, options.gamma)
        return spread(experience, rows, whitened(experience, rows, returns, options.normalize)), state


@dataclass
class ReinforcePlusPlusBaselineOptions:
    """REINFORCE++-baseline: the reward less its group's mean, token-level KL, one whitening an iteration."""

    groups: Groups = "turn"
    """Of one agent and task: `turn` (the same turn), `state` (the same prompt), `episode` (all actions)."""
    kl_coef: float = 0.01
    """Reward taken off per nat that a sampled token is likelier than under the reference policy; 0: no reference."""
    normalize: Normalize = "policy"
    """Whose tokens share one mean and one standard deviation; `none` leaves the returns as they are."""


class ReinforcePlusPlusBaseline:
    """REINFORCE++-baseline (Hu et al. 2025, arXiv:2501.03262): the reward less the mean of its group arrives with the
    row's last token; every token pays `kl_coef * k1`, which no mean is taken off; the returns-to-go inside the row,
    undiscounted, are whitened as in REINFORCE++.

    A row that has nothing to be compared with has advantage 0 and enters no normaliser.
    """

    def __init__(self, options: ReinforcePlusPlusBaselineOptions) -> None:
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        every, options = Rows.of(experience), self._options
        group = groups_of(experience, every, options.groups)
        compared = Compared.of(every.reward, group, experience.trajectory[every.index])
        rows = Rows.at(experience, every.index[~compared.alone])
        rewards = -options.kl_coef * k1(experience, rows, options.kl_coef)
        rewards[rows.offsets[1:] - 1] += compared.centred[~compared.alone]
        returns = returns_to_go(rewards, rows.offsets, 1.0)
        return spread(experience, rows, whitened(experience, rows, returns, options.normalize)), state
