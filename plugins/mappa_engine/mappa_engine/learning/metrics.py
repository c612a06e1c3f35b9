"""Metrics of an update: sums over micro-batches, ranks and steps, and the means derived from them."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mappa_core.engine import LossRows
from mappa_engine.learning.logprob_model import Predictions

MetricSums = MutableMapping[str, float]
"""Sums by name; names with dots are internal and not reported."""
LOSS, TOKENS = "step.loss", "step.tokens"
_PEAK = "peak.ratio."
"""Prefix of each rank's largest ratio: ranks are only summed, so each reports its maximum under its own name."""
_VALUED, _ERROR, _ERRORS, _TARGET, _TARGETS = "v.tokens", "v.error", "v.error2", "v.target", "v.target2"
_PER_VALUE = ("value_loss",)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserStep:
    """One optimiser step: mean loss, gradient norm before clipping, learning rate, and largest ratio of a token."""

    loss: float
    grad_norm: float
    rate: float
    ratio_max: float


def add_token_metrics(predictions: Predictions, rows: LossRows, sums: MetricSums, *, rank: int) -> None:
    """Add the loss-independent metrics of a micro-batch's tokens to `sums`."""
    logprobs = predictions.logprobs.detach()
    ratio = torch.exp(logprobs - rows.old_logprobs)
    sums[TOKENS] += len(logprobs)
    sums["entropy"] -= logprobs.sum().item()
    sums["ratio_mean"] += ratio.sum().item()
    peak = f"{_PEAK}{rank}"
    sums[peak] = max(sums[peak], ratio.max().item())
    if predictions.entropy is not None:
        sums["entropy_full"] += predictions.entropy.detach().sum().item()
    if rows.ref_logprobs is not None:
        # k3 (Schulman 2020): never below 0, and of little variance.
        gap = rows.ref_logprobs - logprobs
        sums["kl"] += (torch.expm1(gap) - gap).sum().item()


def add_value_metrics(values: Tensor, targets: Tensor, losses: Tensor, sums: MetricSums) -> None:
    """Add the value metrics of a micro-batch's tokens that have a target to `sums`."""
    known = ~torch.isnan(targets)
    if not bool(known.any()):
        return  # no metric: a mean over no target is unknown
    known_targets = targets[known].double()
    error = known_targets - values.detach()[known].double()
    sums[_VALUED] += len(known_targets)
    sums["value_loss"] += losses.detach()[known].sum().item()
    for name, total in ((_ERROR, error), (_ERRORS, error**2), (_TARGET, known_targets), (_TARGETS, known_targets**2)):
        sums[name] += total.sum().item()


def pop_ratio_max(sums: MetricSums) -> float:
    """Remove the ranks' largest ratios from `sums` and return the maximum."""
    return max(sums.pop(name) for name in [name for name in sums if name.startswith(_PEAK)])


def build_metrics(steps: Sequence[OptimiserStep], sums: MetricSums) -> dict[str, float]:
    """Build the metrics of the steps taken; empty if there were none."""
    if not steps:
        return {}
    shown = {name: total for name, total in sums.items() if "." not in name}
    return {
        "loss": float(np.mean([step.loss for step in steps])),
        "grad_norm": float(np.mean([step.grad_norm for step in steps])),
        "lr": steps[-1].rate,
        "ratio_max": max(step.ratio_max for step in steps),
        **{name: total / sums[_VALUED if name in _PER_VALUE else TOKENS] for name, total in shown.items()},
        **_explained_variance(sums),
    }


def _explained_variance(sums: MetricSums) -> dict[str, float]:
    """`value_explained`: 1 - Var(target - value) / Var(target), if there are targets and they vary."""
    if not sums[_VALUED]:
        return {}
    n = sums[_VALUED]
    # Variances from sums of squares, as ranks are only summed; the sums are of float64.
    varies, left = sums[_TARGETS] / n - (sums[_TARGET] / n) ** 2, sums[_ERRORS] / n - (sums[_ERROR] / n) ** 2
    return {"value_explained": 1.0 - left / varies} if varies > 0.0 else {}
