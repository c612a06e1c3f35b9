"""Generated word problems in plain English, with many ways of saying the same: `Mia has 38 shells in a box. A week
later 9 of them are gone. Then Mia doubles the number of shells. How many shells are there now?`

As with the problems of `word_problems`, the hash of a text alone decides whether it is held out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from string import Formatter

from mappa_core import Split, Task
from mappa_mathchat.plans import APPLY_OPERATION, MAX_STEPS, Plan, PlanStep
from mappa_mathchat.word_problems import (
    NAMES,
    NOUNS,
    Mix,
    WordOptions,
    choose_tasks,
    fingerprint_text,
    generate_plans,
    is_held_out,
)

OPENINGS = (
    "{name} has {number} {noun}.",
    "{name} has {number} {noun} in a box.",
    "There are {number} {noun} on {name}'s desk.",
    "This morning {name} counted {number} {noun}.",
    "{name} starts the week with {number} {noun}.",
    "{name}'s collection holds {number} {noun}.",
    "A drawer of {name}'s holds {number} {noun}.",
    "{name} brought {number} {noun} to school.",
)
CHANGES = {
    "add": (
        "{name} buys {number} more.",
        "{friend} gives {name} another {number}.",
        "Then {number} more are found under the bed.",
        "A parcel with {number} {noun} arrives.",
        "{name} picks up {number} on the way home.",
        "After that {name} wins {number} {noun} in a game.",
        "The next day {friend} brings {number} {noun} along.",
        "{name}'s aunt adds {number} to them.",
    ),
    "sub": (
        "{name} gives {number} to {friend}.",
        "{name} sells {number} of them.",
        "A week later {number} of them are gone.",
        "{number} {noun} break.",
        "{friend} borrows {number} and keeps them.",
        "{name} loses {number} on the bus.",
        "Then {number} of the {noun} are thrown away.",
        "{name} has to return {number} of them to the shop.",
    ),
    "mul": (
        "By the end of the month there are {number} times as many.",
        "{name} trades them, and gets {number} {noun} for each.",
        "{friend} makes {name} a bet, and {name} now has {number} times that number.",
        "{name} needs {number} sets of that size, and makes them.",
        "A machine turns each of them into {number} {noun}.",
    ),
    "div": (
        "{name} packs them into {number} equal bags and keeps one bag.",
        "{name} shares them equally among {number} people, and is one of them.",
        "Only one in {number} of them is any good, and {name} keeps those.",
        "{name} splits them into {number} equal piles and keeps one pile.",
    ),
}
CHANGES_BY_TWO = {
    "mul": ("Then {name} doubles the number of {noun}.", "Soon there are twice as many."),
    "div": ("{name} gives half of them away.", "{friend} takes half of the {noun}."),
}
"""Changes that say their number in a word."""
QUESTIONS = (
    "How many {noun} are there now?",
    "How many {noun} does {name} have in the end?",
    "How many {noun} are left?",
    "What is the number of {noun} now?",
    "How many {noun} does that make?",
)


@dataclass(frozen=True, slots=True)
class Story:
    """One problem and the plan that solves it."""

    text: str
    plan: Plan

    @property
    def held_out(self) -> bool:
        return is_held_out(self.text)

    @property
    def solution(self) -> str:
        r"""What the Problem Solver should write: `38 - 9 = 29. 29 * 2 = 58. \boxed{58}`."""
        total, sums = self.plan.start, []
        for step in self.plan.steps:
            result = APPLY_OPERATION[step.operation](total, step.number)
            sums.append(f"{total} {step.term} = {result}.")
            total = result
        return " ".join([*sums, f"\\boxed{{{total}}}"])

    def task(self) -> Task:
        return Task(
            id=f"stories-{fingerprint_text(self.text):016x}",
            prompt=self.text,
            reference=str(self.plan.value),
            stratum=self.plan.kind,
        )


def generate_stories(rng: Random, steps: Sequence[int] = (2, 3), mix: Mix = "all") -> Iterator[Story]:
    """Generate stories of both sides of the split without end, drawn by `rng`; mix `all` is half of either kind."""
    while True:
        kind = rng.choice(("sum", "scale")) if mix == "all" else mix
        plan = next(plan for plan in generate_plans(rng, steps, kind) if plan is not None)
        yield _tell(plan, rng)


def _tell(plan: Plan, rng: Random) -> Story:
    name, friend = rng.sample(NAMES, 2)
    words = {"name": name, "friend": friend, "noun": rng.choice(NOUNS)}
    told = [rng.choice(OPENINGS).format(number=plan.start, **words)]
    told += [rng.choice(_ways(step)).format(number=step.number, **words) for step in plan.steps]
    told.append(rng.choice(QUESTIONS).format(**words))
    return Story(" ".join(told), plan)


def _ways(step: PlanStep) -> Sequence[str]:
    in_a_word = CHANGES_BY_TWO.get(step.operation, ()) if step.number == 2 else ()
    return (*CHANGES[step.operation], *in_a_word)


_FIELDS = {"name": "|".join(NAMES), "friend": "|".join(NAMES), "noun": "|".join(NOUNS), "number": "[1-9][0-9]{0,8}"}


def _compile(template: str) -> re.Pattern[str]:
    """Compile a template to the pattern of the sentences that it makes."""
    pattern = ""
    for literal, field, _, _ in Formatter().parse(template):
        pattern += re.escape(literal)
        if field:
            pattern += f"(?P={field})" if f"(?P<{field}>" in pattern else f"(?P<{field}>{_FIELDS[field]})"
    return re.compile(pattern)


_OPENINGS, _QUESTIONS = tuple(map(_compile, OPENINGS)), tuple(map(_compile, QUESTIONS))
_CHANGES = {
    _compile(template): operation
    for ways in (CHANGES, CHANGES_BY_TWO)
    for operation, templates in ways.items()
    for template in templates
}


def parse_story(text: str) -> Plan | None:
    """Parse a story's text into its plan; None for text that is no such story."""
    opening, *rest = re.split(r"(?<=\.) ", text)
    if not 2 <= len(rest) <= MAX_STEPS + 1:
        return None
    sentences = [(opening, _OPENINGS), *((change, tuple(_CHANGES)) for change in rest[:-1]), (rest[-1], _QUESTIONS)]
    matches = [match for sentence, patterns in sentences if (match := _match(sentence, patterns))]
    words = {item for match in matches for item in match.groupdict().items() if item[0] != "number"}
    # One noun, one owner and one friend, who is not the owner.
    agree = len(words) == len({field for field, _ in words}) == len({word for _, word in words})
    if len(matches) < len(sentences) or not agree:
        return None
    # A change that says its number in a word says two.
    numbers = [int({"number": "2", **match.groupdict()}["number"]) for match in matches[:-1]]
    operations = [_CHANGES[match.re] for match in matches[1:-1]]
    return Plan(numbers[0], tuple(map(PlanStep, operations, numbers[1:])))


def _match(sentence: str, patterns: Sequence[re.Pattern[str]]) -> re.Match[str] | None:
    return next((match for pattern in patterns if (match := pattern.fullmatch(sentence))), None)


class Stories:
    """Implements TaskSource."""

    def __init__(self, options: WordOptions) -> None:
        self._options = options

    def load(self, split: Split) -> Sequence[Task]:
        """Raises ConfigError if there are too few such stories."""
        options = self._options
        stories = generate_stories(Random(f"{options.seed}/{split}"), options.steps, options.mix)
        return choose_tasks(stories, split, options.eval if split == "eval" else options.train)
