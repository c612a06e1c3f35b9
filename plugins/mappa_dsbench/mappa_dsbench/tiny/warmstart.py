"""Build the small model: its tokenizer and its warm start on demonstrations.

The one that is shipped in `models/tiny` was built by `mappa dsbench warm-start models/tiny`.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import click

from mappa_core import InputError, Message

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from mappa_dsbench.tiny.demonstrations import Demonstrator

WINDOW = 1024
ROWS = 16
"""Conversations per optimiser step."""
SORTED_STEPS = 32
"""Steps whose conversations are shared out by length, so that little is padded."""
LEARNING_RATE = 3e-3
WARMUP_STEPS = 50
FAULTLESS_SHARE = 0.5
"""Share of the steps, the first ones, in which demonstrations are faultless."""
TOKENIZER_TEXTS = 3000
"""Conversations that the tokenizer's merges are learned from."""


@dataclass(frozen=True, slots=True)
class Curriculum:
    """All that a warm start of so many optimiser steps is made from: `sample` gives the tokenizer its merges, then
    `faultless` and after it `faulty` demonstrate. `order` shuffles steps of like length."""

    sample: Demonstrator
    faultless: Demonstrator
    faulty: Demonstrator
    order: Random
    steps: int

    @classmethod
    def of(cls, seed: int, steps: int) -> Curriculum:
        from mappa_dsbench.tiny.demonstrations import Demonstrator
        from mappa_dsbench.tiny.habits import FAULTLESS, Habits

        return cls(
            sample=Demonstrator(Habits(), Random(f"{seed}/tokenizer")),
            faultless=Demonstrator(FAULTLESS, Random(f"{seed}/faultless")),
            faulty=Demonstrator(Habits(), Random(f"{seed}/faulty")),
            order=Random(f"{seed}/order"),
            steps=steps,
        )

    def texts(self) -> Iterator[str]:
        """What the tokenizer learns its merges from."""
        return (talk.content for talks in islice(self.sample.conversations(), TOKENIZER_TEXTS) for talk in talks)

    def batches(self, tokenizer: PreTrainedTokenizerFast) -> Iterator[list[Encoded]]:
        """What the model is shown, step by step, `ROWS` conversations each."""
        faultless = int(self.steps * FAULTLESS_SHARE)
        parts = ((self.faultless, faultless), (self.faulty, self.steps - faultless))
        for demonstrator, steps in parts:
            rows = (encode(tokenizer, talk) for talk in demonstrator.conversations())
            for start in range(0, steps, SORTED_STEPS):
                count = min(SORTED_STEPS, steps - start)
                ordered = sorted(islice(rows, count * ROWS), key=lambda row: len(row.tokens))
                batches = [ordered[at * ROWS : (at + 1) * ROWS] for at in range(count)]
                self.order.shuffle(batches)
                yield from batches


@dataclass(frozen=True, slots=True)
class Encoded:
    """One conversation: token ids, and which of them the model has to learn to write."""

    tokens: list[int]
    learned: list[bool]


def encode(tokenizer: PreTrainedTokenizerFast, conversation: Sequence[Message]) -> Encoded:
    """Tokens exactly as the chat template renders the conversation; learned are the assistant's, its end included."""
    tokens: list[int] = []
    learned: list[bool] = []
    for message in conversation:
        body = [*tokenizer.encode(message.content, add_special_tokens=False), tokenizer.eos_token_id]
        tokens += [tokenizer.convert_tokens_to_ids(f"<|{message.role}|>"), *body]
        learned += [False, *[message.role == "assistant"] * len(body)]
    return Encoded(tokens, learned)


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3-shaped model of a third of a million parameters, with random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=24,
            initializer_range=0.1,  # the usual 0.02 is for wider layers: names are then copied much later
            max_position_embeddings=WINDOW,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def batch_loss(model: Qwen3ForCausalLM, batch: Sequence[Encoded], pad: int) -> torch.Tensor:
    """Mean cross-entropy, in nats, over the learned tokens of the batch."""
    import torch

    width = max(len(row.tokens) for row in batch)
    tokens = torch.full((len(batch), width), pad)
    targets = torch.full((len(batch), width), -100)
    for index, row in enumerate(batch):
        ids = torch.tensor(row.tokens)
        tokens[index, : len(ids)] = ids
        targets[index, : len(ids)] = torch.where(torch.tensor(row.learned), ids, -100)
    hidden = model.model(input_ids=tokens).last_hidden_state[:, :-1]
    written = targets[:, 1:] != -100
    logits = model.lm_head(hidden[written])
    return torch.nn.functional.cross_entropy(logits, targets[:, 1:][written])


def train(model: Qwen3ForCausalLM, batches: Iterable[Sequence[Encoded]], steps: int, pad: int) -> Iterator[float]:
    """Imitate; yields the loss of every step. Padding lies to the right, where causal attention never looks."""
    import torch

    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda step: min(1.0, (step + 1) / WARMUP_STEPS, 2 * (1 - step / steps)),
    )
    for batch in batches:
        loss = batch_loss(model, batch, pad)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        yield float(loss.detach())


def manifest(seed: int, curriculum: Curriculum, losses: Sequence[float]) -> dict[str, Any]:
    """How the model was made."""
    return {
        "schema": 1,
        "seed": seed,
        "steps": curriculum.steps,
        "rows": ROWS,
        "habits": asdict(curriculum.faulty.habits),
        "conversations": curriculum.steps * ROWS,
        "last_loss": round(sum(losses[-50:]) / len(losses[-50:]), 4),
        "made_with": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("mappa-dsbench", "torch", "transformers", "tokenizers")},
        },
    }


@click.command("warm-start")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Draws names, habits and the first weights.")
@click.option("--steps", default=5600, show_default=True, help="Optimiser steps; 5600 take about seven CPU minutes.")
def warm_start(folder: Path, seed: int, steps: int) -> None:
    """Build the small model of the `tiny` recipe anew, in FOLDER.

    One thread of one core. The same seed on the same machine, with the same versions, gives the same bytes.
    """
    import torch
    from transformers import logging

    from mappa_dsbench.tiny.tokenizer import build_tokenizer

    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; name a new folder")
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    curriculum = Curriculum.of(seed, steps)
    tokenizer = build_tokenizer(curriculum.texts(), WINDOW)
    model = build_model(tokenizer, seed)
    losses = []
    for loss in train(model, curriculum.batches(tokenizer), steps, tokenizer.pad_token_id):
        losses.append(loss)
        if len(losses) % 100 == 0:
            click.echo(f"step {len(losses):5d}  loss {sum(losses[-100:]) / 100:.4f}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    text = json.dumps(manifest(seed, curriculum, losses), indent=2)
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")
    click.echo(f"wrote {folder}")
