"""The loss `cispo`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mappa_core import ConfigError
from mappa_core.engine import LossRows
from mappa_engine.losses.kl_penalty import Divergence
from mappa_engine.options import CISPOOptions


class CISPOLoss:
    """Clipped importance weight without gradient, times the log-probability (MiniMax-M1, arXiv:2506.13585).

        ratio = exp(new - old)
        loss = -stop(clip(ratio, ratio_low, ratio_high)) * A * new + kl_coef * kl

    Every token keeps a gradient; the clip only bounds its weight. The bounds apply to the ratio itself. With both at 1
    the loss is REINFORCE without importance weights.

    Metrics: `clip_share`, the tokens whose weight is at a bound, and of them `clip_share_low`, `clip_share_high`.
    """

    def __init__(self, options: CISPOOptions) -> None:
        if not 0.0 <= options.ratio_low <= 1.0 <= options.ratio_high < float("inf"):
            raise ConfigError(
                f"loss.options: ratio_low lies in [0, 1] and ratio_high is at least 1 and finite, not "
                f"{options.ratio_low:g} and {options.ratio_high:g}"
            )
        self._low, self._high = options.ratio_low, options.ratio_high
        self._divergence = Divergence(options.kl, options.kl_coef)

    def __call__(self, new_logprobs: Tensor, rows: LossRows, advantages: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the losses (n,) of the tokens of one micro-batch, and metric sums over them."""
        ratio = torch.exp(new_logprobs.detach() - rows.old_logprobs)
        low, high = ratio < self._low, ratio > self._high
        losses = -torch.clamp(ratio, self._low, self._high) * advantages * new_logprobs
        sums = {"clip_share": (low | high).sum(), "clip_share_low": low.sum(), "clip_share_high": high.sum()}
        return self._divergence.add_to(losses, new_logprobs, rows), sums
