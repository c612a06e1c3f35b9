"""Model folders to modules: found, loaded from safetensors only, and checked before anything is trained on them."""

from __future__ import annotations

import importlib.resources
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache
from transformers.utils import logging as transformers_logging

from mappa_core.engine.chat import Chat
from mappa_core.engine.local.attention import ATTENTION, SlotCache, full_attention_layers
from mappa_core.errors import ModelError

_PACKAGE = "package:"
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""Nats by which two ways to the same log-probability may differ; a wrong way is off by far more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """One model as loaded. `model` is frozen; learners copy it."""

    where: str
    model: Any
    chat: Chat
    stops: frozenset[int]
    window: int
    layers: int


def locate(spec: str) -> str:
    """A folder on disk, or a Hugging Face id, of `spec` (id, folder, or `package:NAME/PATH`)."""
    if spec.startswith(_PACKAGE):
        package, _, path = spec.removeprefix(_PACKAGE).partition("/")
        try:
            folder = Path(str(importlib.resources.files(package).joinpath(path)))
        except ModuleNotFoundError as error:
            raise ModelError(f"{spec}: the package {package} is not installed") from error
    else:
        folder = Path(spec).expanduser()
        named_like_a_path = spec.startswith((".", "~", "/")) or spec.count("/") > 1
        if not folder.exists() and not named_like_a_path:
            return spec
    if not folder.is_dir():
        raise ModelError(f"{spec}: there is no folder {folder}. Name a model folder or a Hugging Face id.")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{spec}: {folder} holds no weights (*.safetensors). Save the model with safetensors.")
    return str(folder)


def load_source(spec: str, *, device: torch.device, dtype: torch.dtype) -> Source:
    """Load a model and its tokenizer. Code that comes with a model is never run, pickled weights are never read."""
    place = locate(spec)
    transformers_logging.disable_progress_bar()
    tokenizer = _load(AutoTokenizer, place, spec, "tokenizer")
    # Where a folder holds no tokenizer, transformers makes an empty one up.
    if not tokenizer("a", add_special_tokens=False)["input_ids"]:
        raise ModelError(f"{spec}: no tokenizer in {place}. Put the model's tokenizer.json there.")
    chat = Chat(tokenizer, where=spec)
    config = _load(AutoConfig, place, spec, "config.json")
    layers = full_attention_layers(config)
    if layers is None:
        raise ModelError(
            f"{spec}: not every layer of this {config.model_type} model attends to all earlier tokens (sliding window "
            f"or recurrent layers). The local engine does not decode such models; choose another model."
        )
    model = _load(
        AutoModelForCausalLM, place, spec, "weights", dtype=dtype, use_safetensors=True, attn_implementation=ATTENTION
    )
    # Dropout would make the learner's log-probabilities differ from the sampler's.
    model = model.to(device).eval().requires_grad_(False)
    source = Source(
        where=spec,
        model=model,
        chat=chat,
        stops=_stops(model, tokenizer, spec),
        window=_window(config, spec),
        layers=layers,
    )
    _check(source)
    return source


def _load(loader: Any, place: str, spec: str, what: str, **kwargs: Any) -> Any:
    try:
        return loader.from_pretrained(place, trust_remote_code=False, **kwargs)
    except (OSError, ValueError, KeyError) as error:
        on_disk = Path(place).is_dir()
        advice = (
            "Check that the folder is complete and of a model that transformers knows."
            if on_disk
            else "It is not a folder here, and the Hugging Face hub did not give it: check the name and the network, "
            "or download the model and name its folder."
        )
        raise ModelError(f"{spec}: its {what} cannot be loaded. {advice} ({error})") from error


def _stops(model: Any, tokenizer: Any, spec: str) -> frozenset[int]:
    """Every token that ends an answer by the model's own settings."""
    stops: set[int] = set()
    for end in (model.generation_config.eos_token_id, tokenizer.eos_token_id):
        stops.update(end if isinstance(end, list) else [] if end is None else [end])
    if not stops:
        raise ModelError(f"{spec}: neither tokenizer nor generation_config.json names an eos token that ends an answer")
    return frozenset(stops)


def _window(config: Any, spec: str) -> int:
    window = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if not isinstance(window, int):
        raise ModelError(f"{spec}: config.json has no max_position_embeddings, so the window of the model is unknown")
    return window


@torch.inference_mode()
def _check(source: Source) -> None:
    """Refuse a model whose answers our ways of computing them would get wrong.

    The engine leaves out the model's own forward (which may scale or cap logits after the head) and decodes rows of
    different lengths in one batch; both must give what the model gives by itself.
    """
    model, length = source.model, min(9, source.window)
    device = model.device
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(2 * length, device=device).view(2, length) * 7919 + 13) % vocabulary
    expected = torch.log_softmax(model(input_ids=ids).logits.float(), dim=-1)
    hidden = model.base_model(input_ids=ids).last_hidden_state
    found = torch.log_softmax(model.get_output_embeddings()(hidden).float(), dim=-1)
    _compare(found, expected, source, "changes logits after its output head")
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
        found = torch.log_softmax(model.get_output_embeddings()(hidden).float(), dim=-1)
        _compare(found, expected[rows, positions], source, "gives other results when decoded in a ragged batch")


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


def _compare(found: Tensor, expected: Tensor, source: Source, fault: str) -> None:
    gap = (found - expected).abs().max().item()
    if not gap <= _TOLERANCE[source.model.dtype]:
        kind = source.model.config.model_type
        raise ModelError(f"{source.where}: this {kind} model {fault} ({gap:.2g} nats); the local engine cannot use it")
