"""Importance weights between what sampled a token and what learns from it.

A sampler and a learner compute the same distribution by different kernels, and with `max_staleness` by different
weights. What is sampled from one and learned by the other is off-policy; `w = learner / sampler` per token, or per
action, makes the expectation that of the learner again, at the price of variance, which a cap bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mappa_core.config.schema import CorrectionSection
from mappa_core.credit.ragged import places
from mappa_core.experience import Experience
from mappa_core.records import Bool, Float32, Float64, Int64

_EXPONENT = 700.0
"""Beyond it exp leaves float64."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction:
    """`weights` (N,), NaN on tokens of other rows; None where nothing is corrected. Metrics are there in any case, but
    for no rows."""

    weights: Float32 | None
    metrics: Mapping[str, float]


def correct(experience: Experience, rows: Int64, settings: CorrectionSection) -> Correction:
    """The weights of the tokens of `rows` in the policy loss, from a scored experience; constants to the gradient.

    `w = exp(old_logprobs - logprobs)`. `level`: of each token alone, or of each action: the product over its tokens,
    on every token of it. `kind`: `truncate` gives min(w, cap) (Ionides 2008; for sampler and learner: Yao et al.,
    "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025); `mask` gives w from `floor` (1/cap
    where it is not set) to cap and 0 beyond (IcePop: arXiv:2510.18855); by actions as in Liu et al., "When Speed Kills
    Stability", 2025. The geometric mean that GSPO clips by (arXiv:2507.18071) is no importance weight, so it is not
    offered. A token whose ratio is unknown (NaN) weighs 0, and with it its action where `level` is `sequence`.

    Metrics: `mismatch_max`, `mismatch_mean` of |old - sampled| and `mismatch_kl` (k3, of the learner from the sampler)
    in nats per token, NaN where a log-probability is missing; `ess`, the effective sample size as a share of tokens or
    actions (Kong 1992), before any cap; `correction_share`, the tokens that were truncated or masked.
    """
    if experience.old_logprobs is None:
        raise ValueError("an experience is scored before it is corrected")
    if not len(rows):
        return Correction(weights=None, metrics={})
    source = places(experience.offsets, rows)
    with np.errstate(invalid="ignore"):  # -inf on both sides is unknown, too
        gap = experience.old_logprobs[source].astype(np.float64) - experience.logprobs[source]
    lengths = experience.lengths[rows]
    by_row = settings.level == "sequence"
    logs = _by_row(gap, lengths) if by_row else gap
    found, caught = _capped(logs, settings)
    if by_row:
        found, caught = np.repeat(found, lengths), np.repeat(caught, lengths)
    metrics = {**_mismatch(gap), "ess": _effective(logs), "correction_share": float(caught.mean())}
    if settings.kind == "none":
        return Correction(weights=None, metrics=metrics)
    weights = np.full(len(experience.tokens), np.nan, dtype=np.float32)
    weights[source] = found
    return Correction(weights=weights, metrics=metrics)


def _by_row(gap: Float64, lengths: Int64) -> Float64:
    row = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(row, weights=gap, minlength=len(lengths)).astype(np.float64)


def _capped(logs: Float64, settings: CorrectionSection) -> tuple[Float64, Bool]:
    """Weights of log ratios, and which of them the cap caught."""
    ratios = np.exp(np.clip(logs, -_EXPONENT, _EXPONENT))
    if settings.kind == "none":
        return np.ones_like(ratios), np.zeros(len(ratios), dtype=np.bool_)
    unknown, high = np.isnan(logs), ratios > settings.cap
    if settings.kind == "truncate":
        return np.where(unknown, 0.0, np.minimum(ratios, settings.cap)), unknown | high
    floor = 1.0 / settings.cap if settings.floor is None else settings.floor
    caught = unknown | high | (ratios < floor)
    return np.where(caught, 0.0, ratios), caught


def _mismatch(gap: Float64) -> dict[str, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        kl = np.expm1(gap) - gap
    return {
        "mismatch_max": float(np.abs(gap).max()),
        "mismatch_mean": float(np.abs(gap).mean()),
        "mismatch_kl": float(np.where(np.isposinf(gap), np.inf, kl).mean()),
    }


def _effective(logs: Float64) -> float:
    """(sum w)^2 / (n sum w^2), of weights relative to the largest."""
    known = np.clip(logs[~np.isnan(logs)], -math.inf, _EXPONENT)
    if not len(known) or known.max() == -math.inf:
        return 0.0
    relative = np.exp(known - known.max())
    return float(relative.sum() ** 2 / (len(logs) * np.square(relative).sum()))
