"""Attention of a decoding step, with the memory layouts that devices return."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from mappa_engine.local import kv_cache

ROWS, HEADS, GROUPS, WIDTH, SIZE = 3, 6, 2, 5, 4


def kernel_with_tokens_before_heads(*args, **options):
    """sdpa with the layout of its CUDA kernels: (rows, tokens, heads, size), seen as (rows, heads, tokens, size)."""
    return scaled_dot_product_attention(*args, **options).transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("kernel", [scaled_dot_product_attention, kernel_with_tokens_before_heads])
def test_a_decoding_step_equals_attention_with_repeated_keys(kernel, monkeypatch):
    monkeypatch.setattr(kv_cache, "scaled_dot_product_attention", kernel)
    random = torch.Generator().manual_seed(0)
    query = torch.randn(ROWS, HEADS, 1, SIZE, generator=random)
    key, value = torch.randn(2, ROWS, GROUPS, WIDTH, SIZE, generator=random)
    seen = torch.arange(WIDTH) < torch.tensor([2, 5, 3])[:, None]
    out, _ = kv_cache.grouped_attention(torch.nn.Module(), query, key, value, seen[:, None, None])
    repeated = [part.repeat_interleave(HEADS // GROUPS, dim=1) for part in (key, value)]
    expected = scaled_dot_product_attention(query, *repeated, attn_mask=seen[:, None, None]).transpose(1, 2)
    torch.testing.assert_close(out, expected)
