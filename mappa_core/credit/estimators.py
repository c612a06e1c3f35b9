"""Estimators: rewards of an iteration's rows to an advantage per sampled token.

All of them see rows of weight above 0 alone: a row of weight 0 enters no return, baseline or normaliser and gets
advantage 0. A weight above 0 scales a row's gradient later on; in the statistics here every such row counts once.
They compute in float64 and keep no state. Where `kl_coef` is not 0 the rewards are lowered by it times
`old_logprobs - ref_logprobs` (k1, nats), which penalises leaving the reference policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mappa_core.credit.ragged import offsets_of, returns_to_go
from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience
from mappa_core.records import Bool, Float64, Int32, Int64

MIN_VARIANCE = 1e-8


@dataclass
class ReinforcePlusPlusOptions:
    """REINFORCE++: token-level KL, return-to-go in the row, one whitening an iteration."""

    gamma: float = 1.0
    """Discount per token, 0 to 1."""
    kl_coef: float = 0.01
    """Reward taken off per nat that a sampled token is likelier than under the reference policy; 0: no reference."""
    normalize: Literal["policy", "agent", "all", "none"] = "policy"
    """Whose tokens share one mean and one standard deviation; `none` leaves the returns as they are."""


class ReinforcePlusPlus:
    """REINFORCE++ (Hu et al. 2025). A row's reward arrives with its last token; every token pays `kl_coef * k1`; the
    returns-to-go inside the row, G, are whitened over all tokens: `(G - mean) / sqrt(max(variance, 1e-8))`, population
    variance, once per iteration."""

    def __init__(self, options: ReinforcePlusPlusOptions) -> None:
        if not 0.0 <= options.gamma <= 1.0:
            raise ConfigError(f"reinforce_plus_plus: gamma is {options.gamma:g}; it must lie between 0 and 1")
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows = _Rows.of(experience)
        rewards = -self._options.kl_coef * _k1(experience, rows, self._options.kl_coef)
        rewards[rows.offsets[1:] - 1] += rows.reward
        returns = returns_to_go(rewards, rows.offsets, self._options.gamma)
        if self._options.normalize == "none":
            return _spread(experience, rows, returns), state
        shares = {"policy": experience.policy, "agent": experience.agent, "all": np.zeros_like(experience.policy)}
        keys = shares[self._options.normalize][rows.index][rows.of_token]
        return _spread(experience, rows, _whitened(returns, keys)), state


@dataclass
class ReinforceOptions:
    """REINFORCE: the reward of the row on each of its tokens."""

    baseline: Literal["none", "mean"] = "none"
    """`mean`: subtract the mean reward of the policy's rows in this iteration."""
    kl_coef: float = 0.0
    """Reward taken off per nat of the row's summed k1 against the reference policy; 0: no reference."""


class Reinforce:
    """REINFORCE (Williams 1992): `A = R - baseline` on every token of the row, R less `kl_coef` times the row's k1."""

    def __init__(self, options: ReinforceOptions) -> None:
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows = _Rows.of(experience)
        reward = _reward(experience, rows, self._options.kl_coef)
        baselines = {"none": np.zeros_like(reward), "mean": _mean(reward, experience.policy[rows.index])}
        advantages = reward - baselines[self._options.baseline]
        return _spread(experience, rows, advantages[rows.of_token]), state


@dataclass
class RlooOptions:
    """RLOO: each row against the mean of the other rows of its group (task, agent, turn)."""

    kl_coef: float = 0.0
    """Reward taken off per nat of the row's summed k1 against the reference policy; 0: no reference."""


class Rloo:
    """REINFORCE leave-one-out (Ahmadian et al. 2024): `A_i = R_i - mean of the group's other R`, that is
    `(R_i - mean) * n / (n - 1)`, on every token of the row.

    A row alone in its group has nothing to be compared with: its advantage is 0, and its tokens still count in the
    mean over tokens that the engine takes.
    """

    def __init__(self, options: RlooOptions) -> None:
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows = _Rows.of(experience)
        reward = _reward(experience, rows, self._options.kl_coef)
        group = experience.group[rows.index]
        size = _sizes(group)
        advantages = (reward - _mean(reward, group)) * size / np.maximum(size - 1, 1)
        return _spread(experience, rows, np.where(size > 1, advantages, 0.0)[rows.of_token]), state


@dataclass
class GrpoOptions:
    """GRPO: each row against the mean and the standard deviation of its group (task, agent, turn)."""

    std: bool = True
    """Divide by the group's sample standard deviation; false is Dr. GRPO."""
    eps: float = 1e-6
    """Added to the standard deviation."""
    kl_coef: float = 0.0
    """Reward taken off per nat of the row's summed k1 against the reference policy; 0: no reference."""


class Grpo:
    """GRPO (Shao et al. 2024): `A = (R - mean) / (std + eps)` in the group, sample standard deviation, on every token
    of the row; without the division Dr. GRPO (Liu et al. 2025). A row alone in its group has advantage 0."""

    def __init__(self, options: GrpoOptions) -> None:
        if options.std and not options.eps > 0:
            raise ConfigError(f"grpo: eps is {options.eps:g}; it must be above 0, for groups of equal rewards")
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows = _Rows.of(experience)
        reward = _reward(experience, rows, self._options.kl_coef)
        group = experience.group[rows.index]
        size = _sizes(group)
        advantages = np.where(size > 1, reward - _mean(reward, group), 0.0)
        if self._options.std:
            variance = _mean(advantages**2, group) * size / np.maximum(size - 1, 1)
            advantages = advantages / (np.sqrt(variance) + self._options.eps)
        return _spread(experience, rows, advantages[rows.of_token]), state


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """The K rows that count, with their M tokens laid end to end."""

    index: Int64  # (K,) on the experience's R axis
    tokens: Bool  # (N,) which of the experience's tokens these are
    offsets: Int64  # (K+1,)
    of_token: Int64  # (M,) 0..K-1
    reward: Float64  # (K,)

    @classmethod
    def of(cls, experience: Experience) -> _Rows:
        counts = experience.weight > 0
        index = np.flatnonzero(counts)
        reward = experience.reward[index].astype(np.float64)
        if not np.isfinite(reward).all():
            row = index[~np.isfinite(reward)][0]
            raise ValueError(f"step {experience.steps[row]} has weight above 0 and no finite reward")
        lengths = experience.lengths[index]
        return cls(
            index=index,
            tokens=np.repeat(counts, experience.lengths),
            offsets=offsets_of(lengths),
            of_token=np.repeat(np.arange(len(index)), lengths),
            reward=reward,
        )


def _k1(experience: Experience, rows: _Rows, kl_coef: float) -> Float64:
    """`old_logprobs - ref_logprobs` of the tokens that count, (M,); zeros where no KL is asked for."""
    if kl_coef == 0:
        return np.zeros(rows.offsets[-1], dtype=np.float64)
    old, reference = experience.old_logprobs, experience.ref_logprobs
    if old is None or reference is None:
        lacking = "ref_logprobs" if reference is None else "old_logprobs"
        raise ConfigError(
            f"estimator: kl_coef is {kl_coef:g} but the experience has no {lacking}; use an engine that keeps a "
            "reference policy, or set kl_coef to 0"
        )
    k1 = old[rows.tokens].astype(np.float64) - reference[rows.tokens]
    if not np.isfinite(k1).all():
        raise ValueError("old_logprobs - ref_logprobs is not finite at a token that is to be trained")
    return k1


def _reward(experience: Experience, rows: _Rows, kl_coef: float) -> Float64:
    """The reward of every row less its summed KL penalty, (K,)."""
    k1 = np.bincount(rows.of_token, _k1(experience, rows, kl_coef), minlength=len(rows.index))
    return rows.reward - kl_coef * k1


def _sizes(keys: Int32) -> Int64:
    """How many elements have the key of each element."""
    return np.bincount(keys)[keys] if len(keys) else np.zeros(0, np.int64)


def _mean(values: Float64, keys: Int32) -> Float64:
    """For each element the mean over the elements with its key."""
    if not len(keys):
        return values
    means: Float64 = np.bincount(keys, values) / np.maximum(np.bincount(keys), 1)
    return means[keys]


def _whitened(values: Float64, keys: Int32) -> Float64:
    """Mean 0 and population variance 1 over the elements of each key."""
    centred = values - _mean(values, keys)
    scale: Float64 = np.sqrt(np.maximum(_mean(centred**2, keys), MIN_VARIANCE))
    return centred / scale


def _spread(experience: Experience, rows: _Rows, advantages: Float64) -> Advantages:
    """Per-token advantages of the rows that count at their places, 0 elsewhere."""
    spread = np.zeros(len(experience.tokens), dtype=np.float32)
    spread[rows.tokens] = advantages
    return Advantages(advantages=spread)
