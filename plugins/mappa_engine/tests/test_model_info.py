"""Model folders: found wherever they are named, refused with a reason where they cannot be used."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    ViTConfig,
)

from mappa_core import ConfigError
from mappa_engine.errors import ModelError
from mappa_engine.local import LocalEngine
from mappa_engine.local.models import load_model
from mappa_engine.model_info import read_model_info, read_weight_names
from mappa_engine.model_shape import read_shape
from mappa_engine.options import LocalOptions

SHAPE = {
    "vocab_size": 259,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def load(spec):
    return load_model(str(spec), device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture
def copied(qwen3, tmp_path) -> Path:
    shutil.copytree(qwen3, tmp_path / "model")
    return tmp_path / "model"


def save(model, kit, folder: Path) -> Path:
    model.save_pretrained(folder)
    kit.tokenizer().save_pretrained(folder)
    return folder


def test_window_and_stops_are_the_models_own(qwen3, kit):
    source = load(qwen3)
    assert source.window == kit.window
    assert source.stops == {2}


def test_every_eos_of_the_generation_config_stops(copied):
    config = copied / "generation_config.json"
    config.write_text(config.read_text().replace('"eos_token_id": 2', '"eos_token_id": [7, 9]'))
    assert load(copied).stops == {2, 7, 9}


def test_a_folder_inside_a_package_is_found(copied, monkeypatch):
    package = copied.parent / "some_package"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").touch()
    copied.rename(package / "models" / "tiny")
    monkeypatch.syspath_prepend(copied.parent)
    assert load("package:some_package/models/tiny").window == 160
    with pytest.raises(ModelError, match=r"there is no .*some_package/models/large"):
        load("package:some_package/models/large")
    with pytest.raises(ModelError, match="no_such_package is not installed"):
        load("package:no_such_package/models")


def test_model_with_one_key_head_works(kit, tmp_path):
    load(save(Qwen2ForCausalLM(Qwen2Config(**SHAPE)), kit, tmp_path / "qwen2"))


def test_a_missing_folder(tmp_path):
    with pytest.raises(ModelError, match="there is no"):
        load(tmp_path / "nowhere")


def test_no_weights(copied):
    (copied / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        load(copied)


def test_pickled_weights_are_not_read(copied):
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    with pytest.raises(ModelError, match="no weights"):
        load(copied)


def test_no_tokenizer(copied):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copied / name).unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        load(copied)


def test_no_chat_template(copied, kit):
    (copied / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        load(copied)


def test_no_config(copied):
    (copied / "config.json").unlink()
    with pytest.raises(ModelError, match=r"cannot be loaded"):
        load(copied)


def test_unknown_hub_name_is_an_error(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"not a folder here.*check the name and the network"):
        load("no-such-owner/no-such-model")


def test_sliding_windows_are_refused(kit, tmp_path):
    model = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8))
    with pytest.raises(ModelError, match=r"mistral.*sliding window"):
        load(save(model, kit, tmp_path / "mistral"))


def test_logits_changed_after_the_head_are_refused(kit, tmp_path):
    model = CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.01, initializer_range=0.5))
    with pytest.raises(ModelError, match=r"cohere.*after its output head"):
        load(save(model, kit, tmp_path / "cohere"))


def test_a_model_is_read_without_its_weights(model, kit, monkeypatch):
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", None)
    reading = read_model_info(model)
    assert (reading.model_name, reading.model_path, reading.window, reading.stops) == (model, model, kit.window, {2})
    assert reading.chat.decode([3, 4]) == kit.tokenizer().decode([3, 4])


def test_generation_config_defaults_to_the_models_config(copied):
    (copied / "generation_config.json").unlink()
    config = copied / "config.json"
    config.write_text(config.read_text().replace('"eos_token_id": 2', '"eos_token_id": [5, 8]'))
    assert read_model_info(str(copied)).stops == load(copied).stops == {2, 5, 8}


def test_weight_names_are_those_of_the_model(model):
    loaded = AutoModelForCausalLM.from_pretrained(model)
    found = read_weight_names(read_model_info(model))
    assert found.names == dict(loaded.named_parameters()).keys()
    tied = {"model.embed_tokens.weight": "lm_head.weight"}
    assert found.tied == (tied if loaded.config.tie_word_embeddings else {})


def store_head(folder: Path, *, factor: float) -> None:
    """Add `factor` times the embedding of a model's folder to its file as the output head."""
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = factor * weights["model.embed_tokens.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_stored_tied_head_is_counted_once(copied, qwen3):
    store_head(copied, factor=1.0)
    assert read_weight_names(read_model_info(str(copied))) == read_weight_names(read_model_info(qwen3))
    assert read_shape(str(copied)).parameters == read_shape(qwen3).parameters
    assert "lm_head.weight" not in dict(load(copied).model.named_parameters())


def test_tied_head_that_differs_is_refused(copied):
    store_head(copied, factor=2.0)
    with pytest.raises(ModelError, match="ties the output head to the embedding, and its files hold two"):
        load(copied)


def test_other_models_have_no_weight_names(qwen3):
    reading = dataclasses.replace(read_model_info(qwen3), config=ViTConfig())
    with pytest.raises(ModelError, match="no causal language model"):
        read_weight_names(reading)


@pytest.mark.parametrize(
    "wrong", [{"device": "tpu"}, {"dtype": "float16"}, {"threads": 0}, {"threads": "many"}, {"max_batch": 0}]
)
def test_invalid_options_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LocalEngine(LocalOptions(**wrong))


def test_options_chat_and_schedule_import_no_torch():
    program = "import sys, mappa_engine.options, mappa_engine.chat, mappa_engine.lr_schedule\n"
    program += "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
