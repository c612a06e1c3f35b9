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
    all_truncated: bool

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
            all_truncated=all(is_cut(sampling) for sampling in samplings),
        )


def is_cut(sampling: Sampling) -> bool:
    """Whether top_p or top_k may leave less to choose from than all tokens."""
    return (sampling.top_p < 1.0 or sampling.top_k > 0) and sampling.temperature > 0.0


_CANDIDATES = 256
"""How many of the likeliest tokens are looked at first for top_p."""


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
    shift = torch.zeros(len(logits), device=logits.device)
    if sampling.any_random:
        points = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
        # In float32 a cumulative sum over a large vocabulary is off by more than the chance of an unlikely token.
        probabilities = logprobs.double().exp_()
        drawn = tokens if sampling.all_truncated else _draw(probabilities, points)
        if sampling.any_truncated:
            ids, left = _find_nucleus(probabilities, sampling)
            drawn = torch.where(sampling.cut, ids.gather(1, _draw(left, points)[:, None])[:, 0], drawn)
            # What is left adds up to less than 1.
            shift = torch.where(sampling.cut, left.sum(dim=-1).log().float(), shift)
            masks = _masks(ids, left, sampling)
        tokens = torch.where(sampling.greedy, tokens, drawn)
    return SampledTokens(tokens, logprobs.gather(1, tokens[:, None])[:, 0] - shift, masks)


def _draw(probabilities: Tensor, points: Tensor) -> Tensor:
    """The place in each row of probabilities (n, m) whose interval of the cumulative sum contains the point (n, 1)."""
    cumulative = probabilities.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # The product may round up to the total, which would fall past the last token.
    point = torch.minimum(points * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, point, right=True)[:, 0]


def _masks(ids: Tensor, left: Tensor, sampling: SamplingTensors) -> list[Int32]:
    nothing = np.zeros(0, np.int32)
    rows = zip(ids.cpu().numpy(), left.cpu().numpy() > 0.0, sampling.cut.tolist(), strict=True)
    return [row[kept].astype(np.int32) if cut else nothing for row, kept, cut in rows]


def _find_nucleus(probabilities: Tensor, sampling: SamplingTensors) -> tuple[Tensor, Tensor]:
    """The ids (n, m), ascending, among which are all that top_p and top_k leave, and their probabilities, 0 where they
    are cut.

    Left are the top_k likeliest tokens and, of these, the smallest set with probability top_p, relative to the
    distribution after top_k; the likeliest token always, and of equally likely ones the first. Not the whole vocabulary
    is sorted: what is left is nearly always among a few likeliest tokens. Rows that are not cut mean nothing.
    """
    vocabulary = probabilities.shape[1]
    total = probabilities.sum(dim=-1, keepdim=True)
    size = min(max(_CANDIDATES, int(sampling.top_k.max()) + 1), vocabulary)
    while True:
        ids = probabilities.topk(size, dim=-1, sorted=False).indices.sort(dim=-1).values
        values = probabilities.gather(1, ids)
        # Stable, so that of equally likely tokens the same ones are left on every run.
        ordered, order = values.sort(dim=-1, descending=True, stable=True)
        kept = _keep(ordered, total, sampling)
        lowest = torch.where(kept, ordered, torch.inf).amin(dim=-1)
        # Tokens beyond the candidates may belong to what is left, or be as likely as the last one of it.
        if size == vocabulary or not bool(((lowest <= ordered[:, -1]) & sampling.cut).any()):
            return ids, torch.zeros_like(values).scatter_(1, order, torch.where(kept, ordered, 0.0))
        size = min(8 * size, vocabulary)


def _keep(ordered: Tensor, total: Tensor, sampling: SamplingTensors) -> Tensor:
    """Which of the likeliest probabilities (n, m), in descending order, are left; `total` (n, 1) is of all."""
    rank = torch.arange(ordered.shape[1], device=ordered.device)[None]
    limited = sampling.top_k > 0
    ordered = torch.where(~limited | (rank < sampling.top_k), ordered, 0.0)
    total = torch.where(limited, ordered.sum(dim=-1, keepdim=True), total)
    before = ordered.cumsum(dim=-1) - ordered
    return (before < sampling.top_p * total) & (ordered > 0.0)
