"""A coach without a model: rules over what can be checked about each action of MathChat.

The Problem Solver is compared with the truth, the Code Executor with the plan it was given (a faithful program for a
wrong plan earns the full score, a silent repair does not), the Verifier with truth and program output. Of a plan in
prose that ends in a box, the box is compared; the program is held against what its sums come to, if it is a chain of
them (`parse_sums`), or against the box where that says something else. A wrong plan of a story (`stories`) is held
against the operations that the text tells, and paid for those that it begins with. The coach abstains where nothing
can be checked, as for prose without a box where none was asked for.

| score | Problem Solver | Code Executor | Verifier |
|---|---|---|---|
| 10 | the plan comes to the truth | prints what its plan comes to, to the letter | the box holds the truth |
| 7 | | | wrong, but faithful to a wrong output |
| 6 | its sums come to the truth, but it slips in one | | |
| 1 to 5 | a wrong plan of a story: 1, and 4 times the share of the story's steps that it begins with | | |
| 4 | | prints something else | wrong, with no output to go by |
| 3 | a wrong plan of another task | | |
| 2 | | prints nothing | wrong, and not what the program printed |
| 1 | | the program fails | |
| 0 | no plan, or no box, where one is asked for; cut off | no program; cut off | no box; cut off |

With `correction: true` a verdict below 10 on a word problem holds the right action, where the agent could have known
it: the plan in the problem's text, for a story as a chain of sums, if its value is the truth; the program of the given
plan, also of one that is a chain of sums; the box around a program's output, if that is the truth. No correction holds
an answer that the agent could not derive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mappa_core import MAX_SCORE, NOBODY, Coach, Scene, Step, Verdict
from mappa_mathchat.equality import MAX_CHARACTERS, drop_alternatives
from mappa_mathchat.extract_answer import extract_final_answer
from mappa_mathchat.grader import Grader
from mappa_mathchat.plans import COMMUTATIVE_OPERATIONS, Plan, PlanStep, parse_plan, parse_sums
from mappa_mathchat.stories import Story, parse_story
from mappa_mathchat.word_problems import parse_problem
from mappa_mathchat.workflow import CODER, SOLVER, VERIFIER

_RULE = re.compile(r"[-=_*#~+.]{2,}")
_POWER = re.compile(r"\*\* ?(-?[A-Za-z0-9.]+|\([^()]*\))")
_PYTHON_FRACTION = re.compile(r"(?:Fraction|Rational)\((-?[0-9]+), ?([0-9]+)\)")


@dataclass
class RuleOptions:
    """Options of the offer `mathchat-rules`."""

    correction: bool = False
    """Say what would have been right, where the rules know it."""


class RuleCoach(Coach):
    """The offer `mathchat-rules`. It needs the truth for the Problem Solver and the Verifier
    (`coach.reference_for`); where the truth is not shown, it abstains on their actions."""

    def __init__(self, options: RuleOptions) -> None:
        self._corrects = options.correction
        self._grader = Grader()

    async def score(self, scene: Scene) -> Verdict:
        verdict = await self._judge(scene)
        if not self._corrects or verdict.score in (None, MAX_SCORE):
            return verdict
        return replace(verdict, correction=find_correction(scene))

    async def _judge(self, scene: Scene) -> Verdict:
        step = scene.step
        if step.truncated:
            return Verdict.scored(0, "The reply was cut off at its token limit.", blame=step.agent)
        if step.agent == SOLVER:
            return await self._score_solver(scene)
        if step.agent == CODER:
            return await self._score_coder(scene)
        if step.agent == VERIFIER:
            return await self._score_verifier(scene)
        return Verdict.abstained(f"There are no rules for {step.agent}.")

    async def _score_solver(self, scene: Scene) -> Verdict:
        claim, truth = _claimed_answer(scene, scene.step), scene.task.reference
        if claim is None and _expects_plan_steps(scene):
            return Verdict.scored(0, "The reply is not a plan that can be computed.", blame=SOLVER)
        if claim is None and _is_asked_for_a_box(scene.step):
            return Verdict.scored(0, "The reply holds no boxed answer.", blame=SOLVER)
        if claim is None:
            return Verdict.abstained("The plan is prose: its value cannot be computed.")
        if truth is None:
            return Verdict.abstained(f"The plan comes to {claim}; without the truth nothing can be said of that.")
        if await self._grader.are_equal(claim, truth):
            return Verdict.scored(10, f"The plan comes to {claim}, which is right.", blame=NOBODY)
        sums = _read_sums(scene.step)
        if sums is not None and str(sums.value) == truth:
            reason = f"The sums of the plan come to {truth}, which is right, but it says {claim}."
            return Verdict.scored(6, reason, blame=SOLVER)
        story = None if _expects_plan_steps(scene) else _find_true_plan(scene)
        if story is None:
            return Verdict.scored(3, f"The plan comes to {claim}, not to {truth}.", blame=SOLVER)
        common, departure = _compare_with_story(scene.step.reply.content, story)
        score = round(1 + 4 * common / len(story.steps), 1)
        return Verdict.scored(score, f"The plan comes to {claim}, not to {truth}: {departure}.", blame=SOLVER)

    async def _score_coder(self, scene: Scene) -> Verdict:
        step = scene.step
        if not step.results:
            return Verdict.scored(0, "The reply holds no program.", blame=CODER)
        failed = [result for result in step.results if result.status != "ok"]
        if failed:
            why = (failed[0].stderr.strip() or failed[0].status).splitlines()[-1]
            return Verdict.scored(1, f"The program failed: {why}", blame=CODER)
        output = _printed_answer(step)
        if output is None:
            return Verdict.scored(2, "The program printed nothing.", blame=CODER)
        values = _plan_values(scene)
        if not values:
            return Verdict.abstained(f"The program printed {output}; there is no plan's value to hold it against.")
        if any([await self._is_faithful(scene, output, value) for value in values]):
            return Verdict.scored(10, f"The program printed {output}, what its plan comes to.", blame=NOBODY)
        comes_to = ", or ".join([values[0], *(f"{value} by its box" for value in values[1:])])
        return Verdict.scored(4, f"The program printed {output}, but its plan comes to {comes_to}.", blame=CODER)

    async def _is_faithful(self, scene: Scene, output: str, value: str) -> bool:
        # A plan in steps counts things, so its value is an integer: 6.0 is not 6.
        return output == value if _expects_plan_steps(scene) else await self._printed(output, value)

    async def _score_verifier(self, scene: Scene) -> Verdict:
        answer, truth = extract_final_answer(scene.step.reply.content), scene.task.reference
        if answer is None:
            return Verdict.scored(0, "The reply holds no boxed answer.", blame=VERIFIER)
        if truth is None:
            return Verdict.abstained(f"The box holds {answer}; without the truth nothing can be said of that.")
        if await self._grader.are_equal(answer, truth):
            return Verdict.scored(10, f"The box holds {answer}, which is right.", blame=NOBODY)
        output = _program_output(scene)
        if output is None:
            reason = f"The box holds {answer}, not {truth}, but there was no program output to go by."
            return Verdict.scored(4, reason, blame=await self._find_first_at_fault(scene, truth))
        if not await self._printed(output, answer):
            reason = f"The box holds {answer}, but the program printed {output} and the truth is {truth}."
            return Verdict.scored(2, reason, blame=VERIFIER)
        reason = f"The box holds {answer}, as the program printed; the truth is {truth}."
        return Verdict.scored(7, reason, blame=await self._find_first_at_fault(scene, truth))

    async def _printed(self, output: str, answer: str) -> bool:
        """Whether a program printed an answer, in mathematics or in Python's own spelling."""
        # It stands where a reference does, but is an agent's text, which may not say what else is right.
        output = drop_alternatives(output)
        read = dict.fromkeys((output, read_python(output[:MAX_CHARACTERS])))
        return any([await self._grader.are_equal(answer, one) for one in read])

    async def _find_first_at_fault(self, scene: Scene, truth: str) -> str | None:
        """Return the first agent whose own work was wrong; None where the plan cannot be checked."""
        values = _plan_values(scene)
        if not values:
            return SOLVER if _expects_plan_steps(scene) else None
        return CODER if all([await self._grader.are_equal(value, truth) for value in values]) else SOLVER

    async def close(self) -> None:
        await self._grader.close()


def find_correction(scene: Scene) -> str | None:
    """Return the complete right action; None where the rules cannot derive it, or the agent could not have."""
    truth, agent, plan = scene.task.reference, scene.step.agent, _solver_plan(scene)
    if agent == SOLVER:
        right = _find_true_plan(scene)
        if right is None:
            return None
        return right.text if _expects_plan_steps(scene) else Story(scene.task.prompt, right).solution
    if plan is None and not _expects_plan_steps(scene):
        return None
    if agent == CODER:
        return None if plan is None else plan.program
    output = _program_output(scene)
    return f"\\boxed{{{output}}}" if agent == VERIFIER and output is not None and output == truth else None


def _find_true_plan(scene: Scene) -> Plan | None:
    """Return the plan that the task's text tells, if there is one and its value is the truth."""
    plan = (parse_problem if _expects_plan_steps(scene) else parse_story)(scene.task.prompt)
    return plan if plan is not None and str(plan.value) == scene.task.reference else None


def _compare_with_story(reply: str, story: Plan) -> tuple[int, str]:
    """Return how many of a story's steps a wrong plan begins with, and where it departs from the story."""
    parsed = parse_sums(reply)
    plan = parse_plan(reply) if parsed is None else parsed[0]
    if plan is None:
        return 0, "it is no chain of sums that go on from one another"
    # A sum with a negative number or a fraction is not read, so what is read may have gaps.
    has_gaps = parsed is not None and reply.count("=") > len(plan.steps)
    common, departure = _find_departure(_swap_first_operands(plan, story.start), story)
    return common, f"as far as its sums can be read, {departure}" if has_gaps else departure


def _swap_first_operands(plan: Plan, start: int) -> Plan:
    """Return a plan that begins with `9 + 38` as `38 + 9`, if `start` is 38."""
    if plan.start == start or not plan.steps:
        return plan
    first, *others = plan.steps
    if first.number != start or first.operation not in COMMUTATIVE_OPERATIONS:
        return plan
    return Plan(start, (PlanStep(first.operation, plan.start), *others))


def _find_departure(plan: Plan, story: Plan) -> tuple[int, str]:
    """Return how many steps a plan and a story have in common from the beginning, and what comes after them."""
    if plan.start != story.start:
        return 0, f"it begins with {plan.start}, where the story begins with {story.start}"
    pairs = enumerate(zip(plan.steps, story.steps, strict=False))
    common = next((place for place, (step, right) in pairs if step != right), min(len(plan.steps), len(story.steps)))
    more, missing = plan.steps[common:], story.steps[common:]
    if more and missing:
        return common, f"its step {common + 1} is '{more[0].term}', where the story says '{missing[0].term}'"
    if missing:
        return common, "it leaves out " + " and ".join(f"'{step.term}'" for step in missing)
    if more:
        return common, f"it goes on with '{more[0].term}', where the story ends"
    return common, "its steps are those of the story, but its box is not what they come to"


def _solver_plan(scene: Scene) -> Plan | None:
    """Return the Problem Solver's plan, in the plan language or as a chain of sums; None where it is other prose."""
    step = next((step for step in scene.earlier if step.agent == SOLVER), None)
    if step is None:
        return None
    plan = parse_plan(step.reply.content)
    return _read_sums(step) if plan is None and not _expects_plan_steps(scene) else plan


def _expects_plan_steps(scene: Scene) -> bool:
    """Whether the task asks for a plan in the plan language (`plans`)."""
    return scene.task.meta.get("plan") == "steps"


def _claimed_answer(scene: Scene, step: Step) -> str | None:
    """Return an action's answer: the value of its plan or, where prose is allowed, the content of its box."""
    plan = parse_plan(step.reply.content)
    if plan is not None:
        return str(plan.value)
    return None if _expects_plan_steps(scene) else extract_final_answer(step.reply.content)


def _read_sums(step: Step) -> Plan | None:
    """Return the plan of an action in prose whose sums end in its box; None for other prose."""
    parsed = parse_sums(step.reply.content)
    box = extract_final_answer(step.reply.content)
    return parsed[0] if parsed is not None and parsed[1] == box else None


def _is_asked_for_a_box(step: Step) -> bool:
    """Whether the prompt of an action asks for the answer in a box."""
    return any("\\boxed" in message.content for message in step.messages if message.role != "assistant")


def _printed_answer(step: Step) -> str | None:
    """Return the answer in a program's output: its last line that is no rule (`=====`), without a label such as
    `total:` or `x =`; None where nothing was printed."""
    lines = [line for result in step.results if result.status == "ok" for line in result.stdout.split("\n")]
    printed = [line.strip() for line in lines if line.strip()]
    if not printed:
        return None
    line = next((one for one in reversed(printed) if not _RULE.fullmatch(one)), printed[-1])
    return re.split(r"[:=]", line)[-1].strip() or line


def read_python(printed: str) -> str:
    """Return what Python printed as mathematics: `[24, 26]` is `24, 26`, `x**2` is `x^{2}`, `Fraction(1, 3)` is
    `\\frac{1}{3}`."""
    text = _POWER.sub(lambda match: f"^{{{match[1]}}}", printed)
    text = _PYTHON_FRACTION.sub(r"\\frac{\1}{\2}", text)
    if re.fullmatch(r"\{[^{}]+\}", text):
        return rf"\{{{text[1:-1]}\}}"
    return text[1:-1] if re.fullmatch(r"\[[^\[\]]+\]", text) else text


def _plan_values(scene: Scene) -> tuple[str, ...]:
    """Return what the Problem Solver's plan comes to, or else the answer that it gives. A chain of sums that does not
    end in its box says two things, of which a program can follow either; empty for a plan that says none."""
    plan = _solver_plan(scene)
    if plan is not None:
        return (str(plan.value),)
    step = next((step for step in scene.earlier if step.agent == SOLVER), None)
    claim = None if step is None else _claimed_answer(scene, step)
    if step is None or claim is None:
        return ()
    sums = None if _expects_plan_steps(scene) else parse_sums(step.reply.content)
    return (claim,) if sums is None else tuple(dict.fromkeys((str(sums[0].value), claim)))


def _program_output(scene: Scene) -> str | None:
    """Return the output of the Code Executor's last program that succeeded."""
    return next(
        (_printed_answer(step) for step in reversed(scene.earlier) if step.agent == CODER and _printed_answer(step)),
        None,
    )
