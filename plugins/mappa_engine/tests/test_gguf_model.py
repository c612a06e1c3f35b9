"""Models in one GGUF file: what is converted is what the file holds, and bad files end in one line."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mappa_engine.errors import ModelError
from mappa_engine.model_info import read_model_info
from mappa_engine.model_path import resolve_model_path
from mappa_engine.model_shape import read_shape

SPECIAL = ["<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *(letter for _, letter in sorted(bytes_to_unicode().items())), "ab"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LAYERS, HEADS, KV_HEADS, HIDDEN, INNER = 2, 4, 2, 64, 96
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=128, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mappa" / "models"


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key as llama.cpp keeps them: halves of a head's rotation taken in turns."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write(model, path, *, kind=gguf.GGMLQuantizationType.F32, template=TEMPLATE):
    writer = gguf.GGUFWriter(path, "llama")
    for put, value in {
        "block_count": LAYERS, "context_length": 128, "embedding_length": HIDDEN, "feed_forward_length": INNER,
        "head_count": HEADS, "head_count_kv": KV_HEADS, "layer_norm_rms_eps": 1e-6, "vocab_size": len(TOKENS),
        "rope_freq_base": 10000.0, "tokenizer_model": "gpt2", "tokenizer_pre": "smollm", "token_list": TOKENS,
        "token_merges": ["a b"], "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
        "token_types": [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)),
    }.items():  # fmt: skip
        getattr(writer, f"add_{put}")(value)
    if template is not None:
        writer.add_chat_template(template)
    for name, tensor in model.named_parameters():
        add(writer, name, tensor.detach().numpy(), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer, name, values, kind):
    if name == "model.embed_tokens.weight":
        name = "token_embd.weight"
    elif name == "model.norm.weight":
        name = "output_norm.weight"
    else:
        _, _, layer, part = name.removesuffix(".weight").split(".", 3)
        if part in ("self_attn.q_proj", "self_attn.k_proj"):
            values = permuted(values, HEADS if part == "self_attn.q_proj" else KV_HEADS)
        name = f"blk.{layer}.{NAMES[part]}.weight"
    if values.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, values)


def test_the_converted_model_is_the_one_that_was_written(model, tmp_path, cache):
    file = write(model, tmp_path / "small.gguf")
    folder = resolve_model_path(str(file))
    assert folder == str(next(cache.glob("small-*[!k]")))
    converted = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert converted.keys() == model.state_dict().keys()
    assert all(torch.equal(converted[name], tensor) for name, tensor in model.state_dict().items())
    info = read_model_info(str(file))
    assert (info.window, info.stops) == (128, {1})
    assert read_shape(str(file)).parameters == sum(weight.numel() for weight in model.parameters())
    assert AutoTokenizer.from_pretrained(folder).chat_template == TEMPLATE


def test_quantised_weights_are_what_ggufs_own_arithmetic_says(model, tmp_path):
    kind = gguf.GGMLQuantizationType.Q4_1
    file = write(model, tmp_path / "q4.gguf", kind=kind)
    converted = AutoModelForCausalLM.from_pretrained(resolve_model_path(str(file))).state_dict()
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"):
        exact = model.state_dict()[name].numpy()
        meant = gguf.quants.dequantize(gguf.quants.quantize(exact, kind), kind)
        np.testing.assert_array_equal(converted[name].numpy(), meant)
        assert not np.array_equal(meant, exact)


def test_it_is_converted_once(model, tmp_path, cache):
    first = resolve_model_path(str(write(model, tmp_path / "small.gguf")))
    (cache / "mark").touch()
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    assert resolve_model_path(str(tmp_path / "small.gguf")) == first
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before


def test_a_conversion_that_was_killed_is_made_anew(model, tmp_path, cache):
    folder = resolve_model_path(str(write(model, tmp_path / "small.gguf")))
    half = cache / f"{folder.rpartition('/')[2]}.partial"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    for path in sorted((cache / folder).iterdir()):
        path.unlink()
    (cache / folder).rmdir()
    assert resolve_model_path(str(tmp_path / "small.gguf")) == folder
    assert not half.exists()
    assert read_model_info(folder).window == 128


def test_the_file_of_a_package_is_found(model, tmp_path, monkeypatch):
    package = tmp_path / "package_with_a_model"
    package.mkdir()
    (package / "__init__.py").touch()
    write(model, package / "small.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    assert read_model_info("package:package_with_a_model").window == 128
    assert read_model_info("package:package_with_a_model/small.gguf").window == 128
    write(model, package / "other.gguf")
    with pytest.raises(ModelError, match=r"holds 2 models \(other.gguf, small.gguf\). Name one file"):
        read_model_info("package:package_with_a_model")


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.9, 0.999])
def test_a_file_that_was_cut_off(model, tmp_path, cache, share):
    whole = write(model, tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: max(5, int(len(whole) * share))])
    with pytest.raises(ModelError, match=r"cut.gguf cannot be read as a model .*Check that the file is complete"):
        resolve_model_path(str(cut))
    assert not list(cache.glob("cut-*[0-9]"))


def test_files_that_are_no_models(model, tmp_path):
    (tmp_path / "text.gguf").write_text("a model, they said")
    with pytest.raises(ModelError, match="is no GGUF file"):
        resolve_model_path(str(tmp_path / "text.gguf"))
    file = write(model, tmp_path / "base.gguf", template=None)
    with pytest.raises(ModelError, match=r"no chat template.*use another model"):
        resolve_model_path(str(file))
    with pytest.raises(ModelError, match="there is no"):
        resolve_model_path(str(tmp_path / "missing.gguf"))


def test_a_cache_that_cannot_be_written(model, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set XDG_CACHE_HOME to another folder"):
        resolve_model_path(str(write(model, tmp_path / "small.gguf")))


def test_without_the_package_gguf_the_error_names_it(model, tmp_path, monkeypatch):
    file = write(model, tmp_path / "small.gguf")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'mappa-engine\[gguf\]'"):
        resolve_model_path(str(file))
