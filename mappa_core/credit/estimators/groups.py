"""Which actions are compared with each other, and the own actions of one trajectory in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mappa_core.credit.estimators.rows import Rows, mean, sizes
from mappa_core.credit.ragged import offsets_of
from mappa_core.experience import Experience
from mappa_core.records import Bool, Float64, Int32, Int64

Groups = Literal["turn", "state", "episode"]
"""Which of an agent's actions on a task, in all its trajectories, are compared with each other.

`turn`: those of the same turn (AT-GRPO's agent-and-turn-wise groups, Zhao et al. 2025, arXiv:2510.11062). At most one
of each trajectory, so that a group holds independent samples given the task; later turns may answer different prompts,
which costs variance, not bias.

`state`: those that answer the same prompt, token for token (the anchor states of GiGPO, Feng et al. 2025,
arXiv:2505.10978). The comparison is the sharpest, and the groups the smallest: many are of one action.

`episode`: all of them. Turns whose rewards differ in level are measured against one mean, which costs variance.

In `state` and `episode` groups there may be several actions of one trajectory. What an action led to is in the rewards
of the agent's later actions, so these are no baseline for it: subtracting them takes part of its own effect away.
`rloo` leaves the whole own trajectory out and has no bias by any grouping. The means of the others hold the row itself
and its trajectory's other actions: in `turn` groups of n that scales the expectation by (n - 1)/n, in the others it
also bends it by how much own later rewards hang on the action.
"""


def groups_of(experience: Experience, rows: Rows, groups: Groups) -> Int64:
    """The group of every row, (K,), numbered from 0."""
    if groups == "turn":
        return experience.group[rows.index].astype(np.int64)
    place = experience.task[rows.index].astype(np.int64) * len(experience.agents) + experience.agent[rows.index]
    if groups == "episode":
        return _numbered(place)
    starts, ends = experience.prompt_offsets[rows.index], experience.prompt_offsets[rows.index + 1]
    numbers: dict[tuple[int, bytes], int] = {}
    found = [
        numbers.setdefault((key, experience.prompt_tokens[start:end].tobytes()), len(numbers))
        for key, start, end in zip(place.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compared:
    """Rewards of rows beside those of their groups, (K,) each."""

    centred: Float64  # the reward less the mean of its group, the row itself included; 0 where alone
    size: Int64  # of the group
    alone: Bool  # no other trajectory has a row in the group, so there is nothing to compare with
    left_out: Float64  # the reward less the mean of the group's rows of other trajectories; 0 where alone

    @classmethod
    def of(cls, reward: Float64, group: Int64, trajectory: Int32) -> Compared:
        own = _numbered(group * (trajectory.max(initial=0) + 1) + trajectory)
        size, own_size = sizes(group), sizes(own)
        alone = size == own_size
        centred = np.where(alone, 0.0, reward - mean(reward, group))
        # The centred rewards of a group add up to 0, so those of the others to less their own trajectory's.
        left_out = centred + mean(centred, own) * own_size / np.maximum(size - own_size, 1)
        return cls(centred=centred, size=size, alone=alone, left_out=left_out)

    def over_std(self, group: Int64, eps: float) -> Float64:
        """`centred / (std + eps)`, by the sample standard deviation of the group."""
        variance = mean(np.square(self.centred), group) * self.size / np.maximum(self.size - 1, 1)
        scaled: Float64 = self.centred / (np.sqrt(variance) + eps)
        return scaled


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chains:
    """The rows of each agent in each trajectory, in the order in which they were taken."""

    order: Int64  # (K,) rows, chain after chain
    offsets: Int64  # (C+1,)
    finished: Bool  # (C,) whether the trajectory ended without an error

    @property
    def lengths(self) -> Int64:
        """Rows per chain, (C,)."""
        return np.diff(self.offsets)

    @classmethod
    def of(cls, experience: Experience, rows: Rows) -> Chains:
        """Raises ValueError where the experience does not say which trajectories are finished."""
        if experience.finished is None:
            raise ValueError("a return over several actions needs to know which trajectories are `finished`")
        agent, trajectory = experience.agent[rows.index], experience.trajectory[rows.index]
        order = np.lexsort((experience.position[rows.index], agent, trajectory))
        agent, trajectory = agent[order], trajectory[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (np.diff(agent) != 0) | (np.diff(trajectory) != 0)
        firsts = np.flatnonzero(begins)
        lengths = np.diff(firsts, append=len(order))
        return cls(order=order, offsets=offsets_of(lengths), finished=experience.finished[rows.index][order][firsts])


def _numbered(keys: Int64) -> Int64:
    """The number of each key among the distinct ones."""
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)
