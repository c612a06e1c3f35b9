"""Importance weights that correct the mismatch between sampler and learner.

A sampler and a learner compute the same distribution with different kernels and, with `max_staleness`, with different
weights, so training is off-policy. Weighting each token or action by `w = learner / sampler` restores the learner's
expectation at the price of variance, which a cap bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mappa_core.engine import CorrectionSection, Experience, element_indices
from mappa_engine.arrays import Bool, Float32, Float64, Int64

_EXPONENT = 700.0
"""Largest exponent whose exp fits in float64, rounded down."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImportanceWeights:
    """`weights` (N,), NaN on tokens of other rows; None if nothing is corrected. Metrics are empty only if there are no
    rows."""

    weights: Float32 | None
    metrics: Mapping[str, float]


def compute_importance_weights(experience: Experience, rows: Int64, settings: CorrectionSection) -> ImportanceWeights:
    """Compute the weights of the tokens of `rows` in the policy loss, from a scored experience; they carry no gradient.

    `w = exp(old_logprobs - logprobs)`. `level`: one weight per token, or per action: the product over its tokens,
    applied to each of them. `kind`: `truncate` gives min(w, cap) (Ionides 2008; for sampler and learner: Yao et al.,
    "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025); `mask` gives w from `floor` (1/cap
    where it is not set) to cap and 0 beyond (IcePop: arXiv:2510.18855); per action as in Liu et al., "When Speed Kills
    Stability", 2025. The geometric mean that GSPO clips by (arXiv:2507.18071) is no importance weight; it says whether
    an action's tokens are off throughout, however long it is. Actions for which it leaves `geometric_low` to
    `geometric_high` weigh 0, whatever the `kind` (sequence masks by the geometric mean, ibid.). A token whose ratio is
    unknown (NaN) has weight 0, and so has its whole action if `level` is `sequence` or the mean is bounded.

    Metrics: `mismatch_max`, `mismatch_mean` of |old - sampled| and `mismatch_kl` (k3, of the learner from the sampler)
    in nats per token, NaN if a log-probability is missing; `ess`, the effective sample size as a share of tokens or
    actions (Kong 1992), before any cap; `correction_share`, the tokens that were truncated, masked or filtered.
    """
    if experience.old_logprobs is None:
        raise ValueError("an experience is scored before it is corrected")
    if not len(rows):
        return ImportanceWeights(weights=None, metrics={})
    source = element_indices(experience.offsets, rows)
    with np.errstate(invalid="ignore"):  # -inf - -inf is unknown as well
        gap = experience.old_logprobs[source].astype(np.float64) - experience.logprobs[source]
    lengths = experience.lengths[rows]
    by_row = settings.level == "sequence"
    logs = _by_row(gap, lengths) if by_row else gap
    values, capped = _capped(logs, settings)
    if by_row:
        values, capped = np.repeat(values, lengths), np.repeat(capped, lengths)
    filtered = np.repeat(_is_filtered(gap, lengths, settings), lengths)
    values, capped = np.where(filtered, 0.0, values), capped | filtered
    metrics = {**_mismatch(gap), "ess": _effective(logs), "correction_share": float(capped.mean())}
    if settings.kind == "none" and settings.geometric_low is settings.geometric_high is None:
        return ImportanceWeights(weights=None, metrics=metrics)
    weights = np.full(len(experience.tokens), np.nan, dtype=np.float32)
    weights[source] = values
    return ImportanceWeights(weights=weights, metrics=metrics)


def _is_filtered(gap: Float64, lengths: Int64, settings: CorrectionSection) -> Bool:
    """Return for each row whether the geometric mean of its ratios leaves the bounds, or is unknown and there are
    any."""
    low, high = settings.geometric_low, settings.geometric_high
    if low is None and high is None:
        return np.zeros(len(lengths), dtype=np.bool_)
    mean = _by_row(gap, lengths) / lengths
    # A comparison with NaN is false, so an unknown mean is within no lower bound; without one it is excluded by hand.
    within = (mean >= math.log(low) if low else ~np.isnan(mean)) & (high is None or mean <= math.log(high))
    return ~np.asarray(within, dtype=np.bool_)


def _by_row(gap: Float64, lengths: Int64) -> Float64:
    row = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(row, weights=gap, minlength=len(lengths)).astype(np.float64)


def _capped(logs: Float64, settings: CorrectionSection) -> tuple[Float64, Bool]:
    """Return the weights of log ratios, and which of them were truncated or masked."""
    # The clip keeps NaN, which is handled below, and changes no ratio that a cap would leave.
    ratios = np.exp(np.clip(logs, -_EXPONENT, _EXPONENT))
    if settings.kind == "none":
        return np.ones_like(ratios), np.zeros(len(ratios), dtype=np.bool_)
    unknown, high = np.isnan(logs), ratios > settings.cap
    if settings.kind == "truncate":
        return np.where(unknown, 0.0, np.minimum(ratios, settings.cap)), unknown | high
    floor = 1.0 / settings.cap if settings.floor is None else settings.floor
    capped = unknown | high | (ratios < floor)
    return np.where(capped, 0.0, ratios), capped


def _mismatch(gap: Float64) -> dict[str, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        kl = np.expm1(gap) - gap  # exp(gap) - 1 loses all digits where the gap is small
    return {
        "mismatch_max": float(np.abs(gap).max()),
        "mismatch_mean": float(np.abs(gap).mean()),
        "mismatch_kl": float(np.where(np.isposinf(gap), np.inf, kl).mean()),
    }


def _effective(logs: Float64) -> float:
    """Effective sample size, (sum w)^2 / (n sum w^2), computed relative to the largest weight."""
    known = np.clip(logs[~np.isnan(logs)], -math.inf, _EXPONENT)
    if not len(known) or known.max() == -math.inf:
        return 0.0
    relative = np.exp(known - known.max())
    # Unknown ratios count in n: they weigh 0.
    return float(relative.sum() ** 2 / (len(logs) * np.square(relative).sum()))
