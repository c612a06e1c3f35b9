"""From logits to tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mappa_core.records import Float64, Sampling


def uniforms(sampling: Sampling) -> Float64:
    """One number in [0, 1) for every token that a request may draw (max_tokens,).

    They hang on the request's seed alone, so what neighbours a request is decoded with does not change its draws.
    """
    return np.random.Generator(np.random.Philox(sampling.seed)).random(sampling.max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ways:
    """How each of n rows is drawn. `cut`, `draw`, `scale`: whether any row needs it."""

    temperature: Tensor  # (n, 1); 1 where greedy
    greedy: Tensor  # (n,)
    top_p: Tensor  # (n, 1)
    top_k: Tensor  # (n, 1); 0 is all
    scale: bool
    draw: bool
    cut: bool

    @classmethod
    def of(cls, samplings: list[Sampling], device: torch.device) -> Ways:
        """The ways of rows that are decoded together."""
        temperature = [1.0 if one.temperature == 0.0 else one.temperature for one in samplings]
        greedy = [one.temperature == 0.0 for one in samplings]
        return cls(
            temperature=torch.tensor(temperature, device=device)[:, None],
            greedy=torch.tensor(greedy, device=device),
            top_p=torch.tensor([one.top_p for one in samplings], dtype=torch.float64, device=device)[:, None],
            top_k=torch.tensor([one.top_k for one in samplings], device=device)[:, None],
            scale=any(one != 1.0 for one in temperature),
            draw=not all(greedy),
            cut=any(one.top_p < 1.0 or one.top_k > 0 for one in samplings),
        )


def draw(logits: Tensor, ways: Ways, points: list[float]) -> tuple[Tensor, Tensor]:
    """Tokens (n,) and their log-probabilities (n,) in nats under the temperature-scaled distribution, before any cut.

    A row takes the token in whose part of the cumulative distribution (float64) its point in [0, 1) falls; greedy rows
    take the likeliest token, and their log-probabilities are those of temperature 1.
    """
    logits = logits.float()
    logprobs = torch.log_softmax(logits / ways.temperature if ways.scale else logits, dim=-1)
    tokens = logits.argmax(dim=-1)
    if ways.draw:
        probabilities = logprobs.double().exp_()
        if ways.cut:
            probabilities = _cut(probabilities, ways)
        cumulative = probabilities.cumsum(dim=-1)
        total = cumulative[:, -1:]
        point = torch.tensor(points, dtype=torch.float64, device=logits.device)[:, None] * total
        # A product may round up to the total, which would fall behind the last token.
        point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
        drawn = torch.searchsorted(cumulative, point, right=True)[:, 0]
        tokens = torch.where(ways.greedy, tokens, drawn)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _cut(probabilities: Tensor, ways: Ways) -> Tensor:
    """Zero all but the top_k likeliest tokens and, of these, all but the fewest that hold a share of top_p.

    The share is one of the whole distribution after top_k; the likeliest token always stays.
    """
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[1], device=ordered.device)[None]
    ordered = torch.where((ways.top_k == 0) | (rank < ways.top_k), ordered, 0.0)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = torch.where(before < ways.top_p * ordered.sum(dim=-1, keepdim=True), ordered, 0.0)
    return torch.zeros_like(probabilities).scatter_(1, order, ordered)
