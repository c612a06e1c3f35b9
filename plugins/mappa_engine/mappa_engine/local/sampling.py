"""Sampling of tokens from logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mappa_core.engine import Sampling
from mappa_engine.arrays import Float64, Int32


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
    cut: Tensor  # (n,) whether top-p or top-k applies; not where greedy
    any_scaled: bool
    any_random: bool
    any_truncated: bool

    @classmethod
    def of(cls, samplings: list[Sampling], device: torch.device) -> SamplingTensors:
        """Build the tensors of rows that are decoded together."""
        temperature = [1.0 if sampling.temperature == 0.0 else sampling.temperature for sampling in samplings]
        greedy = [sampling.temperature == 0.0 for sampling in samplings]
        return cls(
            temperature=torch.tensor(temperature, device=device)[:, None],
            greedy=torch.tensor(greedy, device=device),
            top_p=torch.tensor([sampling.top_p for sampling in samplings], dtype=torch.float64, device=device)[:, None],
            top_k=torch.tensor([sampling.top_k for sampling in samplings], device=device)[:, None],
            cut=torch.tensor([is_cut(sampling) for sampling in samplings], dtype=torch.bool, device=device),
            any_scaled=any(value != 1.0 for value in temperature),
            any_random=not all(greedy),
            any_truncated=any(is_cut(sampling) for sampling in samplings),
        )


def is_cut(sampling: Sampling) -> bool:
    """Whether top_p or top_k may leave less to choose from than all tokens."""
    return (sampling.top_p < 1.0 or sampling.top_k > 0) and sampling.temperature > 0.0


class SampledTokens(NamedTuple):
    """Tokens sampled from n rows of logits."""

    tokens: Tensor  # (n,)
    logprobs: Tensor  # (n,) nats, at the temperature, of what top_p and top_k left; of temperature 1 where greedy
    masks: list[Int32] | None  # n arrays of ids that were left, () where nothing was cut; None if nowhere


def sample_tokens(logits: Tensor, sampling: SamplingTensors, uniforms: list[float]) -> SampledTokens:
    """Sample a token from each row of logits (n, V).

    A row takes the token whose interval of the cumulative distribution (float64) contains its uniform number in [0, 1);
    greedy rows take the likeliest token.
    """
    logits = logits.float()
    logprobs = torch.log_softmax(logits / sampling.temperature if sampling.any_scaled else logits, dim=-1)
    tokens, masks = logits.argmax(dim=-1), None
    if sampling.any_random:
        # In float32 a cumulative sum over a large vocabulary is off by more than the chance of an unlikely token.
        probabilities = logprobs.double().exp_()
        if sampling.any_truncated:
            probabilities = _truncate(probabilities, sampling)
            logprobs = torch.where(sampling.cut[:, None], _renormalized(logprobs, probabilities), logprobs)
            masks = _masks(probabilities, sampling)
        cumulative = probabilities.cumsum(dim=-1)
        total = cumulative[:, -1:]
        point = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * total
        # The product may round up to the total, which would fall past the last token.
        point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
        drawn = torch.searchsorted(cumulative, point, right=True)[:, 0]
        tokens = torch.where(sampling.greedy, tokens, drawn)
    return SampledTokens(tokens, logprobs.gather(1, tokens[:, None])[:, 0], masks)


def _renormalized(logprobs: Tensor, left: Tensor) -> Tensor:
    """Return the log-probabilities of what is `left` (n, V), which adds up to less than 1."""
    return logprobs - left.sum(dim=-1, keepdim=True).log().float()


def _masks(left: Tensor, sampling: SamplingTensors) -> list[Int32]:
    kept = left.cpu().numpy() > 0.0
    nothing = np.zeros(0, np.int32)
    rows = zip(kept, sampling.cut.tolist(), strict=True)
    return [np.flatnonzero(row).astype(np.int32) if cut else nothing for row, cut in rows]


def _truncate(probabilities: Tensor, sampling: SamplingTensors) -> Tensor:
    """Zero all but the top_k likeliest tokens and, of these, all but the smallest set with probability top_p.

    top_p is relative to the distribution after top_k; the likeliest token is always kept.
    """
    # Stable, so that of equally likely tokens the same ones are left on every run.
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[1], device=ordered.device)[None]
    ordered = torch.where((sampling.top_k == 0) | (rank < sampling.top_k), ordered, 0.0)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = torch.where(before < sampling.top_p * ordered.sum(dim=-1, keepdim=True), ordered, 0.0)
    return torch.zeros_like(probabilities).scatter_(1, order, ordered)
