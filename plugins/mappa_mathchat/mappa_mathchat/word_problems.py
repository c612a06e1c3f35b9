"""Generated word problems: `Ana has 38 pens. Ana sells 9. Ana gives 17. How many pens?`

The hash of a problem's text alone decides whether it is held out, so no seed and no mix moves a problem to the other
side of the split.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Literal, Protocol

from mappa_core import ConfigError, Split, Task
from mappa_mathchat.plans import APPLY_OPERATION, SCALING_OPERATIONS, Plan, PlanStep

NAMES = ("Ana", "Ben", "Eva", "Ida", "Kai", "Leo", "Mia", "Noa", "Sam", "Tom")
NOUNS = ("cards", "caps", "coins", "cups", "keys", "maps", "nuts", "pens", "pins", "shells")
VERBS = {
    "add": ("buys", "finds", "gets"),
    "sub": ("loses", "sells", "gives"),
    "mul": ("copies", "repeats"),
    "div": ("shares", "splits"),
}
OPERATION_OF_VERB = {verb: operation for operation, verbs in VERBS.items() for verb in verbs}
_START = re.compile(r"\w+ has (\d{1,9}) \w+")
_CHANGE = re.compile(r"\w+ (\w+) (\d{1,9})")
_QUESTION = re.compile(r"How many \w+\?")
START_RANGE = range(2, 41)
OPERAND_RANGES = {"add": range(2, 41), "sub": range(2, 41), "mul": range(2, 10), "div": range(2, 10)}
ALLOWED_COUNTS = range(1, 1000)
"""Allowed count after every step."""
HELD_OUT_ONE_IN = 10
"""One problem in this many is held out."""
REPEATS = 500
"""So many draws in a row without a new problem say that hardly any is left."""
Mix = Literal["all", "sum", "scale"]


@dataclass(frozen=True, slots=True)
class WordProblem:
    """One problem: `verbs[i]` is the verb of `plan.steps[i]`."""

    name: str
    noun: str
    plan: Plan
    verbs: tuple[str, ...]

    @property
    def text(self) -> str:
        changes = (f"{self.name} {verb} {step.number}." for verb, step in zip(self.verbs, self.plan.steps, strict=True))
        return " ".join([f"{self.name} has {self.plan.start} {self.noun}.", *changes, f"How many {self.noun}?"])

    @property
    def held_out(self) -> bool:
        return is_held_out(self.text)

    def task(self) -> Task:
        return Task(
            id=f"words-{fingerprint_text(self.text):016x}",
            prompt=self.text,
            reference=str(self.plan.value),
            stratum=self.plan.kind,
            meta={"plan": "steps"},
        )


def parse_problem(text: str) -> Plan | None:
    """Parse a problem's text into its plan; None for text that is no such problem."""
    first, *sentences = text.split(". ")
    start = _START.fullmatch(first)
    steps = [_CHANGE.fullmatch(one) for one in sentences[:-1]]
    if start is None or not sentences or not _QUESTION.fullmatch(sentences[-1]) or not all(steps):
        return None
    found = [(OPERATION_OF_VERB.get(match[1]), int(match[2])) for match in steps if match]
    if any(operation is None for operation, _ in found):
        return None
    return Plan(int(start[1]), tuple(PlanStep(str(operation), number) for operation, number in found))


def fingerprint_text(text: str) -> int:
    """Hash a problem's text to 64 bits, the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def is_held_out(text: str) -> bool:
    """Whether a problem is never trained on."""
    return fingerprint_text(text) % HELD_OUT_ONE_IN == 0


def generate_problems(rng: Random, steps: Sequence[int] = (2, 3), mix: Mix = "all") -> Iterator[WordProblem]:
    """Generate problems of both sides of the split without end, drawn by `rng`; mix `all` is half of either kind."""
    while True:
        kind = rng.choice(("sum", "scale")) if mix == "all" else mix
        plan = next(plan for plan in generate_plans(rng, steps, kind) if plan is not None)
        verbs = tuple(rng.choice(VERBS[step.operation]) for step in plan.steps)
        yield WordProblem(rng.choice(NAMES), rng.choice(NOUNS), plan, verbs)


def generate_plans(rng: Random, steps: Sequence[int], kind: str) -> Iterator[Plan | None]:
    """Generate plans of one kind (`sum`, `scale`) without end; None for a draw whose counts are not allowed."""
    while True:
        operations = [
            rng.choice(tuple(APPLY_OPERATION) if kind == "scale" else ("add", "sub")) for _ in range(rng.choice(steps))
        ]
        if kind == "scale" and not SCALING_OPERATIONS.intersection(operations):
            yield None
        else:
            yield _draw_plan(rng, operations)


def _draw_plan(rng: Random, operations: Sequence[str]) -> Plan | None:
    start = total = rng.choice(START_RANGE)
    steps = []
    for operation in operations:
        numbers = [number for number in OPERAND_RANGES[operation] if operation != "div" or total % number == 0]
        if not numbers:
            return None
        number = rng.choice(numbers)
        total = APPLY_OPERATION[operation](total, number)
        if total not in ALLOWED_COUNTS:
            return None
        steps.append(PlanStep(operation, number))
    return Plan(start, tuple(steps))


@dataclass
class WordOptions:
    train: int = 4096
    """Problems to train on."""
    eval: int = 512
    """Held-out problems."""
    seed: int = 0
    """Draws other problems; which side a problem is on does not depend on it."""
    steps: list[int] = field(default_factory=lambda: [2, 3])
    """How many things happen in a problem."""
    mix: Mix = "all"
    """`sum`: only adding and subtracting. `scale`: at least one multiplication or division."""

    def check(self) -> None:
        """Raise ConfigError if a value is invalid."""
        for name, count in (("train", self.train), ("eval", self.eval)):
            if count < 0:
                raise ConfigError(f"{name}: must not be negative, not {count}")
        if not self.steps or not all(1 <= steps <= 6 for steps in self.steps):
            raise ConfigError(f"steps: must be numbers from 1 to 6, not {self.steps!r}")


class WordProblems:
    """Implements TaskSource."""

    def __init__(self, options: WordOptions) -> None:
        self._options = options

    def load(self, split: Split) -> Sequence[Task]:
        options = self._options
        count = options.eval if split == "eval" else options.train
        return _draw_tasks(options.seed, tuple(options.steps), options.mix, split, count)


# A run asks for its tasks at four places, and drawing 4,096 takes longer than reading the whole config.
@lru_cache(maxsize=4)
def _draw_tasks(seed: int, steps: tuple[int, ...], mix: Mix, split: Split, count: int) -> Sequence[Task]:
    return choose_tasks(generate_problems(Random(f"{seed}/{split}"), steps, mix), split, count)


class Problem(Protocol):
    """A problem that knows its side of the split."""

    @property
    def held_out(self) -> bool: ...

    def task(self) -> Task: ...


def choose_tasks(problems: Iterator[Problem], split: Split, count: int) -> Sequence[Task]:
    """Choose `count` different tasks of a split. Raises ConfigError if hardly any new ones are left before."""
    chosen: dict[str, Task] = {}
    repeated = 0
    while len(chosen) < count:
        problem = next(problems)
        if problem.held_out == (split == "eval"):
            task = problem.task()
            repeated = repeated + 1 if task.id in chosen else 0
            if repeated > REPEATS:
                raise ConfigError(
                    f"{split}: there are only about {len(chosen)} such problems, not {count}; "
                    "ask for fewer, or for more steps"
                )
            chosen.setdefault(task.id, task)
    return tuple(chosen.values())
