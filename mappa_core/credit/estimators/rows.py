"""What all estimators share: the rows that count, their KL penalty, means and whitening over rows, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mappa_core.credit.ragged import offsets_of
from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience
from mappa_core.records import Bool, Float64, Int32, Int64

MIN_VARIANCE = 1e-8

Normalize = Literal["policy", "agent", "all", "none"]
"""Whose tokens share one mean and one standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """K of an experience's rows, with their M tokens laid end to end."""

    index: Int64  # (K,) on the experience's R axis, ascending
    tokens: Bool  # (N,) which of the experience's tokens these are
    offsets: Int64  # (K+1,)
    reward: Float64  # (K,)

    @classmethod
    def of(cls, experience: Experience) -> Rows:
        """The rows that count. Raises ValueError for one without a finite reward or without a token."""
        return cls.at(experience, np.flatnonzero(experience.weight > 0))

    @classmethod
    def at(cls, experience: Experience, index: Int64) -> Rows:
        """The rows at `index`, ascending, all of which count."""
        reward, lengths = experience.reward[index].astype(np.float64), experience.lengths[index]
        for wrong, what in ((~np.isfinite(reward), "no finite reward"), (lengths == 0, "no token")):
            if wrong.any():
                raise ValueError(f"step {experience.steps[index[wrong][0]]} has weight above 0 and {what}")
        chosen = np.zeros(len(experience.reward), np.bool_)
        chosen[index] = True
        tokens = np.repeat(chosen, experience.lengths)
        return cls(index=index, tokens=tokens, offsets=offsets_of(lengths), reward=reward)

    @property
    def lengths(self) -> Int64:
        """Tokens per row, (K,)."""
        return np.diff(self.offsets)

    def sums(self, values: Float64) -> Float64:
        """The sum over each row's tokens, (K,), of values (M,)."""
        return np.add.reduceat(values, self.offsets[:-1]) if len(self.index) else np.zeros(0)

    def each_token(self, values: Float64) -> Float64:
        """Values (K,) on every token of their rows, (M,)."""
        return np.repeat(values, self.lengths)


def k1(experience: Experience, rows: Rows, kl_coef: float) -> Float64:
    """`old_logprobs - ref_logprobs` of the rows' tokens, (M,); zeros where no KL is asked for."""
    if kl_coef == 0:
        return np.zeros(rows.offsets[-1])
    old, reference = experience.old_logprobs, experience.ref_logprobs
    if old is None or reference is None:
        lacking = "ref_logprobs" if reference is None else "old_logprobs"
        raise ConfigError(
            f"estimator: kl_coef is {kl_coef:g} but the experience has no {lacking}; use an engine that keeps a "
            "reference policy, or set kl_coef to 0"
        )
    found = np.subtract(old[rows.tokens], reference[rows.tokens], dtype=np.float64)
    if not np.isfinite(found).all():
        raise ValueError("old_logprobs - ref_logprobs is not finite at a token that is to be trained")
    return found


def token_rewards(experience: Experience, rows: Rows, kl_coef: float) -> Float64:
    """What every token earns, (M,): `-kl_coef * k1`, and with its row's last token the row's reward."""
    rewards = -kl_coef * k1(experience, rows, kl_coef)
    rewards[rows.offsets[1:] - 1] += rows.reward
    return rewards


def row_rewards(experience: Experience, rows: Rows, kl_coef: float) -> Float64:
    """What every row earns, (K,): its reward less `kl_coef` times the sum of k1 over its tokens."""
    return rows.reward - kl_coef * rows.sums(k1(experience, rows, kl_coef))


def sizes(keys: Int64) -> Int64:
    """How many elements have the key of each element."""
    return np.bincount(keys)[keys] if len(keys) else np.zeros(0, np.int64)


def mean(values: Float64, keys: Int32 | Int64) -> Float64:
    """For each element the mean over the elements with its key."""
    if not len(keys):
        return values
    means: Float64 = np.bincount(keys, values) / np.maximum(np.bincount(keys), 1)
    return means[keys]


def whitened(experience: Experience, rows: Rows, values: Float64, normalize: Normalize) -> Float64:
    """`(v - mean) / sqrt(max(variance, 1e-8))` over all tokens of the rows of one policy, one agent, or all: values
    (M,) with mean 0 and population variance 1. `none` leaves them as they are."""
    if normalize == "none" or not len(rows.index):
        return values
    keys = {"policy": experience.policy, "agent": experience.agent, "all": np.zeros_like(experience.policy)}
    key = keys[normalize][rows.index]
    count = np.maximum(np.bincount(key, rows.lengths), 1)
    centred = values - rows.each_token((np.bincount(key, rows.sums(values)) / count)[key])
    variance = np.bincount(key, rows.sums(np.square(centred))) / count
    centred /= rows.each_token(np.sqrt(np.maximum(variance, MIN_VARIANCE))[key])
    return centred


def spread(experience: Experience, rows: Rows, advantages: Float64, targets: Float64 | None = None) -> Advantages:
    """Per-token advantages (M,) and value targets (M,) of the rows at their places; elsewhere 0, and NaN."""
    everywhere = np.zeros(len(experience.tokens), dtype=np.float32)
    everywhere[rows.tokens] = advantages
    if targets is None:
        return Advantages(advantages=everywhere)
    known = np.full(len(experience.tokens), np.nan, dtype=np.float32)
    known[rows.tokens] = targets
    return Advantages(advantages=everywhere, value_targets=known)


def check_discount(estimator: str, name: str, value: float) -> None:
    """Raise ConfigError for a discount outside 0 to 1."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{estimator}: {name} is {value:g}; it must lie between 0 and 1")
