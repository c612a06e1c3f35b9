"""Load models, from safetensors only, and check them before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from mappa_engine.adapters import Adapters
from mappa_engine.chat import Chat
from mappa_engine.errors import ModelError
from mappa_engine.learning.batching import BatchLayout
from mappa_engine.learning.model_checks import check_hidden, check_model
from mappa_engine.local.kv_cache import ATTENTION, SlotCache, full_attention_layers
from mappa_engine.model_info import load_pretrained, read_model_info


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedModel:
    """A loaded model. `model` is frozen: fully trained policies copy it, and adapters are added to it."""

    model_name: str
    model: Any
    weights: int
    """How many there are, tied ones once."""
    chat: Chat
    stops: frozenset[int]
    window: int
    layers: int
    kv_bytes: int
    """Size of the keys and values of one token."""
    adapters: Adapters


def load_model(spec: str, *, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Load a model and its tokenizer. Code that comes with a model is never run, pickled weights are never read."""
    model_info = read_model_info(spec)
    layers = full_attention_layers(model_info.config)
    if layers is None:
        raise ModelError(
            f"{spec}: not every layer of this {model_info.config.model_type} model attends to all earlier tokens "
            f"(sliding window or recurrent layers). The local engine does not decode such models; choose another model."
        )
    model = load_pretrained(
        AutoModelForCausalLM,
        model_info.model_path,
        spec,
        "weights",
        dtype=dtype,
        use_safetensors=True,
        attn_implementation=ATTENTION,
    )
    # Dropout would make the learner's log-probabilities differ from the sampler's.
    model = model.to(device).eval().requires_grad_(False)
    kv_bytes = _check(model, spec, layers=layers, window=model_info.window)
    return LoadedModel(
        model_name=spec,
        model=model,
        weights=sum(parameter.numel() for parameter in model.parameters()),
        chat=model_info.chat,
        stops=model_info.stops,
        window=model_info.window,
        layers=layers,
        kv_bytes=kv_bytes,
        adapters=Adapters(model, model_name=model_info.model_path, autocast=True),
    )


@torch.inference_mode()
def _check(model: Any, model_name: str, *, layers: int, window: int) -> int:
    """Return the size of the keys and values of one token. Raises ModelError if decoding rows of different lengths in
    one batch gives other results than the model's own forward pass."""
    check_model(model, BatchLayout("padded", 1), model_name=model_name)
    length = min(9, window)
    device = model.device
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(2 * length, device=device).view(2, length) * 7919 + 13) % vocabulary
    expected = model(input_ids=ids).logits
    prefilled = DynamicCache(config=model.config)
    model.base_model(input_ids=ids[:, : length - 3], past_key_values=prefilled, use_cache=True)
    rows = torch.arange(2, device=device)
    cache = SlotCache(layers, max_tokens=2 * length)
    cache.reserve(2, length)
    cache.fill(rows, prefilled, rows)
    starts = torch.tensor([length - 4, length - 3], device=device)
    for step in range(2):
        positions = starts + step
        hidden = decode_step(model, cache, ids[rows, positions], positions, int(positions.max()) + 1)
        fault = "gives other results when decoded in a ragged batch"
        check_hidden(model, hidden, expected[rows, positions], model_name=model_name, fault=fault)
    stored = [tensor for layer in prefilled.layers for tensor in (layer.keys, layer.values)]
    slots: int = prefilled.layers[0].keys[:, 0, :, 0].numel()
    return sum(int(tensor.nbytes) for tensor in stored) // slots


def decode_step(model: Any, cache: SlotCache, tokens: Tensor, positions: Tensor, width: int) -> Tensor:
    """Compute the hidden states (n, d) of one new token (n,) at `positions` (n,) in each of the first n slots."""
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
