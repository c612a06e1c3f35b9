"""What tests of the cluster engine share: one Ray for the session, and tiny models that vLLM takes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

# Libraries read it when they are imported, in this process as in every actor.
os.environ["OMP_NUM_THREADS"] = "1"

import psutil
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, logging

from mappa_engine.cluster.actors import RayActors

CPUS = 64
"""What the session's Ray hands out: more than the machine has, as actors of tests take turns."""

GPUS = 4
"""GPUs that it believes to have: actors learn which are theirs."""

WINDOW = 256
TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A process has one Ray at a time: runs, which open one of their own, come before the session's."""
    items.sort(key=lambda item: item.path.name != "test_training.py")


@pytest.fixture(scope="session")
def ray_actors() -> Iterator[RayActors]:
    """One Ray for all tests. A test ends the actors that it starts."""
    before = set(psutil.Process().children(recursive=True))
    one = asyncio.run(RayActors.open(cpus=CPUS, gpus=GPUS, store_mb=200, deadline_s=240))
    yield one
    asyncio.run(one.close())
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a Qwen3 whose head is tied to its embedding."""
    return write_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a Llama with a head of its own."""
    return write_model(tmp_path_factory.mktemp("models") / "llama", "llama")


def write_model(folder: Path, family: str, seed: int = 0, spread: float = 0.3) -> str:
    """A model with random weights, far from uniform by their `spread`, so that mistakes show; vLLM on CPUs takes no
    smaller heads."""
    logging.disable_progress_bar()
    shape = {
        "vocab_size": 259,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": WINDOW,
        "initializer_range": spread,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    if family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False))
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return str(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: index for index, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|im_end|>", chat_template=TEMPLATE
    )
