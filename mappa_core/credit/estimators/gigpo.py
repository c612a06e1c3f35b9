"""GiGPO: whole episodes beside each other, and steps from one state beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mappa_core.credit.estimators.groups import Chains, Compared, groups_of
from mappa_core.credit.estimators.rows import Rows, check_discount, row_rewards, spread
from mappa_core.credit.ragged import returns_to_go
from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience
from mappa_core.records import Float64, Int32, Int64


@dataclass
class GigpoOptions:
    """GiGPO: an agent's episodes, and its steps from one state, each against their group."""

    gamma: float = 0.95
    """Discount per own action of the returns that steps are compared by, 0 to 1."""
    step_weight: float = 1.0
    """Factor of the step's part beside the episode's (omega)."""
    scale: Literal["std", "none"] = "std"
    """`std`: each part is divided by its group's sample standard deviation + eps."""
    eps: float = 1e-6
    """Added to the standard deviation."""
    groups: Literal["state", "turn"] = "state"
    """Which steps of an agent and task are compared: `state` (the same prompt), `turn` (the same turn)."""
    kl_coef: float = 0.0
    """Reward taken off per nat of the row's summed k1 against the reference policy; 0: no reference."""


class Gigpo:
    """GiGPO (Feng et al. 2025, arXiv:2505.10978), for each agent over its own actions. With r_k the reward of the
    agent's k-th action in a trajectory, on every token of the action

        A_k = F(sum of r over the trajectory) + step_weight * F(G_k),    G_k = r_k + gamma * G_{k+1},
        F(x) = (x - mean) / (std + eps), or x - mean.

    The first mean is over the agent's episodes of a task, one number a trajectory; the second over the actions that
    answered the same prompt, token for token, those of other turns included. A part that has nothing of another
    trajectory to be compared with is 0.

    Rewards are per action and added up: an outcome that every action was given counts once for each. An action whose
    reward is missing is no action. A trajectory that ended in an error has no whole return: its rows have advantage 0
    and enter no group.

    Biased by design as GRPO is, by own means and standard deviations; and an action of a group to which its trajectory
    comes back is compared with what it led to itself.
    """

    def __init__(self, options: GigpoOptions) -> None:
        check_discount("gigpo", "gamma", options.gamma)
        if options.scale == "std" and not options.eps > 0:
            raise ConfigError(f"gigpo: eps is {options.eps:g}; it must be above 0, for groups of equal rewards")
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        every, options = Rows.of(experience), self._options
        chains = Chains.of(experience, every)
        rows = Rows.at(experience, np.sort(every.index[chains.order[np.repeat(chains.finished, chains.lengths)]]))
        chains = Chains.of(experience, rows)
        reward = row_rewards(experience, rows, options.kl_coef)[chains.order]
        totals = np.add.reduceat(reward, chains.offsets[:-1]) if len(reward) else reward
        firsts = rows.index[chains.order[chains.offsets[:-1]]]
        place = experience.task[firsts].astype(np.int64) * len(experience.agents) + experience.agent[firsts]
        episodes = self._against(totals, np.unique(place, return_inverse=True)[1], experience.trajectory[firsts])
        returns = np.empty_like(reward)
        returns[chains.order] = returns_to_go(reward, chains.offsets, options.gamma)
        group = groups_of(experience, rows, options.groups)
        advantages = options.step_weight * self._against(returns, group, experience.trajectory[rows.index])
        advantages[chains.order] += np.repeat(episodes, chains.lengths)
        return spread(experience, rows, rows.each_token(advantages)), state

    def _against(self, values: Float64, group: Int64, trajectory: Int32) -> Float64:
        compared = Compared.of(values, group, trajectory)
        return compared.centred if self._options.scale == "none" else compared.over_std(group, self._options.eps)
