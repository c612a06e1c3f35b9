"""Estimators of the KL divergence from the reference policy, as loss terms.

KL(p || q) of the policy p from the reference q, from a token that p sampled; log-probabilities in nats. Schulman,
"Approximating KL divergence" (2020). None is clamped: that would remove the gradient where a policy has moved
furthest.

As a *metric*, k1 and k3 are unbiased. As a *loss*, what matters is the expected gradient over tokens of p:

    k1    0: it only adds noise
    k2    the gradient of KL(p || q)
    k3    the gradient of KL(q || p)

(with fixed log-probabilities of the sampling policy, as here; Zhang et al., "On the Design of KL-Regularized Policy
Gradient Algorithms", arXiv:2505.17508). From the second step of an iteration on, p is no longer what sampled, and each
is off. `k3_corrected` is k3 times the ratio of p to the policy before the update (DeepSeek-V3.2, arXiv:2512.02556):
over what that policy sampled it is KL(p || q) in expectation at every step, and its gradient is that of KL(p || q).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mappa_core import ConfigError
from mappa_core.engine import LossRows


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """log(p/q): unbiased, of either sign."""
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """log(p/q)^2 / 2: never negative, biased, but only slightly near the reference."""
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """q/p - 1 - log(q/p): unbiased, never negative, of lower variance than `k1`."""
    gap = ref_logprobs - logprobs
    return torch.expm1(gap) - gap


KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
CORRECTED = "k3_corrected"


class Divergence:
    """A KL penalty per token: `coefficient` times the estimator `kl`; no penalty if `kl` is none."""

    def __init__(self, kl: str, coefficient: float) -> None:
        if kl not in ("none", *KL_ESTIMATORS, CORRECTED):
            raise ConfigError(f"loss.options.kl is {kl!r}; it can be none, {', '.join(KL_ESTIMATORS)}, {CORRECTED}")
        if not 0.0 <= coefficient < float("inf"):
            raise ConfigError(f"loss.options.kl_coef is {coefficient:g}; it must be at least 0 and finite")
        self._kl, self._coefficient = kl, coefficient

    def add_to(self, losses: Tensor, new_logprobs: Tensor, rows: LossRows) -> Tensor:
        """Add the penalty to losses (n,)."""
        if self._kl == "none":
            return losses
        if rows.ref_logprobs is None:
            raise ConfigError(
                f"loss.options.kl={self._kl} needs a reference, and this engine keeps none: set loss.options.kl=none "
                "and kl_coef=0"
            )
        if self._kl == CORRECTED:
            ratio = torch.exp(new_logprobs - rows.old_logprobs)
            return losses + self._coefficient * ratio * k3(new_logprobs, rows.ref_logprobs)
        return losses + self._coefficient * KL_ESTIMATORS[self._kl](new_logprobs, rows.ref_logprobs)
