"""Makes the small model anew, in half an hour of one CPU core: `python -m mappa_core.engine.tiny.making FOLDER`."""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from mappa_core.engine.tiny.talk import choices, echoes
from mappa_core.records import Message

WINDOW = 8192
SEED = 0
ECHOES, STEPS = 600, 2400
"""Optimiser steps: those in which everything is repeated, and all of them."""
ROWS = 48
"""Conversations per optimiser step."""
LEARNING_RATE = 4e-3
WARMUP_STEPS = 100
PAD, END = "<|pad|>", "<|end|>"
ROLES = tuple(f"<|{role}|>" for role in ("system", "user", "assistant", "tool"))
# A message is its role's token, its text as it is, and the end token: a conversation extends token by token.
TEMPLATE = (
    "{% if tools %}<|system|>Tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Encoded:
    """One conversation: token ids, and which of them the model has to learn to write."""

    tokens: list[int]
    learned: list[bool]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A token a byte, one a role, one that ends a message, one that pads."""
    special = [PAD, END, *ROLES]
    alphabet = {token: number for number, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=WINDOW,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Qwen3's shape with three layers, and random weights."""
    torch.manual_seed(SEED)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=16,
            max_position_embeddings=WINDOW,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def encode(tokenizer: PreTrainedTokenizerFast, conversation: Sequence[Message]) -> Encoded:
    """Tokens exactly as the chat template renders the conversation; learned are the assistant's, its end included."""
    tokens: list[int] = []
    learned: list[bool] = []
    for message in conversation:
        body = [*tokenizer.encode(message.content, add_special_tokens=False), tokenizer.eos_token_id]
        tokens += [tokenizer.convert_tokens_to_ids(f"<|{message.role}|>"), *body]
        learned += [False, *[message.role == "assistant"] * len(body)]
    return Encoded(tokens, learned)


def loss_of(model: Qwen3ForCausalLM, batch: Sequence[Encoded], pad: int) -> torch.Tensor:
    """Mean cross-entropy, in nats, over the learned tokens of a batch. Padding lies to the right."""
    width = max(len(row.tokens) for row in batch)
    tokens = torch.full((len(batch), width), pad)
    targets = torch.full((len(batch), width), -100)
    for index, row in enumerate(batch):
        ids = torch.tensor(row.tokens)
        tokens[index, : len(ids)] = ids
        targets[index, : len(ids)] = torch.where(torch.tensor(row.learned), ids, -100)
    hidden = model.model(input_ids=tokens).last_hidden_state[:, :-1]
    written = targets[:, 1:] != -100
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[written]), targets[:, 1:][written])


def train(model: Qwen3ForCausalLM, rows: Iterator[Encoded], pad: int) -> Iterator[float]:
    """Imitate; yields the loss of every step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / WARMUP_STEPS) * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    )
    for _ in range(STEPS):
        loss = loss_of(model, list(islice(rows, ROWS)), pad)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        yield float(loss.detach())


def make(folder: Path) -> None:
    """Write the model to `folder`, with a manifest of how it was made. The same versions on the same machine give the
    same bytes."""
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    talks = chain(islice(echoes(Random(SEED)), ECHOES * ROWS), choices(Random(SEED)))
    rows = (encode(tokenizer, talk) for talk in talks)
    losses: list[float] = []
    for loss in train(model, rows, tokenizer.pad_token_id):
        losses.append(loss)
        if len(losses) % 50 == 0:
            print(f"step {len(losses):5d}  loss {sum(losses[-50:]) / 50:.4f}", flush=True)  # noqa: T201
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    made_with = {name: version(name) for name in ("mappa-core", "torch", "transformers", "tokenizers")}
    manifest = {
        "seed": SEED,
        "steps": STEPS,
        "rows": ROWS,
        "last_loss": round(sum(losses[-50:]) / 50, 4),
        "made_with": {"python": platform.python_version(), **made_with},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
