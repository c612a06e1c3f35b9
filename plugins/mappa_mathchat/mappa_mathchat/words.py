"""Word problems without end: `Ana has 38 pens. Ana sells 9. Ana gives 17. How many pens?`

A problem belongs to the held-out side or to the training side by the hash of its text alone, so neither another seed
nor another mix ever moves one across.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from mappa_core import ConfigError, Split, Task
from mappa_mathchat.plans import APPLY, SCALING, Move, Plan

NAMES = ("Ana", "Ben", "Eva", "Ida", "Kai", "Leo", "Mia", "Noa", "Sam", "Tom")
NOUNS = ("cards", "caps", "coins", "cups", "keys", "maps", "nuts", "pens", "pins", "shells")
VERBS = {
    "add": ("buys", "finds", "gets"),
    "sub": ("loses", "sells", "gives"),
    "mul": ("copies", "repeats"),
    "div": ("shares", "splits"),
}
OPERATIONS = {verb: operation for operation, verbs in VERBS.items() for verb in verbs}
_START = re.compile(r"\w+ has (\d{1,9}) \w+")
_TOLD = re.compile(r"\w+ (\w+) (\d{1,9})")
_ASKED = re.compile(r"How many \w+\?")
START = range(2, 41)
TERMS = {"add": range(2, 41), "sub": range(2, 41), "mul": range(2, 10), "div": range(2, 10)}
COUNTS = range(1, 1000)
"""What there may be after every step."""
HELD_OUT_SHARE = 10
"""One problem in so many is held out."""
MIXES = ("all", "sum", "scale")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: `verbs[i]` tells `plan.moves[i]`."""

    name: str
    noun: str
    plan: Plan
    verbs: tuple[str, ...]

    @property
    def text(self) -> str:
        told = (f"{self.name} {verb} {move.number}." for verb, move in zip(self.verbs, self.plan.moves, strict=True))
        return " ".join([f"{self.name} has {self.plan.start} {self.noun}.", *told, f"How many {self.noun}?"])

    @property
    def held_out(self) -> bool:
        return fingerprint(self.text) % HELD_OUT_SHARE == 0

    def task(self) -> Task:
        return Task(
            id=f"words-{fingerprint(self.text):016x}",
            prompt=self.text,
            reference=str(self.plan.value),
            stratum=self.plan.kind,
            meta={"plan": "steps"},
        )


def read(text: str) -> Plan | None:
    """The plan that a problem's text tells; None for text that is no such problem."""
    first, *told = text.split(". ")
    start = _START.fullmatch(first)
    moves = [_TOLD.fullmatch(one) for one in told[:-1]]
    if start is None or not told or not _ASKED.fullmatch(told[-1]) or not all(moves):
        return None
    found = [(OPERATIONS.get(match[1]), int(match[2])) for match in moves if match]
    if any(operation is None for operation, _ in found):
        return None
    return Plan(int(start[1]), tuple(Move(str(operation), number) for operation, number in found))


def fingerprint(text: str) -> int:
    """64 bits that name a problem's text, the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def problems(rng: Random, steps: Sequence[int] = (2, 3), mix: str = "all") -> Iterator[Problem]:
    """Problems without end, both sides of the split, drawn by `rng`; half of mix `all` is of either kind."""
    while True:
        kind = rng.choice(("sum", "scale")) if mix == "all" else mix
        plan = next(plan for plan in _plans(rng, steps, kind) if plan is not None)
        verbs = tuple(rng.choice(VERBS[move.operation]) for move in plan.moves)
        yield Problem(rng.choice(NAMES), rng.choice(NOUNS), plan, verbs)


def _plans(rng: Random, steps: Sequence[int], kind: str) -> Iterator[Plan | None]:
    """Plans of one kind without end; None for a draw that does not come out as a count of things."""
    while True:
        operations = [rng.choice(tuple(APPLY) if kind == "scale" else ("add", "sub")) for _ in range(rng.choice(steps))]
        if kind == "scale" and not SCALING.intersection(operations):
            yield None
        else:
            yield _draw_plan(rng, operations)


def _draw_plan(rng: Random, operations: Sequence[str]) -> Plan | None:
    start = total = rng.choice(START)
    moves = []
    for operation in operations:
        numbers = [number for number in TERMS[operation] if operation != "div" or total % number == 0]
        if not numbers:
            return None
        number = rng.choice(numbers)
        total = APPLY[operation](total, number)
        if total not in COUNTS:
            return None
        moves.append(Move(operation, number))
    return Plan(start, tuple(moves))


@dataclass
class Options:
    train: int = 4096
    """Problems to train on."""
    eval: int = 512
    """Held-out problems."""
    seed: int = 0
    """Draws other problems; which side a problem is on does not depend on it."""
    steps: list[int] = field(default_factory=lambda: [2, 3])
    """How many things happen in a problem."""
    mix: str = "all"
    """all | sum (only adding and subtracting) | scale (at least one multiplication or division)"""


class WordProblems:
    """Implements TaskSource."""

    def __init__(self, options: Options) -> None:
        if options.mix not in MIXES:
            raise ConfigError(f"tasks.options.mix is one of {', '.join(MIXES)}, not {options.mix!r}")
        if not options.steps or not all(1 <= steps <= 6 for steps in options.steps):
            raise ConfigError(f"tasks.options.steps lists numbers from 1 to 6, not {options.steps!r}")
        self._options = options

    def load(self, split: Split) -> Sequence[Task]:
        options = self._options
        wanted = options.eval if split == "eval" else options.train
        chosen: dict[str, Task] = {}
        for problem in problems(Random(f"{options.seed}/{split}"), options.steps, options.mix):
            if len(chosen) == wanted:
                break
            if problem.held_out == (split == "eval"):
                task = problem.task()
                chosen.setdefault(task.id, task)
        return tuple(chosen.values())
