"""Per-token policy losses."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mappa_core.engine.options import PPOOptions
from mappa_core.errors import ConfigError
from mappa_core.protocols import LossRows


def k1(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """log(p/q) in nats: unbiased, of either sign (Schulman, "Approximating KL divergence", 2020)."""
    return logprobs - ref_logprobs


def k3(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """q/p - 1 - log(q/p) in nats: unbiased, never negative, of lower variance than `k1` (same source)."""
    gap = ref_logprobs - logprobs
    return torch.expm1(gap) - gap


_KL = {"k1": k1, "k3": k3}


class PPOLoss:
    """Clipped surrogate (Schulman et al. 2017, arXiv:1707.06347) with separate bounds (DAPO, arXiv:2503.14476), plus
    an optional divergence from the reference.

    loss = max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)) + kl_coef * kl, ratio = exp(new - old).
    Metrics: `clip_share` tokens whose gradient the clip cut, `ratio_mean`.
    """

    def __init__(self, options: PPOOptions) -> None:
        if options.kl != "none" and options.kl not in _KL:
            raise ConfigError(f"loss.options.kl is {options.kl!r}; it can be none, k1 or k3")
        if not 0.0 <= options.clip_low <= 1.0 or options.clip_high < 0.0:
            raise ConfigError(
                f"loss.options: clip_low lies in [0, 1] and clip_high is not negative, "
                f"not {options.clip_low} and {options.clip_high}"
            )
        self._options = options

    def __call__(
        self, new_logprobs: torch.Tensor, rows: LossRows, advantages: torch.Tensor
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Losses (n,) of the tokens of one micro-batch, and sums over them."""
        options = self._options
        ratio = torch.exp(new_logprobs - rows.old_logprobs)
        free = -advantages * ratio
        clipped = -advantages * torch.clamp(ratio, 1.0 - options.clip_low, 1.0 + options.clip_high)
        losses = torch.maximum(free, clipped)
        sums = {"clip_share": (clipped > free).sum(), "ratio_mean": ratio.detach().sum()}
        if options.kl != "none":
            if rows.ref_logprobs is None:
                raise ConfigError(f"loss.options.kl={options.kl} needs a reference, and this engine keeps none")
            losses = losses + options.kl_coef * _KL[options.kl](new_logprobs, rows.ref_logprobs)
        return losses, sums
