"""Rebuild the tiny model, in half an hour on one CPU core: `python -m mappa_engine.tiny.make_model FOLDER`."""

from __future__ import annotations

import math
import sys
from functools import partial
from itertools import chain, islice
from pathlib import Path
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mappa_engine.tiny.dialogues import choice_dialogues, echo_dialogues
from mappa_engine.tiny.supervised_trainer import SPECIAL_TOKENS, Imitator

WINDOW = 8192
SEED = 0
ECHO_STEPS, STEPS = 600, 2400
"""Optimiser steps on echo dialogues, and in total."""
ROWS = 48
"""Conversations per optimiser step."""
LEARNING_RATE = 4e-3
WARMUP_STEPS = 100
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
}
# Names of tools and tool calls are rendered as text, so the model can be offered tools and call them.
TOOL_TEMPLATE = (
    "{% if tools %}<|system|>Tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_byte_tokenizer() -> Tokenizer:
    """Build a tokenizer of one token per byte and per role, an end token and a padding token."""
    alphabet = {
        token: number for number, token in enumerate([*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    tokens = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens(list(SPECIAL_TOKENS))
    return tokens


def build_untrained_model() -> Imitator:
    """Build the model with random weights."""
    return Imitator(build_byte_tokenizer(), window=WINDOW, seed=SEED, shape=SHAPE, template=TOOL_TEMPLATE)


def learning_rate_factor(step: int) -> float:
    """Return the learning-rate multiplier of a step: linear warm-up over `WARMUP_STEPS` times cosine decay."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def make_model(folder: Path) -> None:
    """Train the model and write it to `folder` with a manifest of its provenance. The same library versions on the same
    machine give the same bytes."""
    model = build_untrained_model()
    talks = chain(islice(echo_dialogues(Random(SEED)), ECHO_STEPS * ROWS), choice_dialogues(Random(SEED)))
    rows = map(model.encode, talks)
    batches = (list(islice(rows, ROWS)) for _ in range(STEPS))
    last = model.imitate(
        batches,
        learning_rate=LEARNING_RATE,
        learning_rate_factor=learning_rate_factor,
        report=partial(print, flush=True),
    )
    made = {"seed": SEED, "steps": STEPS, "rows": ROWS, "last_loss": round(last, 4)}
    model.save(folder, made, package="mappa-core", half=True)


if __name__ == "__main__":
    make_model(Path(sys.argv[1]))
