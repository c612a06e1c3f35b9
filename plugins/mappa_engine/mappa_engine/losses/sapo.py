"""The loss `sapo`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mappa_core import ConfigError
from mappa_core.engine import LossRows
from mappa_engine.losses.kl_penalty import Divergence
from mappa_engine.options import SAPOOptions


class SAPOLoss:
    """Soft Adaptive Policy Optimization (Gao et al. 2025, arXiv:2511.20347): a soft gate in place of a clip.

        ratio = exp(new - old)
        loss = -A * 4 / tau * sigmoid(tau * (ratio - 1)) + kl_coef * kl

    with tau = tau_positive if A > 0, else tau_negative. The gradient's factor `4 s (1 - s)`, s the sigmoid, is 1 at
    ratio 1 and falls off smoothly to both sides, whichever way the advantage pulls. As published, each action counts
    the same: `train.mean: sequence`.
    """

    def __init__(self, options: SAPOOptions) -> None:
        for name in ("tau_positive", "tau_negative"):
            if not 0.0 < getattr(options, name) < float("inf"):
                raise ConfigError(f"loss.options.{name} is {getattr(options, name):g}; it must be above 0 and finite")
        self._positive, self._negative = options.tau_positive, options.tau_negative
        self._divergence = Divergence(options.kl, options.kl_coef)

    def __call__(self, new_logprobs: Tensor, rows: LossRows, advantages: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the losses (n,) of the tokens of one micro-batch; there are no metrics."""
        ratio = torch.exp(new_logprobs - rows.old_logprobs)
        tau = torch.where(advantages > 0.0, ratio.new_tensor(self._positive), ratio.new_tensor(self._negative))
        losses = -advantages * torch.sigmoid(tau * (ratio - 1.0)) * 4.0 / tau
        return self._divergence.add_to(losses, new_logprobs, rows), {}
