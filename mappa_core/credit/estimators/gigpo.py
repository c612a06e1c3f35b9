"""GiGPO: group-relative advantages of episodes and of steps from the same state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mappa_core.credit.estimators.common import ActiveRows, KlOptions, check_discount, row_rewards, scatter_to_tokens
from mappa_core.credit.estimators.grouping import AgentTurns, GroupBaseline, assign_groups
from mappa_core.credit.ragged import returns_to_go
from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience
from mappa_core.records import Float64, Int32, Int64


@dataclass
class GigpoOptions(KlOptions):
    """GiGPO: an agent's episodes and its steps from one state, each relative to its group."""

    gamma: float = 0.95
    """Discount per own action in the returns of steps, 0 to 1."""
    step_weight: float = 1.0
    """Weight of the step advantage relative to the episode advantage (omega)."""
    scale: Literal["std", "none"] = "std"
    """`std`: divide each advantage by its group's sample standard deviation + eps."""
    eps: float = 1e-6
    """Added to the standard deviation."""
    groups: Literal["state", "turn"] = "state"
    """Groups of steps within one agent and task: `state` (same prompt), `turn` (same turn)."""


class Gigpo:
    """GiGPO (Feng et al. 2025, arXiv:2505.10978), for each agent over its own actions. With r_k the reward of the
    agent's k-th action in a trajectory, on every token of the action

        A_k = F(sum of r over the trajectory) + step_weight * F(G_k),    G_k = r_k + gamma * G_{k+1},
        F(x) = (x - mean) / (std + eps), or x - mean.

    The first mean is over the agent's episodes of a task, one value per trajectory; the second over the actions that
    answered the same prompt, token for token, in any turn. A term without another trajectory in its group is 0.

    Rewards are per action and summed: an outcome given to every action counts once per action. An action without a
    reward is left out. A trajectory that ended in an error has no complete return: its rows have advantage 0 and enter
    no group.

    Biased by design like GRPO, as mean and standard deviation include the row itself; also, if a trajectory returns to
    the same state, an action is compared with its own consequences.
    """

    def __init__(self, options: GigpoOptions) -> None:
        check_discount("gigpo", "gamma", options.gamma)
        if options.scale == "std" and not options.eps > 0:
            raise ConfigError(f"gigpo: eps is {options.eps:g}; it must be above 0, for groups of equal rewards")
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        options = self._options
        rows = _finished_rows(experience)
        turns = AgentTurns.from_rows(experience, rows)
        reward = row_rewards(experience, rows, options.kl_coef)[turns.order]  # Chain by chain.
        # Episode: one value for each agent and trajectory, in a group with those of the same task.
        totals = np.add.reduceat(reward, turns.offsets[:-1]) if len(reward) else reward
        firsts = rows.index[turns.order[turns.offsets[:-1]]]
        # Numbered as one key, tasks by agents, in 64 bits: the product may not fit 32.
        agent_task = experience.task[firsts].astype(np.int64) * len(experience.agents) + experience.agent[firsts]
        episode_group = np.unique(agent_task, return_inverse=True)[1]
        episodes = self._relative_to_group(totals, episode_group, experience.trajectory[firsts])
        # Step: one value for each action, in a group with those that answer the same state.
        returns = np.empty_like(reward)
        returns[turns.order] = returns_to_go(reward, turns.offsets, options.gamma)
        step_group = assign_groups(experience, rows, options.groups)
        steps = self._relative_to_group(returns, step_group, experience.trajectory[rows.index])
        advantages = options.step_weight * steps
        advantages[turns.order] += np.repeat(episodes, turns.lengths)
        return scatter_to_tokens(experience, rows, rows.repeat_per_token(advantages)), state

    def _relative_to_group(self, values: Float64, group: Int64, trajectory: Int32) -> Float64:
        baseline = GroupBaseline.from_rewards(values, group, trajectory)
        if self._options.scale == "none":
            return baseline.centred
        return baseline.normalize(group, self._options.eps)


def _finished_rows(experience: Experience) -> ActiveRows:
    """Active rows of trajectories that ended without an error: only those have complete returns."""
    active = ActiveRows.from_experience(experience)
    turns = AgentTurns.from_rows(experience, active)
    finished = turns.order[np.repeat(turns.finished, turns.lengths)]
    return ActiveRows.from_indices(experience, np.sort(active.index[finished]))
