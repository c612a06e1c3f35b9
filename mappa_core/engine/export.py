"""Policies of a checkpoint as ordinary Hugging Face folders: no engine, no run and no GPU is needed."""

from __future__ import annotations

import shutil
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from mappa_core.engine.adapters import Adapters, write_folder
from mappa_core.engine.checkpoint import VALUE_HEAD, WEIGHTS, start_weights
from mappa_core.engine.models import Reading, from_place, read
from mappa_core.engine.places import locate
from mappa_core.errors import RunError
from mappa_core.protocols import Lora

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export(folder: Path, out: Path, *, model: str, lora: Lora | None, merged: bool, dtype: str | None) -> None:
    """Write the policy whose weights lie in `folder` of a checkpoint to `out`, whole or not at all.

    A `lora` policy is its adapter, as peft loads it, or with its model where `merged`; any other is a model with its
    tokenizer. `dtype` is one of DTYPES, None for that of the model's own folder; adapters stay float32.

    Raises:
        RunError: `out` is there already, or the weights are not of `model`.
        ModelError: `model` cannot be loaded.
    """
    if out.exists():
        raise RunError(f"{out} exists already: choose another folder, or remove it")
    aside = out.with_name(f".{out.name}.{token_hex(4)}")
    try:
        if lora is not None and not merged:
            tensors = {name: one for name, one in load_file(folder / WEIGHTS).items() if not _of_value_head(name)}
            write_folder(tensors, lora, aside, base=locate(model))
        else:
            reading = read(model)
            _write_model(reading, folder, aside, lora=lora, dtype=dtype)
            reading.chat.tokenizer.save_pretrained(aside)
        aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@torch.no_grad()
def _write_model(reading: Reading, folder: Path, out: Path, *, lora: Lora | None, dtype: str | None) -> None:
    own: Any = reading.config.dtype or torch.float32
    model = from_place(
        AutoModelForCausalLM, reading.place, reading.where, "weights", dtype=torch.float32, use_safetensors=True
    )
    if lora is None:
        weights = dict(model.named_parameters())
        _fill(weights, folder, reading.where)
    else:
        adapters = Adapters(model, where=reading.where)
        adapters.add("merged", lora, seed=0)
        _fill(adapters.parameters("merged"), folder, reading.where)
        weights = adapters.merged("merged")
    # Rounded once, from float32; the model itself is converted for what its config then says.
    model.to(own if dtype is None else DTYPES[dtype])
    model.save_pretrained(out, state_dict={name: one.to(model.dtype) for name, one in weights.items()})


def _fill(parameters: dict[str, Any], folder: Path, where: str) -> None:
    shapes = {name: one.shape for name, one in parameters.items()}
    for name, one in start_weights(folder, shapes, where=where).items():
        parameters[name].copy_(one)


def _of_value_head(name: str) -> bool:
    return name.startswith(VALUE_HEAD)
