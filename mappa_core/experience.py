"""The nouns of learning: the actions of one iteration as arrays, and what is made of them.

Shapes: R rows (a row is an action), N sampled tokens over all rows; D demonstrations, M tokens over all of them.
Log-probabilities are nats. Missing is NaN or None, never a number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mappa_core.records import Bool, Float32, Int32, Int64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demonstrations:
    """Better actions in full, which nobody sampled, ragged. Demonstration d stands where the action of a row stands:
    after that row's prompt come tokens[offsets[d]:offsets[d+1]], the last of which ends it."""

    row: Int32  # (D,) of the Experience, ascending
    tokens: Int32  # (M,)
    offsets: Int64  # (D+1,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experience:
    """One iteration of all agents, ragged: one row per action of a trained policy, in canonical order.

    Row r samples tokens[offsets[r]:offsets[r+1]] after prompt_tokens[prompt_offsets[r]:prompt_offsets[r+1]].
    Names (agents, policies, trajectories, tasks, strata) are stored once; rows hold indices into them.
    A row whose reward is missing has reward NaN and weight 0: it carries no gradient, enters no baseline and no
    normaliser. Optional columns are None, never zeros.
    """

    agents: tuple[str, ...]
    policies: tuple[str, ...]
    trajectories: tuple[str, ...]
    tasks: tuple[str, ...]
    strata: tuple[str, ...]
    steps: tuple[str, ...]  # (R,) ids

    agent: Int32  # (R,)
    policy: Int32  # (R,)
    trajectory: Int32  # (R,)
    task: Int32  # (R,)
    group: Int32  # (R,) rows of one (task, agent, turn): the siblings a group baseline compares
    stratum: Int32  # (R,)
    position: Int32  # (R,) place among all actions of the trajectory
    turn: Int32  # (R,) place among the agent's own actions
    truncated: Bool  # (R,)
    temperature: Float32  # (R,)
    outcome: Float32  # (R,) the workflow's main metric, NaN where the trajectory has none
    reward: Float32  # (R,) NaN where missing
    weight: Float32  # (R,)

    tokens: Int32  # (N,)
    offsets: Int64  # (R+1,)
    version: Int32  # (N,)
    logprobs: Float32  # (N,) of the sampler
    prompt_tokens: Int32
    prompt_offsets: Int64  # (R+1,)

    old_logprobs: Float32 | None = None  # (N,) of the learner, before the update
    ref_logprobs: Float32 | None = None  # (N,)
    values: Float32 | None = None  # (N,)
    finished: Bool | None = None  # (R,) whether the row's trajectory ended without an error

    demonstrations: Demonstrations | None = None

    @property
    def lengths(self) -> Int64:
        """Sampled tokens per row, (R,)."""
        return np.diff(self.offsets)

    @property
    def row_of_token(self) -> Int64:
        """The row of every sampled token, (N,)."""
        return np.repeat(np.arange(len(self.reward)), self.lengths)

    @property
    def token_weight(self) -> Float32:
        """The weight of every sampled token, (N,)."""
        return self.weight[self.row_of_token]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages:
    """What an estimator returns: an advantage per sampled token and, for estimators with a value head, its targets."""

    advantages: Float32  # (N,), 0 on rows of weight 0
    value_targets: Float32 | None = None  # (N,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Proof of a publish: the version, a checksum of the weights that the sampler now holds, and the probe: the
    largest absolute difference in nats of sampler and learner log-probabilities on the same tokens (None: no probe)."""

    version: int
    checksum: str
    probe: float | None = None
