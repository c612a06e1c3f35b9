"""Demonstrations for the tiny model's warm start: the team at work, with planted faults.

Some readings of a verb are wrong more often than right, so that a model that imitates well answers wrong even with
greedy decoding; the right behaviour is there too, only rarer. Reinforcement learning from verdicts then finds and
strengthens it. Faultless demonstrations come first, because copying a number is learned from them in a fraction of the
time. Held-out problems are never shown.
"""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from mappa_core import Message, ToolCall, ToolResult
from mappa_core.sandbox import PYTHON
from mappa_core.workflow import Contribution
from mappa_engine import Demonstrator
from mappa_mathchat.plans import APPLY_OPERATION, PYTHON_OPERATORS, Plan, PlanStep
from mappa_mathchat.word_problems import OPERAND_RANGES, WordProblem, generate_problems
from mappa_mathchat.workflow import CODER, SOLVER, VERIFIER, MathChat, needs_another_try

PYTHON_CALL = ToolCall(name=PYTHON)


@dataclass(frozen=True, slots=True)
class FaultProbabilities:
    """The probability of each planted fault. The field names are keys of the shipped manifest."""

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


NO_FAULTS = FaultProbabilities(
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


class Demonstrations(Demonstrator[FaultProbabilities]):
    """Demonstrations of the team. The user messages are built by `workflow`, so that the model sees the same prompts in
    a run."""

    def __init__(self, workflow: MathChat, probabilities: FaultProbabilities, rng: Random) -> None:
        super().__init__(probabilities, rng)
        self._workflow = workflow
        self.problem_texts: set[str] = set()
        """Texts of the problems shown so far."""

    def conversations(self) -> Iterator[list[Message]]:
        """Generate demonstrations without end, three conversations per problem."""
        for problem in generate_problems(self._rng):
            if not problem.held_out:
                self.problem_texts.add(problem.text)
                yield from self._team(problem)

    def _team(self, problem: WordProblem) -> Iterator[list[Message]]:
        plan = self._plan(problem)
        planned = Contribution(agent=SOLVER, text=plan.text)
        yield [self._opening(SOLVER, problem, []), _assistant_message(plan.text)]

        coding = [self._opening(CODER, problem, [planned])]
        coded = []
        for silent in (self.probabilities.silent, self.probabilities.silent_again):
            code = self._code(plan, silent)
            text = f"```python\n{code}\n```"
            ran = run_program(code)
            result = self._workflow.templates.render_results([PYTHON_CALL], [ran])
            coding += [_assistant_message(text), Message(role="user", content=result)]
            coded.append(Contribution(agent=CODER, text=text, results=result))
            if not needs_another_try([ran]):
                break
        yield coding[:-1]

        yield [
            self._opening(VERIFIER, problem, [planned, *coded]),
            _assistant_message(self._answer(plan, ran.stdout.strip())),
        ]

    def _opening(self, agent: str, problem: WordProblem, earlier: list[Contribution]) -> Message:
        return Message(role="user", content=self._workflow.build_prompt(agent, problem.text, earlier))

    def _plan(self, problem: WordProblem) -> Plan:
        steps = [self._read(verb, step) for verb, step in zip(problem.verbs, problem.plan.steps, strict=True)]
        if self._chance(self.probabilities.dropped):
            del steps[self._rng.randrange(len(steps))]
        return Plan(problem.plan.start, tuple(steps))

    def _read(self, verb: str, step: PlanStep) -> PlanStep:
        taken_for, how_often = self.probabilities.misread.get(verb, (step.operation, 0.0))
        operation = taken_for if self._chance(how_often) else step.operation
        if not self._chance(self.probabilities.slip):
            return PlanStep(operation, step.number)
        if self._chance(0.5):
            return PlanStep(self._rng.choice(tuple(APPLY_OPERATION)), step.number)
        return PlanStep(operation, self._rng.choice(OPERAND_RANGES[operation]))

    def _code(self, plan: Plan, silent: float) -> str:
        numbers = [plan.start, *(step.number for step in plan.steps)]
        if self._chance(self.probabilities.copied_wrong):
            numbers[self._rng.randrange(len(numbers))] = self._rng.choice(OPERAND_RANGES["add"])
        signs = [
            "/"
            if step.operation == "div" and self._chance(self.probabilities.float_division)
            else PYTHON_OPERATORS[step.operation]
            for step in plan.steps
        ]
        lines = [f"x={numbers[0]}", *(f"x{sign}={number}" for sign, number in zip(signs, numbers[1:], strict=True))]
        if not self._chance(silent):
            lines.append("print(x)")
        if self._chance(self.probabilities.broken):
            where = self._rng.randrange(len(lines))
            lines[where] = self._rng.choice(("{}(", "then {}", "{} then")).format(lines[where])
        return "\n".join(lines)

    def _answer(self, plan: Plan, output: str) -> str:
        last = str(plan.steps[-1].number if plan.steps else plan.start)
        answer = last if not output or self._chance(self.probabilities.other_box) else output
        return answer if self._chance(self.probabilities.no_box) else f"\\boxed{{{answer}}}"


def run_program(code: str) -> ToolResult:
    """Run a demonstration's program and return the tool result that agents would see.

    These programs are generated above and hold only arithmetic; programs of models run in the sandbox."""
    stdout = io.StringIO()
    try:
        with contextlib.redirect_stdout(stdout):
            exec(compile(code, "main.py", "exec"), {})
    except (SyntaxError, ZeroDivisionError) as error:
        last_line = traceback.format_exception_only(error)[-1]
        return ToolResult(tool=PYTHON, status="error", exit_code=1, stdout=stdout.getvalue(), stderr=last_line)
    return ToolResult(tool=PYTHON, status="ok", exit_code=0, stdout=stdout.getvalue())


def _assistant_message(text: str) -> Message:
    return Message(role="assistant", content=text)
