"""The models of the ring are of the published shape, and stored as published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from models import BYTE_PAIRS, QWEN3_0_6B, SHAPES, VOCABULARY, stored_names
from transformers import AutoConfig, AutoModelForCausalLM

from mappa_core.records import Message
from mappa_engine.model_info import read_model_info, read_weight_names
from mappa_engine.model_shape import read_shape

PARAMETERS = {
    "Qwen3-0.6B": 596_049_920,
    "Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen3-4B-Thinking-2507": 4_022_468_096,
    "DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
}
"""Parameters of the published models, a tied head counted once."""


KEPT = (
    *("model_type", "vocab_size", "max_position_embeddings", "rope_theta", "tie_word_embeddings", "hidden_act"),
    *("rms_norm_eps", "eos_token_id", "use_sliding_window"),
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_config_is_that_of_the_published_model(shape):
    config = AutoConfig.for_model(**{name: value for name, value in shape.config.items() if name != "torch_dtype"})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[shape.name]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_model_is_as_published_but_in_width_and_depth(shape, model_of):
    folder = model_of(shape)
    reading, read = read_model_info(folder), read_shape(folder)
    stored = reading.config.to_dict() | {"rope_theta": reading.config.rope_parameters["rope_theta"]}
    assert {name: stored[name] for name in KEPT} == {name: shape.config[name] for name in KEPT}
    assert (read.vocabulary, read.head_dim, read.window) == (VOCABULARY, 128, shape.config["max_position_embeddings"])
    assert read.heads > read.kv_heads and read.tied == shape.config["tie_word_embeddings"]
    ends = shape.generation["eos_token_id"]
    assert reading.stops == frozenset(ends if isinstance(ends, list) else [ends])
    names = stored_names(Path(folder))
    assert ("lm_head.weight" in names) == (shape is QWEN3_0_6B or not read.tied)
    assert read_weight_names(reading).names == names - ({"lm_head.weight"} if read.tied else set())


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_tokenizer_is_of_the_published_size(shape, model_of):
    chat = read_model_info(model_of(shape)).chat
    numbers = chat.tokenizer.convert_tokens_to_ids(list(shape.control_tokens))
    assert numbers == list(range(BYTE_PAIRS, BYTE_PAIRS + len(shape.control_tokens))) and numbers[-1] < VOCABULARY
    prompt = chat.render([Message(role="user", content="What is 6 * 7? <|im_end|>")])
    text = chat.decode(prompt.tolist())
    assert "6 * 7? <|im_end|>" in text
    written = [number for token, number in zip(shape.control_tokens, numbers, strict=True) if token == "<|im_end|>"]
    assert np.isin(prompt, written).sum() == (text.count("<|im_end|>") - 1 if written else 0)
    thinks = text.rstrip().endswith("<think>")
    assert thinks == (shape.name in ("Qwen3-4B-Thinking-2507", "DeepSeek-R1-Distill-Qwen-1.5B"))
