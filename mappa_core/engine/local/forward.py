"""Log-probabilities of sampled tokens, with gradients, by one forward pass over padded sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from mappa_core.credit.segments import Segment, segments
from mappa_core.engine.local.packing import pack, pad
from mappa_core.experience import Experience
from mappa_core.records import Int64

LOGITS_AT_ONCE = 1 << 25
"""Logits that exist at a time: 128 MiB in float32. More tokens go through the head in chunks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Padded sequences, and which of their positions predict sampled tokens."""

    ids: Tensor  # (B, L)
    predicting: Tensor  # (n,) flat index in (B, L) of the position before each sampled token
    targets: Tensor  # (n,) the sampled tokens
    temperature: Tensor | None  # (n, 1); None where all are 1
    source: Int64  # (n,) index of each sampled token on the experience's N axis


def batches(experience: Experience, rows: Int64, *, budget: int, device: torch.device) -> list[Batch]:
    """The sampled tokens of `rows` in padded batches of at most `budget` tokens, longest sequences first."""
    chains = segments(experience, rows)
    return [
        _batch(experience, [chains[one] for one in members], device)
        for members in pack([len(chain.tokens) for chain in chains], budget)
    ]


def _batch(experience: Experience, chains: Sequence[Segment], device: torch.device) -> Batch:
    ids = pad([chain.tokens for chain in chains], device)
    starts = [row * ids.shape[1] for row in range(len(chains))]
    predicting = np.concatenate([start + chain.targets - 1 for start, chain in zip(starts, chains, strict=True)])
    source = np.concatenate([chain.source for chain in chains])
    temperature = experience.temperature[experience.row_of_token[source]]
    temperature = np.where(temperature == 0.0, np.float32(1.0), temperature)
    return Batch(
        ids=ids,
        predicting=torch.from_numpy(predicting).to(device),
        targets=torch.from_numpy(experience.tokens[source].astype(np.int64)).to(device),
        temperature=None if (temperature == 1.0).all() else torch.from_numpy(temperature).to(device)[:, None],
        source=source,
    )


def token_logprobs(model: Any, batch: Batch, value_head: torch.nn.Linear | None) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (n,) in nats of the sampled tokens at their temperature, and values (n,), both float32.

    Only hidden states that predict a sampled token go through the head.
    """
    hidden = model.base_model(input_ids=batch.ids, use_cache=False).last_hidden_state
    hidden = hidden.flatten(0, 1).index_select(0, batch.predicting)
    values = None if value_head is None else value_head(hidden.float())[:, 0]
    head = model.get_output_embeddings()
    size = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
    if len(hidden) <= size:
        return _head_logprobs(head, hidden, batch.targets, batch.temperature), values
    chunks = []
    for start in range(0, len(hidden), size):
        part = slice(start, start + size)
        temperature = None if batch.temperature is None else batch.temperature[part]
        # The logits of a chunk are computed again in the backward pass rather than kept.
        chunks.append(
            checkpoint(_head_logprobs, head, hidden[part], batch.targets[part], temperature, use_reentrant=False)
        )
    return torch.cat(chunks), values


def _head_logprobs(head: torch.nn.Module, hidden: Tensor, targets: Tensor, temperature: Tensor | None) -> Tensor:
    logits = head(hidden).float()
    if temperature is not None:
        logits = logits / temperature
    return -cross_entropy(logits, targets, reduction="none")
