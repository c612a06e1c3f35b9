"""The actions of one iteration as arrays, their advantages, and publish receipts.

Shapes: R rows (a row is an action), N sampled tokens over all rows; D demonstrations, M tokens over all of them.
Log-probabilities are nats. Missing values are NaN or None, never a number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mappa_core.records import Bool, Float32, Int32, Int64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demonstrations:
    """Ragged array of better actions, not sampled: tokens[offsets[d]:offsets[d+1]] follow the prompt of row[d]."""

    row: Int32  # (D,) of the Experience, ascending
    tokens: Int32  # (M,)
    offsets: Int64  # (D+1,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experience:
    """One iteration of all agents, ragged: one row per action of a trained policy, in canonical order.

    Row r holds the sampled tokens[offsets[r]:offsets[r+1]] after prompt_tokens[prompt_offsets[r]:prompt_offsets[r+1]].
    Names (agents, policies, trajectories, tasks, strata) are stored once; rows hold indices into them.
    A row without a reward has reward NaN and weight 0: it contributes to no gradient, baseline or normaliser.
    Absent optional columns are None, never zeros.
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
    group: Int32  # (R,) group of the (task, agent, turn): the siblings that a group baseline compares
    stratum: Int32  # (R,)
    position: Int32  # (R,) index among all actions of the trajectory
    turn: Int32  # (R,) index among the agent's own actions
    truncated: Bool  # (R,)
    temperature: Float32  # (R,)
    outcome: Float32  # (R,) the workflow's main metric, NaN if the trajectory has none
    reward: Float32  # (R,) NaN if missing
    weight: Float32  # (R,)

    tokens: Int32  # (N,)
    offsets: Int64  # (R+1,)
    version: Int32  # (N,)
    logprobs: Float32  # (N,) of the sampler
    prompt_tokens: Int32
    prompt_offsets: Int64  # (R+1,)

    old_logprobs: Float32 | None = None  # (N,) of the learner before the update
    ref_logprobs: Float32 | None = None  # (N,)
    values: Float32 | None = None  # (N,)
    teacher_logprobs: Float32 | None = None  # (N,) of a teacher, NaN for rows without one
    scores: Float32 | None = None  # (R, 2) points of the last verdict by `SCORED_PHASES`, NaN if missing
    finished: Bool | None = None  # (R,) whether the row's trajectory ended without an error
    mask_tokens: Int32 | None = None  # (K,) ids that top_p and top_k left to choose from, token after token
    mask_offsets: Int64 | None = None  # (N+1,) of them; a token without any was chosen from all

    demonstrations: Demonstrations | None = None

    @property
    def lengths(self) -> Int64:
        """Sampled tokens per row, (R,)."""
        return np.diff(self.offsets)

    @property
    def row_of_token(self) -> Int64:
        """Row index of every sampled token, (N,)."""
        return np.repeat(np.arange(len(self.reward)), self.lengths)

    @property
    def token_weight(self) -> Float32:
        """Row weight of every sampled token, (N,)."""
        return self.weight[self.row_of_token]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages:
    """Output of an estimator: advantages and, with a value head, value targets."""

    advantages: Float32  # (N,), 0 on rows of weight 0
    value_targets: Float32 | None = None  # (N,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Verified publish: the version, a checksum of the weights that the sampler now holds, and the largest absolute
    difference in nats between sampler and learner on the same tokens (None: not probed)."""

    version: int
    checksum: str
    probe: float | None = None
