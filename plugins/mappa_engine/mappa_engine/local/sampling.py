"""Sampling of tokens from logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mappa_core.engine import Sampling
from mappa_engine.arrays import Float64


def draw_uniforms(sampling: Sampling) -> Float64:
    """Draw one uniform number in [0, 1) per token that a request may sample, (max_tokens,).

    They depend on the request's seed alone, so a request samples the same whatever it is batched with.
    """
    return np.random.Generator(np.random.Philox(sampling.seed)).random(sampling.max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingTensors:
    """Sampling settings of n rows. `any_truncated` (top-p, top-k), `any_random` (not greedy), `any_scaled`
    (temperature): whether any row needs it."""

    temperature: Tensor  # (n, 1); 1 where greedy
    greedy: Tensor  # (n,)
    top_p: Tensor  # (n, 1)
    top_k: Tensor  # (n, 1); 0 is all
    any_scaled: bool
    any_random: bool
    any_truncated: bool

    @classmethod
    def of(cls, samplings: list[Sampling], device: torch.device) -> SamplingTensors:
        """Build the tensors of rows that are decoded together."""
        temperature = [1.0 if one.temperature == 0.0 else one.temperature for one in samplings]
        greedy = [one.temperature == 0.0 for one in samplings]
        return cls(
            temperature=torch.tensor(temperature, device=device)[:, None],
            greedy=torch.tensor(greedy, device=device),
            top_p=torch.tensor([one.top_p for one in samplings], dtype=torch.float64, device=device)[:, None],
            top_k=torch.tensor([one.top_k for one in samplings], device=device)[:, None],
            any_scaled=any(one != 1.0 for one in temperature),
            any_random=not all(greedy),
            any_truncated=any(one.top_p < 1.0 or one.top_k > 0 for one in samplings),
        )


def sample_tokens(logits: Tensor, sampling: SamplingTensors, uniforms: list[float]) -> tuple[Tensor, Tensor]:
    """Sample tokens (n,) and return their log-probabilities (n,), nats at the temperature before top-p and top-k.

    A row takes the token whose interval of the cumulative distribution (float64) contains its uniform number in [0, 1);
    greedy rows take the likeliest token, and their log-probabilities are those of temperature 1.
    """
    logits = logits.float()
    logprobs = torch.log_softmax(logits / sampling.temperature if sampling.any_scaled else logits, dim=-1)
    tokens = logits.argmax(dim=-1)
    if sampling.any_random:
        probabilities = logprobs.double().exp_()
        if sampling.any_truncated:
            probabilities = _truncate(probabilities, sampling)
        cumulative = probabilities.cumsum(dim=-1)
        total = cumulative[:, -1:]
        point = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * total
        # The product may round up to the total, which would fall past the last token.
        point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
        drawn = torch.searchsorted(cumulative, point, right=True)[:, 0]
        tokens = torch.where(sampling.greedy, tokens, drawn)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _truncate(probabilities: Tensor, sampling: SamplingTensors) -> Tensor:
    """Zero all but the top_k likeliest tokens and, of these, all but the smallest set with probability top_p.

    top_p is relative to the distribution after top_k; the likeliest token is always kept.
    """
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[1], device=ordered.device)[None]
    ordered = torch.where((sampling.top_k == 0) | (rank < sampling.top_k), ordered, 0.0)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = torch.where(before < sampling.top_p * ordered.sum(dim=-1, keepdim=True), ordered, 0.0)
    return torch.zeros_like(probabilities).scatter_(1, order, ordered)
