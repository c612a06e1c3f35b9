"""Sums and means over the tokens of an action, for losses with one ratio per action."""

from __future__ import annotations

import torch
from torch import Tensor


def row_sum(values: Tensor, row: Tensor) -> Tensor:
    """Return for each token the sum over its row, (n,)."""
    totals = torch.zeros(int(row.max()) + 1, dtype=values.dtype, device=values.device)
    return totals.index_add(0, row, values)[row]


def row_mean(values: Tensor, row: Tensor) -> Tensor:
    """Return for each token the mean over its row, (n,)."""
    return row_sum(values, row) / torch.bincount(row)[row]
