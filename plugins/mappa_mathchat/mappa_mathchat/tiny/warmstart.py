"""Build the small model: its tokenizer and its warm start on demonstrations.

The one that is shipped in `models/tiny` was built by `mappa mathchat warm-start models/tiny`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import click

from mappa_core import InputError, Message

if TYPE_CHECKING:
    from mappa_core import Imitator
    from mappa_mathchat.tiny.demonstrations import Demonstrator

ENTRIES = 384
"""Of the tokenizer."""
WINDOW = 2048
SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
ROWS = 32
"""Conversations per optimiser step."""
LEARNING_RATE = 3e-3
WARMUP_STEPS = 50
FAULTLESS_SHARE = 0.5
"""Share of the steps, the first ones, in which demonstrations are faultless."""
TOKENIZER_TEXTS = 3000
"""Conversations that the tokenizer's merges are learned from."""


@dataclass(frozen=True, slots=True)
class Curriculum:
    """All that a warm start of so many optimiser steps is made from: `sample` gives the tokenizer its merges, then
    `faultless` and after it `faulty` demonstrate."""

    sample: Demonstrator
    faultless: Demonstrator
    faulty: Demonstrator
    steps: int

    @classmethod
    def of(cls, seed: int, steps: int) -> Curriculum:
        from mappa_mathchat.tiny.demonstrations import FAULTLESS, Demonstrator, Habits
        from mappa_mathchat.workflow import MathChat, Options

        workflow = MathChat(Options(prompts="tiny"))
        return cls(
            sample=Demonstrator(workflow, Habits(), Random(f"{seed}/tokenizer")),
            faultless=Demonstrator(workflow, FAULTLESS, Random(f"{seed}/faultless")),
            faulty=Demonstrator(workflow, Habits(), Random(f"{seed}/faulty")),
            steps=steps,
        )

    def texts(self) -> Iterator[str]:
        """What the tokenizer learns its merges from."""
        return (talk.content for talks in islice(self.sample.conversations(), TOKENIZER_TEXTS) for talk in talks)

    def conversations(self) -> Iterator[list[Message]]:
        """What the model is shown, in order: `ROWS` conversations a step."""
        faultless = int(self.steps * FAULTLESS_SHARE) * ROWS
        yield from islice(self.faultless.conversations(), faultless)
        yield from islice(self.faulty.conversations(), self.steps * ROWS - faultless)

    @property
    def shown(self) -> frozenset[str]:
        """Texts of the problems that the model was shown so far."""
        return frozenset(self.faultless.shown | self.faulty.shown)


def untaught(texts: Iterable[str], seed: int) -> Imitator:
    """A model of a quarter million parameters, with a tokenizer made of `texts`, before it was shown anything."""
    from mappa_core import Imitator, byte_pairs

    return Imitator(byte_pairs(texts, ENTRIES), window=WINDOW, seed=seed, shape=SHAPE)


def fingerprint_of(texts: Iterable[str]) -> str:
    """sha256 of problem texts, whatever their order."""
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()


def made(seed: int, curriculum: Curriculum, last_loss: float) -> dict[str, Any]:
    """How the model was made, and the fingerprint of all problem texts that it was shown."""
    return {
        "schema": 1,
        "seed": seed,
        "steps": curriculum.steps,
        "rows": ROWS,
        "habits": asdict(curriculum.faulty.habits),
        "problems": len(curriculum.shown),
        "problems_sha256": fingerprint_of(curriculum.shown),
        "last_loss": round(last_loss, 4),
    }


@click.command("warm-start")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Draws problems, habits and the first weights.")
@click.option("--steps", default=1600, show_default=True, help="Optimiser steps; 1600 take about four CPU minutes.")
def warm_start(folder: Path, seed: int, steps: int) -> None:
    """Build the small model of the `tiny` recipe anew, in FOLDER.

    One thread of one core. The same seed on the same machine, with the same versions, gives the same bytes.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; name a new folder")
    curriculum = Curriculum.of(seed, steps)
    model = untaught(curriculum.texts(), seed)
    rows = map(model.encode, curriculum.conversations())
    batches = (list(islice(rows, ROWS)) for _ in range(steps))
    loss = model.imitate(batches, learning_rate=LEARNING_RATE, share=partial(share, steps=steps), tell=click.echo)
    model.save(folder, made(seed, curriculum, loss), package="mappa-mathchat", half=True)
    click.echo(f"wrote {folder}")


def share(step: int, steps: int) -> float:
    """Of the learning rate: it rises to `WARMUP_STEPS`, and falls as a cosine to the end."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * 0.5 * (1 + math.cos(math.pi * step / steps))
