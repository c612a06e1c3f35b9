"""The plan language of the word problems: `start 38`, then one of `add 4`, `sub 9`, `mul 2`, `div 3` a line."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Operation = Literal["add", "sub", "mul", "div"]
PlanKind = Literal["sum", "scale"]

# Counts are whole numbers, so a division with a remainder is rounded down.
APPLY_OPERATION: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.floordiv,
}
SCALING_OPERATIONS = frozenset({"mul", "div"})
PYTHON_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "//"}
"""The operators in Python."""
COMMUTATIVE_OPERATIONS = frozenset({"add", "mul"})
# Longer numbers are rejected: no problem has them, and multiplying them would take long.
_SUM = re.compile(r"(?<![\w.])(\d{1,9}) ?([-+*/×x÷]) ?(\d{1,9}) ?= ?(\d{1,9})(?![\w]|\.\d)")
_OPERATION_OF_SIGN = {"+": "add", "-": "sub", "*": "mul", "×": "mul", "x": "mul", "/": "div", "÷": "div"}
PLAN_LINE = re.compile(r"(start|add|sub|mul|div) (\d{1,9})")
MAX_STEPS = 16


@dataclass(frozen=True, slots=True)
class PlanStep:
    operation: str
    number: int

    @property
    def term(self) -> str:
        """The step as it stands in a sum: `- 9`, `/ 3`."""
        return f"{PYTHON_OPERATORS[self.operation][0]} {self.number}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A starting number and the operations on it, in order."""

    start: int
    steps: tuple[PlanStep, ...]

    @property
    def value(self) -> int:
        """The result of the plan."""
        total = self.start
        for step in self.steps:
            total = APPLY_OPERATION[step.operation](total, step.number)
        return total

    @property
    def kind(self) -> PlanKind:
        """`sum` for a plan that only adds and subtracts, `scale` for one that also multiplies or divides."""
        return "scale" if any(step.operation in SCALING_OPERATIONS for step in self.steps) else "sum"

    @property
    def text(self) -> str:
        return "\n".join([f"start {self.start}", *(f"{step.operation} {step.number}" for step in self.steps)])

    @property
    def program(self) -> str:
        """A program that prints the plan's value, in a code fence as an agent writes it."""
        lines = [
            f"x={self.start}",
            *(f"x{PYTHON_OPERATORS[step.operation]}={step.number}" for step in self.steps),
            "print(x)",
        ]
        return "\n".join(["```python", *lines, "```"])


def parse_plan(text: str) -> Plan | None:
    """Parse a plan; None for text that is no plan, or that divides by zero."""
    lines = text.strip().splitlines()
    matches = [PLAN_LINE.fullmatch(line.strip()) for line in lines]
    words = [(match[1], int(match[2])) for match in matches if match]
    if not words or len(words) != len(lines) or len(words) > MAX_STEPS + 1:
        return None
    (first, start), *rest = words
    if first != "start" or any(word == "start" or (word, number) == ("div", 0) for word, number in rest):
        return None
    return Plan(start, tuple(PlanStep(word, number) for word, number in rest))


def parse_sums(text: str) -> tuple[Plan, str] | None:
    """Parse a plan in prose that is a chain of sums, `38 - 9 = 29. 29 * 2 = 58.`, and what its last sum claims to come
    to. A slip of arithmetic is followed: in `5 + 2 = 8. 8 * 3 = 24.` the plan is to triple 5 + 2. None for text without
    sums, or with one that does not go on from that before."""
    sums = [match.groups() for match in _SUM.finditer(text)]
    if not sums or len(sums) > MAX_STEPS:
        return None
    steps, so_far = [], sums[0][0]
    for left, sign, right, claimed in sums:
        operation = _OPERATION_OF_SIGN[sign]
        if left != so_far and right == so_far and operation in COMMUTATIVE_OPERATIONS:
            left, right = right, left
        if left != so_far or (operation, int(right)) == ("div", 0):
            return None
        steps.append(PlanStep(operation, int(right)))
        so_far = claimed
    return Plan(int(sums[0][0]), tuple(steps)), so_far
