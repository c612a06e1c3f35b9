"""Shape of a model, read from its config.json and safetensors headers without loading weights."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappa_core.engine import Lora
from mappa_engine.errors import ModelError
from mappa_engine.model_path import resolve_model_path

TensorShapes = Mapping[str, tuple[int, ...]]
"""Tensor shapes by name."""

_HEADER_LENGTH_BYTES = 8
_LONGEST_HEADER = 100 << 20
_OF_A_LAYER = re.compile(r"\.\d+\.(?:.+\.)?(?P<module>\w+)\.weight$")
_HEAD = "lm_head.weight"
_QUERY_NORM = ".q_norm.weight"
_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
LARGE_MODEL = 10_000_000
"""Weights from which a model is computed on several cores. An operation of a smaller one takes less time than threads
take to meet; and on one thread its sums are the same on every number of cores."""


def is_large(weights: int) -> bool:
    """Whether a model of so many weights is computed by what saves time and changes the order of sums."""
    return weights >= LARGE_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes that determine memory and compute. Counts are of numbers, not bytes; a tied output head is counted once."""

    model: str
    parameters: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    window: int
    tied: bool
    largest: int
    """Size of the largest tensor."""
    linears: tuple[tuple[str, int], ...]
    """Each linear layer of the decoder: the last part of its name, and its input plus output features."""
    query_norm: bool = False
    """Whether queries and keys are normed (Qwen3)."""

    @property
    def kv_per_token(self) -> int:
        """Size of the KV cache per token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def adapter(self, lora: Lora) -> int:
        """Return the number of parameters of an adapter."""
        return lora.rank * sum(width for name, width in self.linears if lora.targets is None or name in lora.targets)


def read_shape(model: str) -> ModelShape:
    """Read the shape of `model` (a Hugging Face id, a folder, or `package:NAME/PATH`).

    For an id, files in the local cache are read; if they are not cached, config.json and headers, a few kilobytes, are
    fetched from the hub.

    Raises:
        ModelError: there is no such model, or its shape cannot be read from its files.
    """
    place = resolve_model_path(model)
    folder = Path(place)
    if folder.is_dir():
        return parse_shape(model, _config(folder / "config.json", model), _tensors(folder, model))
    return parse_shape(model, *_of_hub(place))


def parse_shape(model: str, config: Mapping[str, Any], tensors: TensorShapes) -> ModelShape:
    """Derive the shape from a config.json and tensor shapes. Raises ModelError if a size is missing."""
    text = config.get("text_config", config)

    def size(*names: str) -> int:
        found = next((text[name] for name in names if isinstance(text.get(name), int)), None)
        if found is None:
            raise ModelError(f"{model}: config.json does not say {names[0]}, so what it needs cannot be computed")
        return int(found)

    heads, hidden = size("num_attention_heads"), size("hidden_size")
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", True)))
    counted = {name: math.prod(shape) for name, shape in tensors.items() if not (tied and name == _HEAD)}
    if not counted:
        raise ModelError(
            f"{model}: there are no tensors in its safetensors files. Check that the folder holds the whole model."
        )
    return ModelShape(
        model=model,
        parameters=sum(counted.values()),
        layers=size("num_hidden_layers"),
        hidden=hidden,
        intermediate=size("intermediate_size"),
        heads=heads,
        kv_heads=size("num_key_value_heads", "num_attention_heads"),
        head_dim=size("head_dim") if text.get("head_dim") else hidden // heads,
        vocabulary=size("vocab_size"),
        window=size("max_position_embeddings"),
        tied=tied,
        largest=max(counted.values()),
        linears=tuple(_linears(tensors)),
        query_norm=any(name.endswith(_QUERY_NORM) for name in tensors),
    )


def _linears(tensors: TensorShapes) -> Iterator[tuple[str, int]]:
    for name, shape in tensors.items():
        found = _OF_A_LAYER.search(name)
        if found is not None and len(shape) == 2:
            yield found["module"], sum(shape)


def _config(path: Path, model: str) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{model}: {path} cannot be read: {error}. Check that the folder holds the whole model."
        ) from error
    if not isinstance(config, dict):
        raise ModelError(
            f"{model}: {path} holds no settings, but a list or a value. Put the model's own config.json there."
        )
    return config


def _tensors(folder: Path, model: str) -> TensorShapes:
    """Read the shapes of all tensors of a folder. Raises ModelError if a file of its index is missing."""
    tensors: dict[str, tuple[int, ...]] = {}
    for path in _files(folder, model):
        tensors |= _header(path, model)
    return tensors


def _files(folder: Path, model: str) -> list[Path]:
    """Return the files that make up the model: a folder may also hold the same weights in another format."""
    index, whole = folder / _INDEX, folder / _WHOLE
    if index.is_file():
        return [folder / name for name in sorted(set(_config(index, model)["weight_map"].values()))]
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


def _header(path: Path, model: str) -> TensorShapes:
    """Read the header of a safetensors file: eight bytes of length, then JSON."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_HEADER_LENGTH_BYTES), "little")
            if length > _LONGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
        return {name: tuple(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{model}: {path} is no safetensors file, or damaged: {error}. Download the model again."
        ) from error


def _of_hub(model: str) -> tuple[Mapping[str, Any], TensorShapes]:
    """Return config.json and tensor shapes of a model on the hub, from the local cache if all of it is there."""
    try:
        import huggingface_hub as hub
    except ModuleNotFoundError as error:
        raise ModelError(f'{model}: a model of the hub needs huggingface_hub: pip install "mappa-engine"') from error
    cached = hub.try_to_load_from_cache(model, "config.json")
    if isinstance(cached, str):
        files = _files(Path(cached).parent, model)
        if files and all(path.is_file() for path in files):
            return _config(Path(cached), model), _tensors(Path(cached).parent, model)
    try:
        # Metadata comes first: without a network it fails at once, while a download is retried for half a minute.
        metadata = hub.get_safetensors_metadata(model).files_metadata
        config = hub.hf_hub_download(model, "config.json")
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{model}: it is not a folder, not all of it is in this machine's cache, and the Hugging Face hub did not "
            f"give it ({reason}). Check the name and the network, or download the model and name its folder."
        ) from error
    shapes = {name: tuple(tensor.shape) for file in metadata.values() for name, tensor in file.tensors.items()}
    return _config(Path(config), model), shapes
