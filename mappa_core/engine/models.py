"""What every engine must know of a model before it loads any weight: where it is, how it speaks, when it ends, how much
it sees, and which tensors it has."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")

from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from mappa_core.engine.chat import Chat
from mappa_core.engine.places import locate
from mappa_core.errors import ModelError

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """A model but for its weights."""

    where: str
    """As the recipe names it."""
    place: str
    """A folder on disk, or a Hugging Face id."""
    chat: Chat
    stops: frozenset[int]
    """Every token that ends an answer."""
    window: int
    """Tokens that it sees at most."""
    config: Any


def read(spec: str) -> Reading:
    """Read a model but for its weights. Raises ModelError where it cannot be used."""
    place = locate(spec)
    tokenizer = from_place(AutoTokenizer, place, spec, "tokenizer")
    # Where a folder holds no tokenizer, transformers makes an empty one up.
    if not tokenizer("a", add_special_tokens=False)["input_ids"]:
        raise ModelError(f"{spec}: no tokenizer in {place}. Put the model's tokenizer.json there.")
    chat = Chat(tokenizer, where=spec)
    config = from_place(AutoConfig, place, spec, "config.json")
    return Reading(
        where=spec,
        place=place,
        chat=chat,
        stops=_stops(_generation(place, config), tokenizer, spec),
        window=_window(config, spec),
        config=config,
    )


def from_place(loader: Any, place: str, spec: str, what: str, **kwargs: Any) -> Any:
    """What a class of transformers loads from `place`. Code that comes with a model is never run."""
    transformers_logging.disable_progress_bar()
    try:
        return loader.from_pretrained(place, trust_remote_code=False, **kwargs)
    except (OSError, ValueError, KeyError) as error:
        advice = (
            "Check that the folder is complete and of a model that transformers knows."
            if Path(place).is_dir()
            else "It is not a folder here, and the Hugging Face hub did not give it: check the name and the network, "
            "or download the model and name its folder."
        )
        raise ModelError(f"{spec}: its {what} cannot be loaded. {advice} ({error})") from error


def tensor_names(place: str) -> frozenset[str]:
    """The names of all tensors that a folder's, or a Hugging Face id's, weights hold; none is loaded.

    Weights that are tied are stored, and named, once. Raises ModelError where there are no weights.
    """
    single = _part(place, _FILE)
    if single is not None:
        with safe_open(single, framework="np") as file:
            return frozenset(file.keys())
    index = _part(place, _INDEX)
    if index is not None:
        return frozenset(json.loads(index.read_text())["weight_map"])
    raise ModelError(
        f"{place}: there is neither {_FILE} nor {_INDEX}. Save the model with safetensors, or check name and network."
    )


def tied(config: Any) -> bool:
    """Whether the output head is the embedding, so that weights hold it under the embedding's name only."""
    return bool(config.get_text_config(decoder=True).tie_word_embeddings)


def _part(place: str, name: str) -> Path | None:
    """One file of a folder, or of the hub's local cache, fetched where it is not yet there; None: there is none."""
    try:
        return Path(cached_file(place, name))
    except OSError:
        return None


def _generation(place: str, config: Any) -> Any:
    """The model's settings for sampling: those beside it, or else what its config says, as in transformers."""
    try:
        return GenerationConfig.from_pretrained(place)
    except OSError:
        return GenerationConfig.from_model_config(config)


def _stops(generation: Any, tokenizer: Any, spec: str) -> frozenset[int]:
    """Every token that ends an answer by the model's own settings."""
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
