"""The clipped surrogate objective, and the share of tokens it clips."""

from __future__ import annotations

import torch
from torch import Tensor

from mappa_core import ConfigError


class Clip:
    """Clipping of a ratio to [1 - low, 1 + high]."""

    def __init__(self, low: float, high: float) -> None:
        if not 0.0 <= low <= 1.0 or not 0.0 <= high < float("inf"):
            raise ConfigError(
                f"loss.options: clip_low lies in [0, 1], clip_high is not negative and finite, not {low} and {high}"
            )
        self._low, self._high = 1.0 - low, 1.0 + high

    def surrogate(self, ratio: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute max(-A ratio, -A clip(ratio)) per token, and count the tokens whose gradient the clip removes: all,
        below the lower bound, and above the upper one."""
        free = -advantages * ratio
        clipped = -advantages * torch.clamp(ratio, self._low, self._high)
        cut = clipped > free
        sums = {
            "clip_share": cut.sum(),
            "clip_share_low": (cut & (ratio < self._low)).sum(),
            "clip_share_high": (cut & (ratio > self._high)).sum(),
        }
        return torch.maximum(free, clipped), sums
