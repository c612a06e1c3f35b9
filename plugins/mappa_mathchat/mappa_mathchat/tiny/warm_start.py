"""Builds the tiny model: its tokenizer and its warm start on demonstrations.

The model shipped in `models/tiny` was built by `mappa mathchat warm-start models/tiny`.
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
    from mappa_engine import Imitator
    from mappa_mathchat.tiny.demonstrations import Demonstrator

VOCABULARY_SIZE = 384
"""Entries of the tokenizer."""
CONTEXT_WINDOW = 2048
MODEL_SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
BATCH_CONVERSATIONS = 32
"""Conversations per optimiser step."""
LEARNING_RATE = 3e-3
WARMUP_STEPS = 50
FAULTLESS_SHARE = 0.5
"""Share of the steps, at the beginning, with faultless demonstrations."""
TOKENIZER_TEXTS = 3000
"""Conversations from which the tokenizer's merges are learned."""


@dataclass(frozen=True, slots=True)
class Curriculum:
    """The demonstrations of a warm start of `steps` optimiser steps: the tokenizer's merges are learned from `sample`,
    the model is trained on `faultless`, then on `faulty`."""

    sample: Demonstrator
    faultless: Demonstrator
    faulty: Demonstrator
    steps: int

    @classmethod
    def of(cls, seed: int, steps: int) -> Curriculum:
        from mappa_mathchat.tiny.demonstrations import NO_FAULTS, Demonstrator, FaultProbabilities
        from mappa_mathchat.workflow import MathChat, MathChatOptions

        workflow = MathChat(MathChatOptions(prompts="tiny"))
        return cls(
            sample=Demonstrator(workflow, FaultProbabilities(), Random(f"{seed}/tokenizer")),
            faultless=Demonstrator(workflow, NO_FAULTS, Random(f"{seed}/faultless")),
            faulty=Demonstrator(workflow, FaultProbabilities(), Random(f"{seed}/faulty")),
            steps=steps,
        )

    def texts(self) -> Iterator[str]:
        """Generate the texts from which the tokenizer learns its merges."""
        return (talk.content for talks in islice(self.sample.conversations(), TOKENIZER_TEXTS) for talk in talks)

    def conversations(self) -> Iterator[list[Message]]:
        """Generate the training conversations in order, `BATCH_CONVERSATIONS` per step."""
        faultless = int(self.steps * FAULTLESS_SHARE) * BATCH_CONVERSATIONS
        yield from islice(self.faultless.conversations(), faultless)
        yield from islice(self.faulty.conversations(), self.steps * BATCH_CONVERSATIONS - faultless)

    @property
    def problem_texts(self) -> frozenset[str]:
        """Texts of the problems in the training conversations so far."""
        return frozenset(self.faultless.problem_texts | self.faulty.problem_texts)


def build_untrained_model(texts: Iterable[str], seed: int) -> Imitator:
    """Build an untrained model of a quarter million parameters, with a tokenizer trained on `texts`."""
    from mappa_engine import Imitator, byte_pairs

    return Imitator(byte_pairs(texts, VOCABULARY_SIZE), window=CONTEXT_WINDOW, seed=seed, shape=MODEL_SHAPE)


def hash_problem_texts(texts: Iterable[str]) -> str:
    """Compute the sha256 of problem texts, independent of their order."""
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()


def build_manifest(seed: int, curriculum: Curriculum, last_loss: float) -> dict[str, Any]:
    """Build the manifest: how the model was made, and the hash of all problem texts in its training."""
    return {
        "schema": 1,
        "seed": seed,
        "steps": curriculum.steps,
        "rows": BATCH_CONVERSATIONS,
        "habits": asdict(curriculum.faulty.probabilities),
        "problems": len(curriculum.problem_texts),
        "problems_sha256": hash_problem_texts(curriculum.problem_texts),
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
    model = build_untrained_model(curriculum.texts(), seed)
    rows = map(model.encode, curriculum.conversations())
    batches = (list(islice(rows, BATCH_CONVERSATIONS)) for _ in range(steps))
    loss = model.imitate(
        batches,
        learning_rate=LEARNING_RATE,
        learning_rate_factor=partial(learning_rate_factor, steps=steps),
        report=click.echo,
    )
    model.save(folder, build_manifest(seed, curriculum, loss), package="mappa-mathchat", half=True)
    click.echo(f"wrote {folder}")


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up over `WARMUP_STEPS`, then a cosine decay to the end."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * 0.5 * (1 + math.cos(math.pi * step / steps))
