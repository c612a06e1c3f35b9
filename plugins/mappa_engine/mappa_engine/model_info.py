"""Model information read before any weight is loaded: path, chat template, stop tokens, window, names of weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from mappa_engine.chat import Chat
from mappa_engine.errors import ModelError
from mappa_engine.model_path import resolve_model_path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelInfo:
    """All of a model except its weights."""

    model_name: str
    """The name in the recipe."""
    model_path: str
    """A folder on disk, or a Hugging Face id."""
    chat: Chat
    stops: frozenset[int]
    """Every token that ends an answer."""
    window: int
    """Maximum context length, in tokens."""
    config: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Names of a model's weights, tied ones once."""

    names: frozenset[str]
    tied: Mapping[str, str]
    """Second name of every tied weight, by the one in `names`."""


def read_model_info(spec: str) -> ModelInfo:
    """Read everything of a model except its weights. Raises ModelError if it cannot be used."""
    model_path = resolve_model_path(spec)
    tokenizer = load_pretrained(AutoTokenizer, model_path, spec, "tokenizer")
    # For a folder without a tokenizer, transformers creates an empty one.
    if not tokenizer("a", add_special_tokens=False)["input_ids"]:
        raise ModelError(f"{spec}: no tokenizer in {model_path}. Put the model's tokenizer.json there.")
    chat = Chat(tokenizer, model_name=spec)
    config = load_pretrained(AutoConfig, model_path, spec, "config.json")
    return ModelInfo(
        model_name=spec,
        model_path=model_path,
        chat=chat,
        stops=_stops(_generation(model_path, config), tokenizer, spec),
        window=_window(config, spec),
        config=config,
    )


def load_pretrained(loader: Any, model_path: str, spec: str, what: str, **kwargs: Any) -> Any:
    """Load with a class of transformers from `model_path`. Code that comes with a model is never run."""
    transformers_logging.disable_progress_bar()
    try:
        return loader.from_pretrained(model_path, trust_remote_code=False, **kwargs)
    except (OSError, ValueError, KeyError) as error:
        advice = (
            "Check that the folder is complete and of a model that transformers knows."
            if Path(model_path).is_dir()
            else "It is not a folder here, and the Hugging Face hub did not give it: check the name and the network, "
            "or download the model and name its folder."
        )
        raise ModelError(f"{spec}: its {what} cannot be loaded. {advice} ({error})") from error


def read_weight_names(model_info: ModelInfo) -> WeightNames:
    """Return the names of a model's weights as its class has them, without loading any.

    A model's files may name others: some store a tied output head a second time. Raises ModelError if the model is no
    causal language model.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model_info.config, trust_remote_code=False)
    except ValueError as error:
        raise ModelError(f"{model_info.model_name}: this is no causal language model ({error})") from error
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known != name:
            tied[known] = name
    return WeightNames(names=frozenset(first.values()), tied=tied)


def _generation(model_path: str, config: Any) -> Any:
    """Return the model's generation config, derived from its config if it has none, as transformers does."""
    try:
        return GenerationConfig.from_pretrained(model_path)
    except OSError:
        return GenerationConfig.from_model_config(config)


def _stops(generation: Any, tokenizer: Any, spec: str) -> frozenset[int]:
    """Return every token that ends an answer according to the model's own settings."""
    stops: set[int] = set()
    for end in (generation.eos_token_id, tokenizer.eos_token_id):
        stops.update(end if isinstance(end, list) else [] if end is None else [end])
    if not stops:
        raise ModelError(f"{spec}: neither tokenizer nor generation_config.json names an eos token that ends an answer")
    return frozenset(stops)


def _window(config: Any, spec: str) -> int:
    window = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if not isinstance(window, int):
        raise ModelError(f"{spec}: config.json has no max_position_embeddings, so the window of the model is unknown")
    return window
