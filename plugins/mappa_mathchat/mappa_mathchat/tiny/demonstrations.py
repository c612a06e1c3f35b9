"""What the small model is shown before it learns from verdicts: the team at work, with bad habits.

The habits are planted. Some readings of a verb are wrong more often than right, so that a model that imitates well
answers wrong even when it decodes greedily; the right behaviour is there too, only rarer. What reinforcement learning
from verdicts then does is find and strengthen it. Faultless demonstrations come first, because copying a number is
learned from them in a fraction of the time. Problems that are held out are never shown.
"""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from mappa_core import PYTHON, Message, ToolCall, ToolResult
from mappa_mathchat.briefing import Contribution
from mappa_mathchat.plans import APPLY, SIGNS, Move, Plan
from mappa_mathchat.words import TERMS, Problem, problems
from mappa_mathchat.workflow import CODER, SOLVER, VERIFIER, MathChat, needs_another_try

CALL = ToolCall(name=PYTHON)


@dataclass(frozen=True, slots=True)
class Habits:
    """How often a demonstration goes wrong; probabilities."""

    misread: dict[str, tuple[str, float]] = field(
        default_factory=lambda: {
            "gives": ("add", 0.62),
            "copies": ("add", 0.62),
            "splits": ("sub", 0.62),
            "shares": ("sub", 0.40),
            "repeats": ("add", 0.30),
        }
    )
    """verb -> the operation it is taken for, and how often"""
    slip: float = 0.06
    """a step of the plan gets another operation or another number"""
    dropped: float = 0.05
    """a step is left out of the plan"""
    silent: float = 0.50
    """the program does not print"""
    silent_again: float = 0.40
    """nor does the second one"""
    float_division: float = 0.60
    """`/` for `//`, per division"""
    broken: float = 0.10
    """the program is not Python"""
    copied_wrong: float = 0.05
    """the program takes over one number wrong"""
    other_box: float = 0.55
    """the box holds the plan's last number, not the output"""
    no_box: float = 0.12
    """the answer is not in a box"""


FAULTLESS = Habits(
    misread={},
    slip=0.0,
    dropped=0.0,
    silent=0.0,
    silent_again=0.0,
    float_division=0.0,
    broken=0.0,
    copied_wrong=0.0,
    other_box=0.0,
    no_box=0.0,
)


class Demonstrator:
    """Writes conversations (user, assistant, user, assistant, …) in which every assistant message is to be learned.

    The user messages are those that `workflow` writes when it runs, so that what was learned is what is met again.
    """

    def __init__(self, workflow: MathChat, habits: Habits, rng: Random) -> None:
        self._workflow = workflow
        self.habits = habits
        self._rng = rng
        self.shown: set[str] = set()
        """Texts of the problems used so far."""

    def conversations(self) -> Iterator[list[Message]]:
        """Demonstrations without end, three conversations a problem."""
        for problem in problems(self._rng):
            if not problem.held_out:
                self.shown.add(problem.text)
                yield from self._team(problem)

    def _team(self, problem: Problem) -> Iterator[list[Message]]:
        plan = self._plan(problem)
        planned = Contribution(agent=SOLVER, text=plan.text)
        yield [self._opening(SOLVER, problem, []), _said(plan.text)]

        coding = [self._opening(CODER, problem, [planned])]
        coded = []
        for silent in (self.habits.silent, self.habits.silent_again):
            code = self._code(plan, silent)
            text = f"```python\n{code}\n```"
            ran = run(code)
            result = self._workflow.briefing.results([CALL], [ran])
            coding += [_said(text), Message(role="user", content=result)]
            coded.append(Contribution(agent=CODER, text=text, results=result))
            if not needs_another_try([ran]):
                break
        yield coding[:-1]

        yield [self._opening(VERIFIER, problem, [planned, *coded]), _said(self._answer(plan, ran.stdout.strip()))]

    def _opening(self, agent: str, problem: Problem, earlier: list[Contribution]) -> Message:
        return Message(role="user", content=self._workflow.opening(agent, problem.text, earlier))

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _plan(self, problem: Problem) -> Plan:
        moves = [self._read(verb, move) for verb, move in zip(problem.verbs, problem.plan.moves, strict=True)]
        if self._chance(self.habits.dropped):
            del moves[self._rng.randrange(len(moves))]
        return Plan(problem.plan.start, tuple(moves))

    def _read(self, verb: str, move: Move) -> Move:
        taken_for, how_often = self.habits.misread.get(verb, (move.operation, 0.0))
        operation = taken_for if self._chance(how_often) else move.operation
        if not self._chance(self.habits.slip):
            return Move(operation, move.number)
        if self._chance(0.5):
            return Move(self._rng.choice(tuple(APPLY)), move.number)
        return Move(operation, self._rng.choice(TERMS[operation]))

    def _code(self, plan: Plan, silent: float) -> str:
        numbers = [plan.start, *(move.number for move in plan.moves)]
        if self._chance(self.habits.copied_wrong):
            numbers[self._rng.randrange(len(numbers))] = self._rng.choice(TERMS["add"])
        signs = [
            "/" if move.operation == "div" and self._chance(self.habits.float_division) else SIGNS[move.operation]
            for move in plan.moves
        ]
        lines = [f"x={numbers[0]}", *(f"x{sign}={number}" for sign, number in zip(signs, numbers[1:], strict=True))]
        if not self._chance(silent):
            lines.append("print(x)")
        if self._chance(self.habits.broken):
            where = self._rng.randrange(len(lines))
            lines[where] = self._rng.choice(("{}(", "then {}", "{} then")).format(lines[where])
        return "\n".join(lines)

    def _answer(self, plan: Plan, output: str) -> str:
        last = str(plan.moves[-1].number if plan.moves else plan.start)
        answer = last if not output or self._chance(self.habits.other_box) else output
        return answer if self._chance(self.habits.no_box) else f"\\boxed{{{answer}}}"


def run(code: str) -> ToolResult:
    """What the tool answers to a demonstration's program, as far as agents see it.

    These programs are written above and hold nothing but arithmetic; what a model writes runs in the sandbox."""
    stdout = io.StringIO()
    try:
        with contextlib.redirect_stdout(stdout):
            exec(compile(code, "main.py", "exec"), {})
    except (SyntaxError, ZeroDivisionError) as error:
        last_line = traceback.format_exception_only(error)[-1]
        return ToolResult(tool=PYTHON, status="error", exit_code=1, stdout=stdout.getvalue(), stderr=last_line)
    return ToolResult(tool=PYTHON, status="ok", exit_code=0, stdout=stdout.getvalue())


def _said(text: str) -> Message:
    return Message(role="assistant", content=text)
