"""Shapes are read from headers, and are those of the models that torch loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from mappa_core.engine import Lora
from mappa_engine.adapters import Adapters
from mappa_engine.errors import ModelError
from mappa_engine.model_shape import read_shape


def test_parameters_are_those_that_torch_loads(model):
    loaded = AutoModelForCausalLM.from_pretrained(model)
    shape = read_shape(model)
    assert shape.parameters == sum(parameter.numel() for parameter in loaded.parameters())
    assert shape.largest == max(parameter.numel() for parameter in loaded.parameters())
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.window) == (2, 32, 4, 2, 160)
    assert shape.tied == loaded.config.tie_word_embeddings


@pytest.mark.parametrize("targets", [None, ("q_proj", "down_proj")])
def test_adapters_are_as_large_as_those_that_peft_makes(model, targets):
    lora = Lora(rank=4, alpha=8.0, targets=targets)
    adapters = Adapters(AutoModelForCausalLM.from_pretrained(model), model_name=model)
    adapters.add("solver", lora, seed=0)
    assert read_shape(model).adapter(lora) == sum(
        parameter.numel() for parameter in adapters.parameters("solver").values()
    )


def copied(model, tmp_path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "model"))


def test_only_files_of_the_index_count(qwen3, tmp_path):
    folder = copied(qwen3, tmp_path)
    names = ["model-1.safetensors", "model-2.safetensors"]
    shutil.copy(folder / "model.safetensors", folder / names[0])
    index = {"weight_map": {"model.norm.weight": names[0]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_shape(str(folder)).parameters == read_shape(qwen3).parameters
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    with pytest.raises(ModelError, match=r"model-2\.safetensors is no safetensors file, or damaged"):
        read_shape(str(folder))


@pytest.mark.parametrize("damage", [b"", b"\xff" * 8, b"\x02" + b"\0" * 7 + b"[]", b"\x02" + b"\0" * 7 + b"{"])
def test_damaged_files_are_refused(qwen3, tmp_path, damage):
    folder = copied(qwen3, tmp_path)
    (folder / "model.safetensors").write_bytes(damage)
    with pytest.raises(ModelError, match="is no safetensors file, or damaged"):
        read_shape(str(folder))


def test_a_config_that_lacks_a_size_is_refused(qwen3, tmp_path):
    folder = copied(qwen3, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"config\.json does not say num_hidden_layers"):
        read_shape(str(folder))
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds no settings"):
        read_shape(str(folder))


def test_a_model_of_the_hub_is_read_from_the_cache(qwen3, tmp_path, monkeypatch):
    commit = "0" * 40
    repository = tmp_path / "models--someone--small"
    shutil.copytree(qwen3, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert read_shape("someone/small").parameters == read_shape(qwen3).parameters


def test_missing_model_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="not all of it is in this machine's cache"):
        read_shape("someone/small")
