"""Model folders to modules: loaded from safetensors only, and checked before anything is trained on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from mappa_core.engine.adapters import Adapters
from mappa_core.engine.chat import Chat
from mappa_core.engine.learning.checks import check_hidden, check_model
from mappa_core.engine.learning.layout import Layout
from mappa_core.engine.local.attention import ATTENTION, SlotCache, full_attention_layers
from mappa_core.engine.models import from_place, read
from mappa_core.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """One model as loaded. `model` is frozen: fully trained policies copy it, and adapters are put on it."""

    where: str
    model: Any
    chat: Chat
    stops: frozenset[int]
    window: int
    layers: int
    adapters: Adapters


def load_source(spec: str, *, device: torch.device, dtype: torch.dtype) -> Source:
    """Load a model and its tokenizer. Code that comes with a model is never run, pickled weights are never read."""
    reading = read(spec)
    layers = full_attention_layers(reading.config)
    if layers is None:
        raise ModelError(
            f"{spec}: not every layer of this {reading.config.model_type} model attends to all earlier tokens (sliding "
            f"window or recurrent layers). The local engine does not decode such models; choose another model."
        )
    model = from_place(
        AutoModelForCausalLM,
        reading.place,
        spec,
        "weights",
        dtype=dtype,
        use_safetensors=True,
        attn_implementation=ATTENTION,
    )
    # Dropout would make the learner's log-probabilities differ from the sampler's.
    model = model.to(device).eval().requires_grad_(False)
    source = Source(
        where=spec,
        model=model,
        chat=reading.chat,
        stops=reading.stops,
        window=reading.window,
        layers=layers,
        adapters=Adapters(model, where=reading.place),
    )
    _check(source)
    return source


@torch.inference_mode()
def _check(source: Source) -> None:
    """Refuse a model whose answers our ways of computing them would get wrong: rows of different lengths that are
    decoded in one batch must give what the model gives by itself."""
    check_model(source.model, Layout("padded", 1), where=source.where)
    model, length = source.model, min(9, source.window)
    device = model.device
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(2 * length, device=device).view(2, length) * 7919 + 13) % vocabulary
    expected = model(input_ids=ids).logits
    prefilled = DynamicCache(config=model.config)
    model.base_model(input_ids=ids[:, : length - 3], past_key_values=prefilled, use_cache=True)
    rows = torch.arange(2, device=device)
    cache = SlotCache(source.layers)
    cache.reserve(2, length)
    cache.fill(rows, prefilled, rows)
    starts = torch.tensor([length - 4, length - 3], device=device)
    for step in range(2):
        positions = starts + step
        hidden = decode_step(model, cache, ids[rows, positions], positions, int(positions.max()) + 1)
        fault = "gives other results when decoded in a ragged batch"
        check_hidden(model, hidden, expected[rows, positions], where=source.where, fault=fault)


def decode_step(model: Any, cache: SlotCache, tokens: Tensor, positions: Tensor, width: int) -> Tensor:
    """Hidden states (n, d) after one more token (n,) at `positions` (n,) of each of the first n slots."""
    cache.rows = torch.arange(len(tokens), device=tokens.device)
    cache.positions, cache.width = positions, width
    mask = (torch.arange(width, device=tokens.device) <= positions[:, None])[:, None, None]
    hidden: Tensor = model.base_model(
        input_ids=tokens[:, None],
        position_ids=positions[:, None],
        attention_mask=mask,
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state[:, 0]
    return hidden
