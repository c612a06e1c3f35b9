"""REINFORCE, REINFORCE++ and REINFORCE++-baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mappa_core.credit.estimators.common import (
    ActiveRows,
    KlOptions,
    TokenKlOptions,
    check_discount,
    group_mean,
    row_rewards,
    scatter_to_tokens,
    token_k1,
    token_rewards,
    whiten,
)
from mappa_core.credit.estimators.grouping import GroupBaseline, GroupBy, assign_groups
from mappa_core.credit.ragged import returns_to_go
from mappa_core.experience import Advantages, Experience


@dataclass
class ReinforceOptions(KlOptions):
    """REINFORCE: the reward of the row on each of its tokens."""

    baseline: Literal["none", "mean"] = "none"
    """`mean`: subtract the mean reward of the policy's rows in this iteration."""


class Reinforce:
    """REINFORCE (Williams 1992): `A = R - baseline` on every token of the row, R minus `kl_coef` times the row's k1.

    Without a baseline there is no bias for any number of rows. The mean includes the row itself: with n rows of a
    policy, each of a different trajectory, it scales the expectation by (n - 1)/n; with several rows per trajectory it
    also biases it by how much the agent's later rewards depend on the action.
    """

    def __init__(self, options: ReinforceOptions) -> None:
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows = ActiveRows.from_experience(experience)
        reward = row_rewards(experience, rows, self._options.kl_coef)
        if self._options.baseline == "mean":
            reward = reward - group_mean(reward, experience.policy[rows.index])
        return scatter_to_tokens(experience, rows, rows.repeat_per_token(reward)), state


@dataclass
class ReinforcePlusPlusOptions(TokenKlOptions):
    """REINFORCE++: token-level KL, return-to-go within the row, whitening once per iteration."""

    gamma: float = 1.0
    """Discount per token, 0 to 1."""


class ReinforcePlusPlus:
    """REINFORCE++ (Hu et al. 2025, arXiv:2501.03262). A row's reward is added at its last token, and
    `kl_coef * k1` subtracted at every token; the returns-to-go within the row, G, are whitened over all tokens:
    `A = (G - mean) / sqrt(max(variance, 1e-8))`, population variance, once per iteration. Where the rewards that are
    whitened together are all equal, A is 0: there is no reward to set against the KL penalty.

    Long rows weigh more in the mean, and mean and scale include the row itself: biased by design, less so with more
    tokens. Without normalisation and with gamma 1 there is no bias.
    """

    def __init__(self, options: ReinforcePlusPlusOptions) -> None:
        check_discount("reinforce_plus_plus", "gamma", options.gamma)
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows, options = ActiveRows.from_experience(experience), self._options
        rewards = token_rewards(experience, rows, options.kl_coef)
        returns = returns_to_go(rewards, rows.offsets, options.gamma)
        advantages = whiten(experience, rows, returns, options.normalize, rows.reward)
        return scatter_to_tokens(experience, rows, advantages), state


@dataclass
class ReinforcePlusPlusBaselineOptions(TokenKlOptions):
    """REINFORCE++-baseline: reward minus its group's mean, token-level KL, whitening once per iteration."""

    groups: GroupBy = "turn"
    """Groups within one agent and task: `turn` (same turn), `state` (same prompt), `episode` (all actions)."""


class ReinforcePlusPlusBaseline:
    """REINFORCE++-baseline (Hu et al. 2025, arXiv:2501.03262): the reward minus the mean of its group is added at the
    row's last token, and `kl_coef * k1`, without a baseline, subtracted at every token; the undiscounted returns-to-go
    within the row are whitened as in REINFORCE++.

    A row without siblings has advantage 0 and enters no normaliser.
    """

    def __init__(self, options: ReinforcePlusPlusBaselineOptions) -> None:
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        active, options = ActiveRows.from_experience(experience), self._options
        group = assign_groups(experience, active, options.groups)
        baseline = GroupBaseline.from_rewards(active.reward, group, experience.trajectory[active.index])
        # Rows that are alone have nothing to be compared with; their zeros would shrink the standard deviation.
        rows = ActiveRows.from_indices(experience, active.index[~baseline.alone])
        earned = baseline.centred[~baseline.alone]
        rewards = -options.kl_coef * token_k1(experience, rows, options.kl_coef)
        rewards[rows.offsets[1:] - 1] += earned
        returns = returns_to_go(rewards, rows.offsets, 1.0)
        advantages = whiten(experience, rows, returns, options.normalize, earned)
        return scatter_to_tokens(experience, rows, advantages), state
