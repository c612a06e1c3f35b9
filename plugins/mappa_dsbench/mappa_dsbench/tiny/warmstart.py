"""Build the small model: its tokenizer and its warm start on demonstrations.

The one that is shipped in `models/tiny` was built by `mappa dsbench warm-start models/tiny`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import click

from mappa_core import InputError

if TYPE_CHECKING:
    from mappa_core import Encoded, Imitator
    from mappa_dsbench.tiny.demonstrations import Demonstrator

WINDOW = 1024
SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 24,
    "initializer_range": 0.1,  # the usual 0.02 is for wider layers: names are then copied much later
}
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

    def batches(self, model: Imitator) -> Iterator[list[Encoded]]:
        """What the model is shown, step by step, `ROWS` conversations each."""
        faultless = int(self.steps * FAULTLESS_SHARE)
        parts = ((self.faultless, faultless), (self.faulty, self.steps - faultless))
        for demonstrator, steps in parts:
            rows = map(model.encode, demonstrator.conversations())
            for start in range(0, steps, SORTED_STEPS):
                count = min(SORTED_STEPS, steps - start)
                ordered = sorted(islice(rows, count * ROWS), key=lambda row: len(row.tokens))
                batches = [ordered[at * ROWS : (at + 1) * ROWS] for at in range(count)]
                self.order.shuffle(batches)
                yield from batches


def untaught(texts: Iterable[str], seed: int) -> Imitator:
    """A model of a third of a million parameters, with a tokenizer made of `texts`, before it was shown anything."""
    from mappa_core import Imitator
    from mappa_dsbench.tiny.tokenizer import tokens_of

    return Imitator(tokens_of(texts), window=WINDOW, seed=seed, shape=SHAPE)


def made(seed: int, curriculum: Curriculum, last_loss: float) -> dict[str, Any]:
    """How the model was made."""
    return {
        "schema": 1,
        "seed": seed,
        "steps": curriculum.steps,
        "rows": ROWS,
        "habits": asdict(curriculum.faulty.habits),
        "conversations": curriculum.steps * ROWS,
        "last_loss": round(last_loss, 4),
    }


@click.command("warm-start")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Draws names, habits and the first weights.")
@click.option("--steps", default=5600, show_default=True, help="Optimiser steps; 5600 take about seven CPU minutes.")
def warm_start(folder: Path, seed: int, steps: int) -> None:
    """Build the small model of the `tiny` recipe anew, in FOLDER.

    One thread of one core. The same seed on the same machine, with the same versions, gives the same bytes.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; name a new folder")
    curriculum = Curriculum.of(seed, steps)
    model = untaught(curriculum.texts(), seed)
    batches = curriculum.batches(model)
    loss = model.imitate(batches, learning_rate=LEARNING_RATE, share=partial(share, steps=steps), tell=click.echo)
    model.save(folder, made(seed, curriculum, loss), package="mappa-dsbench", half=False)
    click.echo(f"wrote {folder}")


def share(step: int, steps: int) -> float:
    """Of the learning rate: it rises to `WARMUP_STEPS`, stays to the middle, and falls to the end."""
    return min(1.0, (step + 1) / WARMUP_STEPS, 2 * (1 - step / steps))
