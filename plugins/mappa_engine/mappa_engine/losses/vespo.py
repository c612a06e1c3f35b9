"""The loss `vespo`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mappa_core import ConfigError
from mappa_core.engine import LossRows
from mappa_engine.losses.kl_penalty import Divergence
from mappa_engine.losses.row_sums import row_sum
from mappa_engine.options import VESPOOptions


class VESPOLoss:
    """Variational Sequence-level Soft Policy Optimization (arXiv:2602.10693): REINFORCE, whose every action weighs by a
    smooth function of its importance ratio.

        W = exp(sum over the action's tokens of (new - old))
        loss = -stop(W^k * exp(lambda * (1 - W))) * A * new + kl_coef * kl

    with k and lambda by the sign of A. The weight is 1 at W = 1, largest at W = k / lambda, and falls to 0 on both
    sides; it is computed as `exp(k log W + lambda (1 - W))`, so that no W overflows it.
    """

    def __init__(self, options: VESPOOptions) -> None:
        for name in ("k_positive", "lambda_positive", "k_negative", "lambda_negative"):
            if not 0.0 < getattr(options, name) < float("inf"):
                raise ConfigError(f"loss.options.{name} is {getattr(options, name):g}; it must be above 0 and finite")
        self._options = options
        self._divergence = Divergence(options.kl, options.kl_coef)

    def __call__(self, new_logprobs: Tensor, rows: LossRows, advantages: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the losses (n,) of the tokens of one micro-batch of whole actions; there are no metrics."""
        o = self._options
        log_ratio = row_sum(new_logprobs.detach() - rows.old_logprobs, rows.row)
        settings = log_ratio.new_tensor([[o.k_negative, o.lambda_negative], [o.k_positive, o.lambda_positive]])
        k, decay = settings[(advantages >= 0.0).long()].unbind(-1)
        weight = torch.exp(k * log_ratio - decay * torch.expm1(log_ratio))
        return self._divergence.add_to(-weight * advantages * new_logprobs, new_logprobs, rows), {}
