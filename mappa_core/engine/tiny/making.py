"""Makes the small model anew, in half an hour of one CPU core: `python -m mappa_core.engine.tiny.making FOLDER`."""

from __future__ import annotations

import math
import sys
from functools import partial
from itertools import chain, islice
from pathlib import Path
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mappa_core.engine.tiny.imitator import SPECIAL, Imitator
from mappa_core.engine.tiny.talk import choices, echoes

WINDOW = 8192
SEED = 0
ECHOES, STEPS = 600, 2400
"""Optimiser steps: those in which everything is repeated, and all of them."""
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
# Names of tools and calls are text, too: a team's tools are offered and called as other models do it.
TEMPLATE = (
    "{% if tools %}<|system|>Tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokens() -> Tokenizer:
    """A token a byte, one a role, one that ends a message, one that pads."""
    alphabet = {token: number for number, token in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokens = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens(list(SPECIAL))
    return tokens


def untaught() -> Imitator:
    """The model before it was shown anything."""
    return Imitator(byte_tokens(), window=WINDOW, seed=SEED, shape=SHAPE, template=TEMPLATE)


def share(step: int) -> float:
    """Of the learning rate: it rises to `WARMUP_STEPS`, and falls as a cosine to the end."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def make(folder: Path) -> None:
    """Write the model to `folder`, with a manifest of how it was made. The same versions on the same machine give the
    same bytes."""
    model = untaught()
    talks = chain(islice(echoes(Random(SEED)), ECHOES * ROWS), choices(Random(SEED)))
    rows = map(model.encode, talks)
    batches = (list(islice(rows, ROWS)) for _ in range(STEPS))
    last = model.imitate(batches, learning_rate=LEARNING_RATE, share=share, tell=partial(print, flush=True))
    made = {"seed": SEED, "steps": STEPS, "rows": ROWS, "last_loss": round(last, 4)}
    model.save(folder, made, package="mappa-core", half=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
