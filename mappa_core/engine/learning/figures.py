"""Figures of an update: what is summed over micro-batches, ranks and steps, and what is shown of it."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mappa_core.engine.learning.forward import Predictions
from mappa_core.protocols import LossRows

Sums = MutableMapping[str, float]
"""By name; names with dots are the engine's own, and not shown."""
LOSS, TOKENS = "step.loss", "step.tokens"
_PEAK = "peak.ratio."
"""With the number of a rank: ranks add up what they have, and of maxima each brings its own."""
_VALUED, _ERROR, _ERRORS, _TARGET, _TARGETS = "v.tokens", "v.error", "v.error2", "v.target", "v.target2"
_PER_VALUE = ("value_loss",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that was taken: the mean loss, the norm of the gradient before clipping, the learning rate and the largest
    ratio of a token."""

    loss: float
    norm: float
    rate: float
    ratio_max: float


def count(found: Predictions, rows: LossRows, sums: Sums, *, rank: int) -> None:
    """Add the tokens of a micro-batch, whatever the loss is."""
    logprobs = found.logprobs.detach()
    ratio = torch.exp(logprobs - rows.old_logprobs)
    sums[TOKENS] += len(logprobs)
    sums["entropy"] -= logprobs.sum().item()
    sums["ratio_mean"] += ratio.sum().item()
    peak = f"{_PEAK}{rank}"
    sums[peak] = max(sums[peak], ratio.max().item())
    if found.entropy is not None:
        sums["entropy_full"] += found.entropy.detach().sum().item()
    if rows.ref_logprobs is not None:
        gap = rows.ref_logprobs - logprobs
        sums["kl"] += (torch.expm1(gap) - gap).sum().item()


def count_values(values: Tensor, targets: Tensor, losses: Tensor, sums: Sums) -> None:
    """Add the tokens of a micro-batch that have a target."""
    known = ~torch.isnan(targets)
    wanted = targets[known].double()
    error = wanted - values.detach()[known].double()
    sums[_VALUED] += len(wanted)
    sums["value_loss"] += losses.detach()[known].sum().item()
    for name, total in ((_ERROR, error), (_ERRORS, error**2), (_TARGET, wanted), (_TARGETS, wanted**2)):
        sums[name] += total.sum().item()


def peak(sums: Sums) -> float:
    """The largest ratio on any rank, taken out of what they added up."""
    return max(sums.pop(name) for name in [name for name in sums if name.startswith(_PEAK)])


def figures(taken: Sequence[Step], sums: Sums) -> dict[str, float]:
    """What is shown of the steps taken; nothing where none was."""
    if not taken:
        return {}
    shown = {name: total for name, total in sums.items() if "." not in name}
    return {
        "loss": float(np.mean([step.loss for step in taken])),
        "grad_norm": float(np.mean([step.norm for step in taken])),
        "lr": taken[-1].rate,
        "ratio_max": max(step.ratio_max for step in taken),
        **{name: total / sums[_VALUED if name in _PER_VALUE else TOKENS] for name, total in shown.items()},
        **_explained(sums),
    }


def _explained(sums: Sums) -> dict[str, float]:
    """`value_explained`: 1 - Var(target - value) / Var(target), where there are targets and they vary."""
    if not sums[_VALUED]:
        return {}
    n = sums[_VALUED]
    varies, left = sums[_TARGETS] / n - (sums[_TARGET] / n) ** 2, sums[_ERRORS] / n - (sums[_ERROR] / n) ** 2
    return {"value_explained": 1.0 - left / varies} if varies > 0.0 else {}
