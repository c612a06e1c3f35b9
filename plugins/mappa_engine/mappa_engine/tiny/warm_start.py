"""Warm start of the tiny model that a package ships: a curriculum of demonstrations, and the command that builds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from mappa_core import InputError, Message
from mappa_core.files import storage_errors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from mappa_engine.tiny.supervised_trainer import Encoded, Imitator

LEARNING_RATE = 3e-3
FAULTLESS_SHARE = 0.5
"""Share of the steps, at the beginning, with faultless demonstrations."""
TOKENIZER_CONVERSATIONS = 3000
"""Conversations from which the tokenizer's merges are learned."""

P = TypeVar("P")


class Demonstrator(ABC, Generic[P]):
    """Writes conversations (user, assistant, …) in which every assistant message is a target, with planted faults.

    `probabilities` is a dataclass with the probability of each fault.
    """

    def __init__(self, probabilities: P, rng: Random) -> None:
        self.probabilities = probabilities
        self._rng = rng

    @abstractmethod
    def conversations(self) -> Iterator[list[Message]]:
        """Generate demonstrations without end."""

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """The demonstrations of a warm start: the tokenizer's merges are learned from `sample`, the model is trained on
    `faultless`, then on `faulty`. `order` shuffles the batches where they are sorted."""

    sample: Demonstrator[Any]
    faultless: Demonstrator[Any]
    faulty: Demonstrator[Any]
    order: Random
    steps: int
    conversations_per_step: int
    sorted_steps: int | None

    def texts(self) -> Iterator[str]:
        """Generate the texts from which the tokenizer learns its merges."""
        sample = islice(self.sample.conversations(), TOKENIZER_CONVERSATIONS)
        return (message.content for conversation in sample for message in conversation)

    def conversations(self) -> Iterator[list[Message]]:
        """Generate the training conversations in order, `conversations_per_step` each step."""
        for demonstrator, steps in self._parts():
            yield from islice(demonstrator.conversations(), steps * self.conversations_per_step)

    def batches(self, model: Imitator) -> Iterator[list[Encoded]]:
        """Generate the batch of every step."""
        size = self.conversations_per_step
        if self.sorted_steps is None:
            rows = map(model.encode, self.conversations())
            yield from (list(islice(rows, size)) for _ in range(self.steps))
            return
        for demonstrator, steps in self._parts():
            rows = map(model.encode, demonstrator.conversations())
            for start in range(0, steps, self.sorted_steps):
                count = min(self.sorted_steps, steps - start)
                ordered = sorted(islice(rows, count * size), key=lambda row: len(row.tokens))
                batches = [ordered[at * size : (at + 1) * size] for at in range(count)]
                self.order.shuffle(batches)
                yield from batches

    def _parts(self) -> tuple[tuple[Demonstrator[Any], int], ...]:
        faultless = int(self.steps * FAULTLESS_SHARE)
        return (self.faultless, faultless), (self.faulty, self.steps - faultless)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """How the tiny model of a package is made.

    demonstrator: builds the demonstrator, with planted faults or without.
    tokenizer: trains the tokenizer on texts.
    window: maximum context length in tokens.
    shape: further arguments of `Qwen3Config`.
    sorted_steps: steps whose conversations are batched by length, to reduce padding; None: batches in order.
    learning_rate_factor: factor of the learning rate by step and number of steps.
    half: weights are stored in half precision.
    manifest: further entries of the manifest.
    """

    package: str
    demonstrator: Callable[[bool, Random], Demonstrator[Any]]
    tokenizer: Callable[[Iterable[str]], Tokenizer]
    window: int
    shape: Mapping[str, Any]
    conversations_per_step: int
    sorted_steps: int | None = None
    learning_rate_factor: Callable[[int, int], float]
    half: bool
    manifest: Callable[[Curriculum], Mapping[str, Any]]

    def curriculum(self, seed: int, steps: int) -> Curriculum:
        """Build the curriculum of `steps` optimiser steps."""
        return Curriculum(
            sample=self.demonstrator(True, Random(f"{seed}/tokenizer")),
            faultless=self.demonstrator(False, Random(f"{seed}/faultless")),
            faulty=self.demonstrator(True, Random(f"{seed}/faulty")),
            order=Random(f"{seed}/order"),
            steps=steps,
            conversations_per_step=self.conversations_per_step,
            sorted_steps=self.sorted_steps,
        )

    def untrained_model(self, texts: Iterable[str], seed: int) -> Imitator:
        """Build the untrained model, with a tokenizer trained on `texts`."""
        from mappa_engine.tiny.supervised_trainer import Imitator

        return Imitator(self.tokenizer(texts), window=self.window, seed=seed, shape=self.shape)

    def build(self, folder: Path, seed: int, steps: int, report: Callable[[str], None]) -> None:
        """Build and train the model, and write it into `folder`.

        Raises:
            InputError: the folder is not empty.
            RunError: it cannot be made.
        """
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"{folder} is not empty; name a new folder")
        curriculum = self.curriculum(seed, steps)
        model = self.untrained_model(curriculum.texts(), seed)
        loss = model.imitate(
            curriculum.batches(model),
            learning_rate=LEARNING_RATE,
            learning_rate_factor=lambda step: self.learning_rate_factor(step, steps),
            report=report,
        )
        manifest = {
            "schema": 1,
            "seed": seed,
            "steps": steps,
            "rows": self.conversations_per_step,
            "habits": asdict(curriculum.faulty.probabilities),
            **self.manifest(curriculum),
            "last_loss": round(loss, 4),
        }
        model.save(folder, manifest, package=self.package, half=self.half)


def warm_start_command(warm_start: WarmStart, *, steps: int, minutes: str, draws: str) -> click.Command:
    """Build the command `warm-start`: `steps` by default, which take `minutes`; `draws` says what the seed draws."""

    @click.command("warm-start")
    @click.argument("folder", type=click.Path(path_type=Path))
    @click.option("--seed", default=0, show_default=True, help=f"Draws {draws}, habits and the first weights.")
    @click.option("--steps", default=steps, show_default=True, help=f"Optimiser steps; {steps} take about {minutes}.")
    def command(folder: Path, seed: int, steps: int) -> None:
        """Build the small model of the `tiny` recipe anew, in FOLDER.

        One thread of one core. The same seed on the same machine, with the same versions, gives the same bytes.
        """
        warm_start.build(folder, seed, steps, click.echo)
        click.echo(f"wrote {folder}")

    return command
