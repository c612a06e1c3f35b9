"""Shared parts of estimators: active rows, KL penalty, group means, whitening, and scattering back to all tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mappa_core.config.rules import at_least, check_fields
from mappa_core.credit.ragged import lengths_to_offsets
from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience
from mappa_core.records import Bool, Float64, Int32, Int64

MIN_VARIANCE = 1e-8
"""Lower bound of the variance that values are divided by: where all are equal, rounding errors are not blown up."""

_ROUNDING = 1e-18
"""Variance that rounding leaves of rewards that are equal, which are float32 and computed with in float64."""

Normalize = Literal["policy", "agent", "all", "none"]
"""Tokens that share one mean and standard deviation; `none`: no whitening."""


@dataclass
class KlOptions:
    """Options of an estimator with a KL penalty."""

    kl_coef: float = 0.0
    """KL penalty per nat of the row's summed k1 against the reference policy; 0: no reference policy."""

    def check(self) -> None:
        check_fields(self, at_least(0, "kl_coef"))


@dataclass
class TokenKlOptions(KlOptions):
    """Options of an estimator with a KL penalty in the rewards of tokens, and whitening."""

    kl_coef: float = 0.01
    """KL penalty per nat of a token's k1 against the reference policy; 0: no reference policy."""
    normalize: Normalize = "agent"
    """Tokens that share one mean and standard deviation: `policy`, `agent`, `all`; `none`: no whitening."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActiveRows:
    """K rows of an experience that have weight above 0, with their M concatenated tokens."""

    index: Int64  # (K,) indices on the experience's R axis, ascending
    tokens: Bool  # (N,) mask of the rows' tokens in the experience
    offsets: Int64  # (K+1,)
    reward: Float64  # (K,)

    @classmethod
    def from_experience(cls, experience: Experience) -> ActiveRows:
        """Select the rows of weight above 0. Raises ValueError for a row without a finite reward or without tokens."""
        return cls.from_indices(experience, np.flatnonzero(experience.weight > 0))

    @classmethod
    def from_indices(cls, experience: Experience, index: Int64) -> ActiveRows:
        """Select the rows at `index`, ascending, all of weight above 0."""
        reward, lengths = experience.reward[index].astype(np.float64), experience.lengths[index]
        for is_wrong, what in ((~np.isfinite(reward), "no finite reward"), (lengths == 0, "no token")):
            if is_wrong.any():
                raise ValueError(
                    f"step {experience.steps[index[is_wrong][0]]} has weight above 0 and {what}: the builder of an "
                    "experience gives such rows weight 0"
                )
        chosen = np.zeros(len(experience.reward), np.bool_)
        chosen[index] = True
        tokens = np.repeat(chosen, experience.lengths)
        return cls(index=index, tokens=tokens, offsets=lengths_to_offsets(lengths), reward=reward)

    @property
    def lengths(self) -> Int64:
        """Number of tokens per row, (K,)."""
        return np.diff(self.offsets)

    def sum_per_row(self, values: Float64) -> Float64:
        """Sum values (M,) over each row's tokens, (K,)."""
        # `reduceat` would take the next value for a row without tokens, which no active row is.
        return np.add.reduceat(values, self.offsets[:-1]) if len(self.index) else np.zeros(0)

    def repeat_per_token(self, values: Float64) -> Float64:
        """Repeat values (K,) for every token of their rows, (M,)."""
        return np.repeat(values, self.lengths)


def token_k1(experience: Experience, rows: ActiveRows, kl_coef: float) -> Float64:
    """Return `old_logprobs - ref_logprobs` of the rows' tokens, (M,); zeros if `kl_coef` is 0."""
    if kl_coef == 0:
        return np.zeros(rows.offsets[-1])
    old, reference = experience.old_logprobs, experience.ref_logprobs
    if old is None or reference is None:
        lacking = "ref_logprobs" if reference is None else "old_logprobs"
        raise ConfigError(
            f"estimator: kl_coef is {kl_coef:g} but the experience has no {lacking}; use an engine that keeps a "
            "reference policy, or set kl_coef to 0"
        )
    # In float64, as it is summed over the tokens of a row.
    k1 = np.subtract(old[rows.tokens], reference[rows.tokens], dtype=np.float64)
    if not np.isfinite(k1).all():
        token = np.flatnonzero(~np.isfinite(k1))[0]
        step = experience.steps[rows.index[np.searchsorted(rows.offsets, token, side="right") - 1]]
        raise ValueError(
            f"step {step}: old_logprobs - ref_logprobs is {k1[token]} at a token that is to be trained; the engine "
            "scored it wrongly, or the weights of the policy are not finite any more"
        )
    return k1


def token_rewards(experience: Experience, rows: ActiveRows, kl_coef: float) -> Float64:
    """Return the reward of every token, (M,): `-kl_coef * k1`, plus the row's reward at its last token."""
    rewards = -kl_coef * token_k1(experience, rows, kl_coef)
    rewards[rows.offsets[1:] - 1] += rows.reward
    return rewards


def row_rewards(experience: Experience, rows: ActiveRows, kl_coef: float) -> Float64:
    """Return the reward of every row minus `kl_coef` times the sum of k1 over its tokens, (K,)."""
    return rows.reward - kl_coef * rows.sum_per_row(token_k1(experience, rows, kl_coef))


def group_sizes(keys: Int64) -> Int64:
    """Return for each element the number of elements with its key."""
    return np.bincount(keys)[keys] if len(keys) else np.zeros(0, np.int64)


def group_mean(values: Float64, keys: Int32 | Int64) -> Float64:
    """Return for each element the mean over the elements with its key."""
    if not len(keys):
        return values
    # Keys are numbered over all rows, also those that are not active: numbers between may have no element.
    means: Float64 = np.bincount(keys, values) / np.maximum(np.bincount(keys), 1)
    return means[keys]


def whiten(
    experience: Experience, rows: ActiveRows, values: Float64, normalize: Normalize, rewards: Float64 | None = None
) -> Float64:
    """Whiten values (M,) over all tokens of one policy, one agent, or all rows to mean 0 and population variance 1:
    `(v - mean) / sqrt(max(variance, 1e-8))`. `none` returns them unchanged.

    `rewards` (K,) are the part of the values that was earned. Where they are all equal the values become 0: what is
    left is the KL penalty, which whitening would blow up to the strength of a reward, and an agent that became perfect
    would be pulled back.
    """
    if normalize == "none" or not len(rows.index):
        return values
    keys = {"policy": experience.policy, "agent": experience.agent, "all": np.zeros_like(experience.policy)}
    key = keys[normalize][rows.index]
    # A key without rows counts one token, to divide by; nothing reads its mean.
    count = np.maximum(np.bincount(key, rows.lengths), 1)
    mean = np.bincount(key, rows.sum_per_row(values)) / count
    centred = values - rows.repeat_per_token(mean[key])
    # Of the centred values: the mean of squares less the squared mean would lose its digits where values are large.
    variance = np.bincount(key, rows.sum_per_row(np.square(centred))) / count
    deviation = np.sqrt(np.maximum(variance, MIN_VARIANCE))
    centred /= rows.repeat_per_token(deviation[key])
    if rewards is not None:
        spread = group_mean(np.square(rewards - group_mean(rewards, key)), key)
        centred[rows.repeat_per_token(spread) <= _ROUNDING] = 0.0
    return centred


def scatter_to_tokens(
    experience: Experience, rows: ActiveRows, advantages: Float64, targets: Float64 | None = None
) -> Advantages:
    """Scatter the rows' advantages and value targets (M,) to all tokens (N,), with 0 and NaN elsewhere."""
    all_advantages = np.zeros(len(experience.tokens), dtype=np.float32)
    all_advantages[rows.tokens] = advantages
    if targets is None:
        return Advantages(advantages=all_advantages)
    all_targets = np.full_like(all_advantages, np.nan)
    all_targets[rows.tokens] = targets
    return Advantages(advantages=all_advantages, value_targets=all_targets)


def check_discount(estimator: str, name: str, value: float) -> None:
    """Raise ConfigError for a discount outside 0 to 1."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{estimator}: {name} is {value:g}; it must lie between 0 and 1")
