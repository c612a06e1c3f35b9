"""Sequences of different lengths to padded batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mappa_core.records import Int32


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in batches, longest sequences first, so that rows times longest row stays within `budget` tokens.

    A sequence longer than the budget is a batch of its own. Equal lengths keep their order.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def pad(sequences: Sequence[Int32], device: torch.device) -> Tensor:
    """Token ids (B, L) int64, filled up on the right. Causal attention never looks there, so no mask is needed."""
    filled = np.zeros((len(sequences), max(len(one) for one in sequences)), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        filled[row, : len(sequence)] = sequence
    return torch.from_numpy(filled).to(device)
