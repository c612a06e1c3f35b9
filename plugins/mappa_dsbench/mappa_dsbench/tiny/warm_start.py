"""Builds the tiny model: its tokenizer and its warm start on demonstrations.

The model shipped in `models/tiny` was built by `mappa dsbench warm-start models/tiny`.
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
    from mappa_dsbench.tiny.demonstrations import Demonstrator
    from mappa_engine import Encoded, Imitator

CONTEXT_WINDOW = 1024
MODEL_SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 24,
    "initializer_range": 0.1,  # the usual 0.02 is for wider layers: names are then copied much later
}
BATCH_CONVERSATIONS = 16
"""Conversations per optimiser step."""
SORTED_STEPS = 32
"""Steps whose conversations are batched by length, to reduce padding."""
LEARNING_RATE = 3e-3
WARMUP_STEPS = 50
FAULTLESS_SHARE = 0.5
"""Share of the steps, at the beginning, with faultless demonstrations."""
TOKENIZER_TEXTS = 3000
"""Conversations from which the tokenizer's merges are learned."""


@dataclass(frozen=True, slots=True)
class Curriculum:
    """The demonstrations of a warm start of `steps` optimiser steps: the tokenizer's merges are learned from `sample`,
    the model is trained on `faultless`, then on `faulty`. `order` shuffles the batches."""

    sample: Demonstrator
    faultless: Demonstrator
    faulty: Demonstrator
    order: Random
    steps: int

    @classmethod
    def of(cls, seed: int, steps: int) -> Curriculum:
        from mappa_dsbench.tiny.demonstrations import Demonstrator
        from mappa_dsbench.tiny.planted_faults import NO_FAULTS, FaultProbabilities

        return cls(
            sample=Demonstrator(FaultProbabilities(), Random(f"{seed}/tokenizer")),
            faultless=Demonstrator(NO_FAULTS, Random(f"{seed}/faultless")),
            faulty=Demonstrator(FaultProbabilities(), Random(f"{seed}/faulty")),
            order=Random(f"{seed}/order"),
            steps=steps,
        )

    def texts(self) -> Iterator[str]:
        """Generate the texts from which the tokenizer learns its merges."""
        return (talk.content for talks in islice(self.sample.conversations(), TOKENIZER_TEXTS) for talk in talks)

    def batches(self, model: Imitator) -> Iterator[list[Encoded]]:
        """Generate the batch of every step, `BATCH_CONVERSATIONS` conversations each."""
        faultless = int(self.steps * FAULTLESS_SHARE)
        parts = ((self.faultless, faultless), (self.faulty, self.steps - faultless))
        for demonstrator, steps in parts:
            rows = map(model.encode, demonstrator.conversations())
            for start in range(0, steps, SORTED_STEPS):
                count = min(SORTED_STEPS, steps - start)
                ordered = sorted(islice(rows, count * BATCH_CONVERSATIONS), key=lambda row: len(row.tokens))
                batches = [ordered[at * BATCH_CONVERSATIONS : (at + 1) * BATCH_CONVERSATIONS] for at in range(count)]
                self.order.shuffle(batches)
                yield from batches


def build_untrained_model(texts: Iterable[str], seed: int) -> Imitator:
    """Build an untrained model of a third of a million parameters, with a tokenizer trained on `texts`."""
    from mappa_dsbench.tiny.tokenizer import train_tokenizer
    from mappa_engine import Imitator

    return Imitator(train_tokenizer(texts), window=CONTEXT_WINDOW, seed=seed, shape=MODEL_SHAPE)


def build_manifest(seed: int, curriculum: Curriculum, last_loss: float) -> dict[str, Any]:
    """Build the manifest: how the model was made."""
    return {
        "schema": 1,
        "seed": seed,
        "steps": curriculum.steps,
        "rows": BATCH_CONVERSATIONS,
        "habits": asdict(curriculum.faulty.probabilities),
        "conversations": curriculum.steps * BATCH_CONVERSATIONS,
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
    model = build_untrained_model(curriculum.texts(), seed)
    batches = curriculum.batches(model)
    loss = model.imitate(
        batches,
        learning_rate=LEARNING_RATE,
        learning_rate_factor=partial(learning_rate_factor, steps=steps),
        report=click.echo,
    )
    model.save(folder, build_manifest(seed, curriculum, loss), package="mappa-dsbench", half=False)
    click.echo(f"wrote {folder}")


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up over `WARMUP_STEPS`, constant to the middle, then a linear
    decay to the end."""
    return min(1.0, (step + 1) / WARMUP_STEPS, 2 * (1 - step / steps))
