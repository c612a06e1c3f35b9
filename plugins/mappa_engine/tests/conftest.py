"""Tiny models with random weights, of two families, in folders."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, logging

from mappa_core.engine import PolicySpec, TrainSection
from mappa_engine.local import LocalEngine
from mappa_engine.options import LocalOptions
from mappa_engine.testing import ExperienceRow, build_experience, random_rows

WINDOW = 160
TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\nTools:\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ '\nCall with <tool_call>{...}</tool_call><|im_end|>\n' }}{% endif %}"
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}"
    "{{- message.content }}"
    "{%- for call in message.tool_calls or [] %}{{ '<tool_call>' }}{{ call.function | tojson }}{{ '</tool_call>' }}"
    "{%- endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking %}{{ '<think>\n' }}{% endif %}{% endif %}"
)


def build_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: index for index, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|im_end|>", chat_template=template
    )


def write_model(folder: Path, family: str, seed: int = 0) -> str:
    logging.disable_progress_bar()
    shape = {
        "vocab_size": 259,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": WINDOW,
        "initializer_range": 0.3,  # far from uniform, so that mistakes show
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    if family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=8, tie_word_embeddings=True))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False))
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture(scope="session")
def llama(tmp_path_factory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "llama", "llama")


@pytest.fixture(params=["qwen3", "llama"])
def model(request) -> str:
    """The folder of a model of either family."""
    return request.getfixturevalue(request.param)


@pytest.fixture
async def opened():
    """Open engines that the test's end closes: `await opened(model, train=…, options=…, policies=…)`."""
    engines: list[LocalEngine] = []

    async def open_engine(model: str, *, train=None, seed=0, policies=None, **options) -> LocalEngine:
        engine = LocalEngine(LocalOptions(device="cpu", **options))
        engines.append(engine)
        await engine.open(policies or [PolicySpec(name="solver", model=model)], train, seed=seed)
        return engine

    yield open_engine
    for engine in engines:
        await engine.close()


@pytest.fixture
def train() -> TrainSection:
    return TrainSection(iterations=10, learning_rate=1e-2)


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """What tests build experiences and tokenizers of."""
    return SimpleNamespace(
        Row=ExperienceRow,
        experience=build_experience,
        rows=random_rows,
        tokenizer=build_tokenizer,
        write_model=write_model,
        window=WINDOW,
    )
