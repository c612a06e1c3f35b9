"""The loss `gspo`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mappa_core.engine import LossRows
from mappa_engine.losses.kl_penalty import Divergence
from mappa_engine.losses.ratio_clipping import Clip
from mappa_engine.losses.row_sums import row_mean
from mappa_engine.options import GSPOOptions


class GSPOLoss:
    """GSPO with one ratio per action (Zheng et al. 2025, arXiv:2507.18071; the variant GSPO-token).

        s = exp(mean over the action's tokens of (new - old))
        s_t = stop(s) * exp(new_t - stop(new_t))
        loss_t = max(-A_t s_t, -A_t clip(s_t, 1 - clip_low, 1 + clip_high)) + kl_coef * kl

    Every s_t has the value s, so an action whose tokens share an advantage is clipped as a whole, and the gradient of
    each token's loss is -A_t s. Averaged over such an action, that equals the gradient without stops. As published,
    each action counts the same: `train.mean: sequence`. s is the geometric mean of the tokens' ratios, so the bounds
    are far narrower than those of `ppo`.

    Metrics: `clip_share`, the tokens of clipped actions, and of them `clip_share_low`, `clip_share_high`.
    """

    def __init__(self, options: GSPOOptions) -> None:
        self._clip = Clip(options.clip_low, options.clip_high)
        self._divergence = Divergence(options.kl, options.kl_coef)

    def __call__(self, new_logprobs: Tensor, rows: LossRows, advantages: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the losses (n,) of the tokens of one micro-batch of whole actions, and metric sums over them."""
        fixed = new_logprobs.detach()
        mean = row_mean(fixed - rows.old_logprobs, rows.row)
        ratio = torch.exp(mean + new_logprobs - fixed)
        losses, sums = self._clip.surrogate(ratio, advantages)
        return self._divergence.add_to(losses, new_logprobs, rows), sums
