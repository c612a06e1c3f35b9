"""Group actions for comparison, and order the actions of each agent in a trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mappa_core.credit.estimators.common import ActiveRows, group_mean, group_sizes
from mappa_core.credit.ragged import lengths_to_offsets
from mappa_core.experience import Experience
from mappa_core.records import Bool, Float64, Int32, Int64

GroupBy = Literal["turn", "state", "episode"]
"""How an agent's actions on a task, in all its trajectories, are grouped for comparison.

- `turn`: actions of the same turn (AT-GRPO, Zhao et al. 2025, arXiv:2510.11062), at most one per trajectory: samples
  are independent given the task. Later turns may answer different prompts, which costs variance, not bias.
- `state`: actions that answer the same prompt, token for token (the anchor states of GiGPO, Feng et al. 2025,
  arXiv:2505.10978): the most precise comparison, but the smallest groups.
- `episode`: all actions. Turns with different reward levels share one mean, which costs variance.

`state` and `episode` groups may contain several actions of one trajectory. Later ones are no valid baseline for an
earlier one, since their rewards are part of its effect. `rloo` leaves out the whole own trajectory and has no bias for
any grouping. The means of the others include the row and its trajectory's other actions: in `turn` groups of n that
scales the expectation by (n - 1)/n, in the others it also biases it by how much the agent's later rewards depend on the
action.
"""


def assign_groups(experience: Experience, rows: ActiveRows, groups: GroupBy) -> Int64:
    """Return the group of every row, (K,), numbered from 0."""
    if groups == "turn":
        return experience.group[rows.index].astype(np.int64)
    # In 64 bits: the product of tasks and agents may not fit 32.
    agent_task = experience.task[rows.index].astype(np.int64) * len(experience.agents) + experience.agent[rows.index]
    if groups == "episode":
        return _number_keys(agent_task)
    starts, ends = experience.prompt_offsets[rows.index], experience.prompt_offsets[rows.index + 1]
    numbers: dict[tuple[int, bytes], int] = {}
    groups_by_row = [
        numbers.setdefault((key, experience.prompt_tokens[start:end].tobytes()), len(numbers))
        for key, start, end in zip(agent_task.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
    return np.array(groups_by_row, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupBaseline:
    """Rewards of rows relative to their groups, (K,) each."""

    centred: Float64  # reward minus the mean of its group, the row itself included; 0 if alone
    size: Int64  # rows in the group
    alone: Bool  # no other trajectory has a row in the group
    leave_one_out: Float64  # reward minus the mean of the group's rows of other trajectories; 0 if alone

    @classmethod
    def from_rewards(cls, reward: Float64, group: Int64, trajectory: Int32) -> GroupBaseline:
        # One number for each pair of group and trajectory.
        own = _number_keys(group * (trajectory.max(initial=0) + 1) + trajectory)
        size, own_size = group_sizes(group), group_sizes(own)
        alone = size == own_size
        centred = np.where(alone, 0.0, reward - group_mean(reward, group))
        # Centred rewards of a group sum to 0, so those of other trajectories sum to minus the own trajectory's.
        own_sum = group_mean(centred, own) * own_size
        leave_one_out = centred + own_sum / np.maximum(size - own_size, 1)
        return cls(centred=centred, size=size, alone=alone, leave_one_out=leave_one_out)

    def normalize(self, group: Int64, eps: float) -> Float64:
        """Return `centred / (std + eps)`, with the sample standard deviation of the group."""
        # Divided by n - 1, where n is at least 2 for all but rows that are alone, whose `centred` is 0.
        variance = group_mean(np.square(self.centred), group) * self.size / np.maximum(self.size - 1, 1)
        scaled: Float64 = self.centred / (np.sqrt(variance) + eps)
        return scaled


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentTurns:
    """Chains of rows: those of each agent in each trajectory, in the order of their positions."""

    order: Int64  # (K,) rows, chain by chain
    offsets: Int64  # (C+1,)
    finished: Bool  # (C,) whether the trajectory ended without an error

    @property
    def lengths(self) -> Int64:
        """Number of rows per chain, (C,)."""
        return np.diff(self.offsets)

    @classmethod
    def from_rows(cls, experience: Experience, rows: ActiveRows) -> AgentTurns:
        """Build the chains of `rows`. Raises ValueError if the experience has no column `finished`."""
        if experience.finished is None:
            raise ValueError("a return over several actions needs to know which trajectories are `finished`")
        agent, trajectory = experience.agent[rows.index], experience.trajectory[rows.index]
        # `lexsort` sorts by its last key first: trajectories, in them agents, of each the positions.
        order = np.lexsort((experience.position[rows.index], agent, trajectory))
        agent, trajectory = agent[order], trajectory[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (np.diff(agent) != 0) | (np.diff(trajectory) != 0)
        firsts = np.flatnonzero(begins)
        lengths = np.diff(firsts, append=len(order))
        return cls(
            order=order, offsets=lengths_to_offsets(lengths), finished=experience.finished[rows.index][order][firsts]
        )


def _number_keys(keys: Int64) -> Int64:
    """Return the index of each key among the distinct keys."""
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)
