"""The loss of a value head."""

from __future__ import annotations

import torch
from torch import Tensor


def value_losses(values: Tensor, old_values: Tensor | None, targets: Tensor, clip: float | None) -> Tensor:
    """Compute squared errors (n,) of values against their targets; 0 without a target (NaN).

    With `clip` (Schulman et al. 2017, as in their code) the loss is `max((V - R)^2, (V_clip - R)^2)`, where V_clip is V
    clipped to within `clip` of `old_values`, the head's own before the update: a value that moved
    further towards its target has no gradient.
    """
    known = ~torch.isnan(targets)
    squares = torch.where(known, values - targets, 0.0).square()
    if clip is None:
        return squares
    if old_values is None:
        raise ValueError("values are clipped around those of the scored experience, which has none")
    clipped = old_values + torch.clamp(values - old_values, -clip, clip)
    return torch.maximum(squares, torch.where(known, clipped - targets, 0.0).square())
