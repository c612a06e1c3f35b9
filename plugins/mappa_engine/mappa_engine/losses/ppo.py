"""The loss `ppo`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mappa_core import ConfigError
from mappa_core.engine import LossRows
from mappa_engine.losses.kl_penalty import Divergence
from mappa_engine.losses.ratio_clipping import Clip
from mappa_engine.options import PPOOptions


class PPOLoss:
    """Clipped surrogate (Schulman et al. 2017, arXiv:1707.06347) with separate bounds (DAPO, arXiv:2503.14476), plus
    an optional KL penalty.

        ratio = exp(new - old)
        loss = max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)) + kl_coef * kl

    With `dual_clip` = c (Ye et al. 2020, arXiv:1912.09729) the first term is at most -A c if A < 0, which bounds
    the loss of a token that became more than c times as likely; beyond the bound its gradient is 0.

    The log-ratio is not clamped. A ratio that overflows float32 (88 nats) makes the step not finite, so it is skipped
    and counted; a clamp would continue silently without a gradient.

    Metrics: `clip_share`, the tokens whose gradient a clip removed; of them `clip_share_low`, `clip_share_high` by the
    two bounds and `clip_share_dual` by `dual_clip`.
    """

    def __init__(self, options: PPOOptions) -> None:
        if options.dual_clip is not None and not 1.0 + options.clip_high < options.dual_clip:
            raise ConfigError(
                f"loss.options.dual_clip is {options.dual_clip:g}; it must be above 1 + clip_high, "
                f"{1.0 + options.clip_high:g}, or null"
            )
        self._clip = Clip(options.clip_low, options.clip_high)
        self._dual = options.dual_clip
        self._divergence = Divergence(options.kl, options.kl_coef)

    def __call__(self, new_logprobs: Tensor, rows: LossRows, advantages: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the losses (n,) of the tokens of one micro-batch, and metric sums over them."""
        ratio = torch.exp(new_logprobs - rows.old_logprobs)
        losses, sums = self._clip.surrogate(ratio, advantages)
        if self._dual is not None:
            max_loss = -self._dual * advantages
            cut = (advantages < 0.0) & (losses > max_loss)
            losses = torch.where(cut, max_loss, losses)
            sums = {**sums, "clip_share": sums["clip_share"] + cut.sum(), "clip_share_dual": cut.sum()}
        return self._divergence.add_to(losses, new_logprobs, rows), sums
