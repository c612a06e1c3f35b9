"""Attention and KV cache for decoding rows of different lengths in one batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION = "mappa_grouped"
_MIN_WIDTH = 64
_GROWTH = 8
"""The width grows by this part of itself: copies then cost little beside the attention over all of it in every step."""


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute sdpa; in a decoding step the query heads of a group are passed as queries of their shared key head.

    Otherwise the masked path of sdpa would copy the keys of the whole cache once per query head and step.
    """
    rows, heads, queries, _ = query.shape
    if queries != 1 or attention_mask is None:
        output: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return output
    groups = key.shape[1]
    out = scaled_dot_product_attention(
        query.view(rows, groups, heads // groups, -1), key, value, attn_mask=attention_mask, scale=scaling
    )
    return out.reshape(rows, 1, heads, -1), None


AttentionInterface.register(ATTENTION, grouped_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, (slots, heads, width, size). A token's column is its position."""

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self._owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        slots, width = self._owner.capacity
        self.keys = key_states.new_zeros((slots, key_states.shape[1], width, key_states.shape[3]))
        self.values = value_states.new_zeros((slots, value_states.shape[1], width, value_states.shape[3]))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        owner = self._owner
        rows = owner.rows
        self.keys[rows, :, owner.positions] = key_states[:, :, 0]
        self.values[rows, :, owner.positions] = value_states[:, :, 0]
        return self.keys[: len(rows), :, : owner.width], self.values[: len(rows), :, : owner.width]

    def resize(self) -> None:
        """Copy keys and values into tensors of the owner's new capacity."""
        keys, values = self.keys, self.values
        self.lazy_initialization(keys, values)
        slots, width = (min(old, new) for old, new in zip(keys.shape[::2], self._owner.capacity, strict=False))
        self.keys[:slots, :, :width] = keys[:slots, :, :width]
        self.values[:slots, :, :width] = values[:slots, :, :width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._owner.width, 0

    def get_seq_length(self) -> int:
        return self._owner.width

    def get_max_length(self) -> int:
        return -1


class SlotCache(Cache):  # type: ignore[misc]
    """A KV cache for continuous batching: row i of the batch occupies slot i, from column 0.

    Before each decoding step `rows` (n,), `positions` (n,) and `width` are set: where the step's tokens are written and
    how many columns are read.
    """

    rows: Tensor
    positions: Tensor
    width: int

    def __init__(self, layers: int, *, max_tokens: int) -> None:
        """`max_tokens`: product of rows and their width that is not exceeded, unless that is asked for."""
        super().__init__(layers=[_SlotLayer(self) for _ in range(layers)])
        self.capacity = (0, 0)
        self._max_tokens = max_tokens

    def reserve(self, slots: int, width: int) -> None:
        """Change the capacity to at least `slots` rows of `width` tokens, which cover all rows that are in use. Where
        `max_tokens` has room it grows by more than that, else it gives up what is no longer in use."""
        have_slots, have_width = self.capacity
        if slots <= have_slots and width <= have_width:
            return
        rows = max(slots, have_slots)
        columns = have_width if width <= have_width else max(width, have_width + have_width // _GROWTH, _MIN_WIDTH)
        if rows * columns > self._max_tokens:
            rows, columns = slots, max(width, min(columns, self._max_tokens // slots))
        self.capacity = (rows, columns)
        for layer in self.layers:
            if layer.is_initialized:
                layer.resize()

    def fill(self, slots: Tensor, prefilled: DynamicCache, index: Tensor) -> None:
        """Copy row `index[i]` of a prefilled cache into slot `slots[i]`."""
        for layer, source in zip(self.layers, prefilled.layers, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(source.keys, source.values)
            layer.keys[slots, :, : source.keys.shape[2]] = source.keys[index]
            layer.values[slots, :, : source.values.shape[2]] = source.values[index]

    def move(self, source: int, target: int) -> None:
        """Copy the row of slot `source` over that of slot `target`."""
        for layer in self.layers:
            layer.keys[target, :, : self.width] = layer.keys[source, :, : self.width]
            layer.values[target, :, : self.width] = layer.values[source, :, : self.width]


def full_attention_layers(config: Any) -> int | None:
    """Return the number of layers if all of them attend to all earlier tokens, else None."""
    layers = DynamicCache(config=config).layers
    return len(layers) if all(type(layer) is DynamicLayer for layer in layers) else None
