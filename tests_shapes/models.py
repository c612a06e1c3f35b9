"""Models of published shapes with random weights: everything as published except width and depth.

Vocabulary, size of heads, positions, ends of answers, the tied or untied output head and how all is stored are those of
the published files. Tokenizer and chat template are our own, of the same size and form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, logging

BYTE_PAIRS = 151_643
"""Tokens of the byte-level BPE of all four; control tokens follow."""
VOCABULARY = 151_936
"""Rows of embedding and head: more than there are tokens."""
WORDS = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is split into words before bytes are paired."""

_CHATML = (
    "{%- if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ '\nCall with <tool_call>{...}</tool_call><|im_end|>\n' }}{% endif %}"
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.reasoning_content and loop.last %}"
    "{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{- message.content + '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}OPENED{% endif %}"
)
_OPTIONAL_THINKING = (
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
)
_NO_THINKING = (
    "{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe of help.<|im_end|>\n' }}{% endif %}"
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_DISTILLED = (
    "{{ bos_token }}{%- for message in messages %}"
    "{%- if message.role == 'system' %}{{ message.content }}"
    "{%- elif message.role == 'assistant' %}"
    "{{ '<｜Assistant｜>' + message.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}"
    "{%- else %}{{ '<｜User｜>' + message.content }}{% endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)

_QWEN_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>"),
    *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
)
_QWEN3_TOKENS = (*_QWEN_TOKENS, "<tool_response>", "</tool_response>", "<think>", "</think>")
_DISTILLED_TOKENS = (
    *("<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>", "<|EOT|>"),
    *("<think>", "</think>", *_QWEN_TOKENS[7:]),
)

_PUBLISHED = MappingProxyType({
    "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02, "rms_norm_eps": 1e-06,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vocab_size": VOCABULARY,
})  # fmt: skip
_QWEN3 = MappingProxyType({
    **_PUBLISHED, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
    "bos_token_id": 151_643, "eos_token_id": 151_645, "head_dim": 128, "num_key_value_heads": 8,
    "rope_scaling": None, "sliding_window": None, "tie_word_embeddings": True,
})  # fmt: skip
_QWEN2 = MappingProxyType({
    **_PUBLISHED, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1536,
    "intermediate_size": 8960, "num_hidden_layers": 28, "max_window_layers": 21, "num_attention_heads": 12,
    "num_key_value_heads": 2,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedShape:
    """What is published of a model, and what of it tests make smaller."""

    name: str
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    reduced: Mapping[str, int]
    """Sizes in `config` that `write_model` replaces."""
    control_tokens: tuple[str, ...]
    """Tokens after those of the byte pairs, in order."""
    special: Mapping[str, str]
    """Tokens of special use: bos_token, eos_token, pad_token."""
    template: str
    tokenizer_class: str = "Qwen2Tokenizer"
    head_is_stored: bool = False
    """Whether the file of a tied model holds its head as well."""
    files: int = 1
    """Number of safetensors files, with an index if there are several."""


QWEN3_0_6B = PublishedShape(
    name="Qwen3-0.6B",
    config={
        **_QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "max_window_layers": 28,
        "num_attention_heads": 16, "max_position_embeddings": 40_960, "rope_theta": 1_000_000,
    },
    generation={
        "bos_token_id": 151_643, "do_sample": True, "eos_token_id": [151_645, 151_643], "pad_token_id": 151_643,
        "temperature": 0.6, "top_k": 20, "top_p": 0.95,
    },
    reduced={"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2},
    control_tokens=_QWEN3_TOKENS,
    special={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    template=_CHATML.replace("OPENED", _OPTIONAL_THINKING),
    head_is_stored=True,
)  # fmt: skip
QWEN3_4B_THINKING = PublishedShape(
    name="Qwen3-4B-Thinking-2507",
    config={
        **_QWEN3, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "max_window_layers": 36,
        "num_attention_heads": 32, "max_position_embeddings": 262_144, "rope_theta": 5_000_000,
    },
    generation=QWEN3_0_6B.generation,
    reduced={"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 1},
    control_tokens=_QWEN3_TOKENS,
    special=QWEN3_0_6B.special,
    template=_CHATML.replace("OPENED", "{{ '<think>\n' }}"),
    files=3,
)  # fmt: skip
QWEN2_5_1_5B = PublishedShape(
    name="Qwen2.5-1.5B-Instruct",
    config={
        **_QWEN2, "bos_token_id": 151_643, "eos_token_id": 151_645, "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0, "sliding_window": 32_768, "tie_word_embeddings": True,
    },
    generation={
        "bos_token_id": 151_643, "do_sample": True, "eos_token_id": [151_645, 151_643], "pad_token_id": 151_643,
        "repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20, "top_p": 0.8,
    },
    # The size of its heads is width over heads.
    reduced={"hidden_size": 384, "intermediate_size": 512, "num_attention_heads": 3, "num_key_value_heads": 1},
    control_tokens=_QWEN_TOKENS,
    special=QWEN3_0_6B.special,
    template=_NO_THINKING,
)  # fmt: skip
DEEPSEEK_DISTILL_1_5B = PublishedShape(
    name="DeepSeek-R1-Distill-Qwen-1.5B",
    config={
        **_QWEN2, "bos_token_id": 151_643, "eos_token_id": 151_643, "max_position_embeddings": 131_072,
        "rope_theta": 10_000, "sliding_window": 4096, "tie_word_embeddings": False,
    },
    generation={
        "bos_token_id": 151_646, "do_sample": True, "eos_token_id": 151_643, "temperature": 0.6, "top_p": 0.95,
    },
    reduced={"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 2, "num_key_value_heads": 1},
    control_tokens=_DISTILLED_TOKENS,
    special={
        "bos_token": "<｜begin▁of▁sentence｜>",
        "eos_token": "<｜end▁of▁sentence｜>",
        "pad_token": "<｜end▁of▁sentence｜>",
    },
    template=_DISTILLED,
    tokenizer_class="LlamaTokenizerFast",
)  # fmt: skip
SHAPES = (QWEN3_0_6B, QWEN2_5_1_5B, QWEN3_4B_THINKING, DEEPSEEK_DISTILL_1_5B)


def write_model(folder: Path, shape: PublishedShape, *, layers: int = 2, seed: int = 0) -> str:
    """Write a model of that shape to `folder`, made small, and return the folder's path."""
    return _write(folder, shape, {**shape.reduced, "num_hidden_layers": layers, "max_window_layers": layers}, seed)


def write_wide_model(folder: Path, shape: PublishedShape, *, layers: int, seed: int = 0) -> str:
    """Write a model of that shape in full width to `folder`, and return the folder's path."""
    return _write(folder, shape, {"num_hidden_layers": layers, "max_window_layers": layers}, seed)


def _write(folder: Path, shape: PublishedShape, sizes: Mapping[str, int], seed: int) -> str:
    logging.disable_progress_bar()
    folder.mkdir(parents=True)
    _write_tokenizer(folder, shape)
    config = {**shape.config, **sizes}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", shape.generation)
    # Logits of a few nats: far from uniform, so that mistakes show.
    drawn = {**config, "initializer_range": 2.5 / config["hidden_size"] ** 0.5}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**{name: value for name, value in drawn.items() if name != "torch_dtype"}),
        dtype=torch.bfloat16,
    )
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if shape.head_is_stored:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    _write_weights(folder, weights, shape.files)
    return str(folder)


def _write_weights(folder: Path, weights: Mapping[str, torch.Tensor], files: int) -> None:
    if files == 1:
        save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = [f"model-{number:05}-of-{files:05}.safetensors" for number in range(1, files + 1)]
    place = {weight: names[at % files] for at, weight in enumerate(weights)}
    for name in names:
        part = {weight: tensor for weight, tensor in weights.items() if place[weight] == name}
        save_file(part, folder / name, metadata={"format": "pt"})
    size = sum(weight.nbytes for weight in weights.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": place})


def stored_names(folder: Path) -> set[str]:
    """Return the names of all tensors in the safetensors files of a folder."""
    return {name for path in folder.glob("*.safetensors") for name in load_file(path)}


def _write_tokenizer(folder: Path, shape: PublishedShape) -> None:
    """Write a byte-level BPE of the published number of tokens: every two bytes are a pair, then two and one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = chain(product(alphabet, alphabet), product(map("".join, product(alphabet, alphabet)), alphabet))
    merges = list(islice(pairs, BYTE_PAIRS - len(alphabet)))
    vocabulary = {token: number for number, token in enumerate(chain(alphabet, map("".join, merges)))}
    assert len(vocabulary) == BYTE_PAIRS
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(WORDS, behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token in shape.control_tokens if token.startswith(("<|", "<｜"))]
    tokenizer.add_tokens(
        [AddedToken(token, special=token in control, normalized=False) for token in shape.control_tokens]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    window = shape.config["max_position_embeddings"]
    settings = {"tokenizer_class": shape.tokenizer_class, "model_max_length": window, "chat_template": shape.template}
    _write_json(folder / "tokenizer_config.json", settings | dict(shape.special))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
