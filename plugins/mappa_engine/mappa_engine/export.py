"""Export policies of a checkpoint as Hugging Face folders, without an engine, a run or a GPU."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from mappa_core import RunError
from mappa_core.engine import Lora
from mappa_core.sandbox import OwnedFolder
from mappa_engine.adapters import Adapters, save_adapter
from mappa_engine.checkpoint import VALUE_HEAD_PREFIX, WEIGHTS_FILE, StoredTensors, load_start_weights
from mappa_engine.model_info import ModelInfo, load_pretrained, read_model_info
from mappa_engine.model_path import resolve_model_path

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export(folder: Path, out: Path, *, model: str, lora: Lora | None, merged: bool, dtype: str | None) -> None:
    """Export the policy whose weights are in the checkpoint's `folder` to `out`, atomically.

    A `lora` policy becomes an adapter folder for peft, or a merged model if `merged`; any other a model with its
    tokenizer. `dtype` is one of DTYPES, None for that of the base model; adapters stay float32.

    Raises:
        RunError: `out` exists already, or the weights do not match `model`.
        ModelError: `model` cannot be loaded.
    """
    if out.exists():
        raise RunError(f"{out} exists already: choose another folder, or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with closing(OwnedFolder(".export-", out.parent)) as own:
        aside = own.path / out.name
        if lora is not None and not merged:
            with StoredTensors(folder / WEIGHTS_FILE) as stored:
                tensors = {name: stored[name] for name in stored if not name.startswith(VALUE_HEAD_PREFIX)}
            save_adapter(tensors, lora, aside, base=resolve_model_path(model))
        else:
            model_info = read_model_info(model)
            _write_model(model_info, folder, aside, lora=lora, dtype=dtype)
            model_info.chat.tokenizer.save_pretrained(aside)
        aside.rename(out)


@torch.no_grad()
def _write_model(model_info: ModelInfo, folder: Path, out: Path, *, lora: Lora | None, dtype: str | None) -> None:
    own: Any = model_info.config.dtype or torch.float32
    model = load_pretrained(
        AutoModelForCausalLM,
        model_info.model_path,
        model_info.model_name,
        "weights",
        dtype=torch.float32,
        use_safetensors=True,
    )
    if lora is None:
        weights = dict(model.named_parameters())
        _fill(weights, folder, model_info.model_name)
    else:
        adapters = Adapters(model, model_name=model_info.model_name)
        adapters.add("merged", lora, seed=0)
        _fill(adapters.parameters("merged"), folder, model_info.model_name)
        weights = adapters.merge("merged")
    # Weights are rounded once, from float32; the model is converted so that its config names the dtype.
    model.to(own if dtype is None else DTYPES[dtype])
    model.save_pretrained(out, state_dict={name: weight.to(model.dtype) for name, weight in weights.items()})


def _fill(parameters: dict[str, Any], folder: Path, model_name: str) -> None:
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    for name, weight in load_start_weights(folder, shapes, model_name=model_name).items():
        parameters[name].copy_(weight)
