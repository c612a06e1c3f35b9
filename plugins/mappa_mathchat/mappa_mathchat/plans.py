"""The plan language of the word problems: `start 38`, then one of `add 4`, `sub 9`, `mul 2`, `div 3` a line."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Operation = Literal["add", "sub", "mul", "div"]
Kind = Literal["sum", "scale"]

# Things that are counted are not cut in pieces, so a division that does not come out even is rounded down.
APPLY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.floordiv,
}
SCALING = frozenset({"mul", "div"})
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "//"}
"""The same in Python."""
# Longer numbers are no plan: nobody counts that many pens, and multiplying them would cost real time.
LINE = re.compile(r"(start|add|sub|mul|div) (\d{1,9})")
MAX_MOVES = 16


@dataclass(frozen=True, slots=True)
class Move:
    operation: str
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A number to start from and what is done to it, in order."""

    start: int
    moves: tuple[Move, ...]

    @property
    def value(self) -> int:
        """What the plan comes to."""
        total = self.start
        for move in self.moves:
            total = APPLY[move.operation](total, move.number)
        return total

    @property
    def kind(self) -> Kind:
        """`sum` for a plan that only adds and subtracts, `scale` for one that also multiplies or divides."""
        return "scale" if any(move.operation in SCALING for move in self.moves) else "sum"

    @property
    def text(self) -> str:
        return "\n".join([f"start {self.start}", *(f"{move.operation} {move.number}" for move in self.moves)])

    @property
    def program(self) -> str:
        """A program that prints what the plan comes to, as an agent writes one: fenced."""
        lines = [f"x={self.start}", *(f"x{SIGNS[move.operation]}={move.number}" for move in self.moves), "print(x)"]
        return "\n".join(["```python", *lines, "```"])


def parse(text: str) -> Plan | None:
    """Read a plan; None for text that is not one, or that divides by zero."""
    lines = text.strip().splitlines()
    found = [LINE.fullmatch(line.strip()) for line in lines]
    words = [(match[1], int(match[2])) for match in found if match]
    if not words or len(words) != len(lines) or len(words) > MAX_MOVES + 1:
        return None
    (first, start), *rest = words
    if first != "start" or any(word == "start" or (word, number) == ("div", 0) for word, number in rest):
        return None
    return Plan(start, tuple(Move(word, number) for word, number in rest))
