"""A coach without a model: rules over what can be checked about each action of MathChat.

The Problem Solver is held against the truth, the Code Executor against the plan it was given (a faithful program for
a wrong plan earns full marks, a silent repair does not), the Verifier against truth and program output. What cannot
be checked, a plan in prose for example, is abstained from: no number is made up.

| score | Problem Solver | Code Executor | Verifier |
|---|---|---|---|
| 10 | the plan comes to the truth | prints what its plan comes to, to the letter | the box holds the truth |
| 7 | | | wrong, but faithful to a wrong output |
| 4 | | prints something else | wrong, with no output to go by |
| 3 | the plan comes to something else | | |
| 2 | | prints nothing | wrong, and not what the program printed |
| 1 | | the program fails | |
| 0 | no plan where one is asked for; cut off | no program; cut off | no box; cut off |

With `correction: true` a word problem's verdict below 10 says what would have been right, wherever the agent could have
known it: the plan that the problem's text tells, if it comes to the truth; the program of the plan that was handed on;
the box around a program's output, if that is the truth. No correction holds an answer that the agent could not come to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mappa_core import MAX_SCORE, NOBODY, Coach, Scene, Step, Verdict
from mappa_mathchat.boxed import final_answer
from mappa_mathchat.grading import Grader
from mappa_mathchat.plans import Plan, parse
from mappa_mathchat.words import read
from mappa_mathchat.workflow import CODER, SOLVER, VERIFIER


@dataclass
class RuleOptions:
    """Of the offer `mathchat-rules`."""

    correction: bool = False
    """Say what would have been right, where the rules know it."""


class RuleCoach(Coach):
    """The offer `mathchat-rules`. It needs the truth for the Problem Solver and the Verifier
    (`coach.reference_for`); where it is not shown, their right answers cannot be told from wrong ones and it
    abstains."""

    def __init__(self, options: RuleOptions) -> None:
        self._corrects = options.correction
        self._grader = Grader()

    async def score(self, scene: Scene) -> Verdict:
        verdict = await self._judged(scene)
        if not self._corrects or verdict.score in (None, MAX_SCORE):
            return verdict
        return replace(verdict, correction=correction(scene))

    async def _judged(self, scene: Scene) -> Verdict:
        step = scene.step
        if step.truncated:
            return Verdict.scored(0, "The reply was cut off at its token limit.", blame=step.agent)
        if step.agent == SOLVER:
            return await self._solver(scene)
        if step.agent == CODER:
            return await self._coder(scene)
        if step.agent == VERIFIER:
            return await self._verifier(scene)
        return Verdict.abstained(f"There are no rules for {step.agent}.")

    async def _solver(self, scene: Scene) -> Verdict:
        claim, truth = _claimed(scene, scene.step), scene.task.reference
        if claim is None and _asks_for_steps(scene):
            return Verdict.scored(0, "The reply is not a plan that can be computed.", blame=SOLVER)
        if claim is None:
            return Verdict.abstained("The plan is prose: its value cannot be computed.")
        if truth is None:
            return Verdict.abstained(f"The plan comes to {claim}; without the truth nothing can be said of that.")
        if await self._grader.are_equal(claim, truth):
            return Verdict.scored(10, f"The plan comes to {claim}, which is right.", blame=NOBODY)
        return Verdict.scored(3, f"The plan comes to {claim}, not to {truth}.", blame=SOLVER)

    async def _coder(self, scene: Scene) -> Verdict:
        step = scene.step
        if not step.results:
            return Verdict.scored(0, "The reply holds no program.", blame=CODER)
        failed = [result for result in step.results if result.status != "ok"]
        if failed:
            why = (failed[0].stderr.strip() or failed[0].status).splitlines()[-1]
            return Verdict.scored(1, f"The program failed: {why}", blame=CODER)
        output = _printed(step)
        if output is None:
            return Verdict.scored(2, "The program printed nothing.", blame=CODER)
        claim = _plan_of(scene)
        if claim is None:
            return Verdict.abstained(f"The program printed {output}; there is no plan's value to hold it against.")
        # A plan in steps counts things: 6.0 is not how many there are.
        faithful = output == claim if _asks_for_steps(scene) else await self._grader.are_equal(output, claim)
        if faithful:
            return Verdict.scored(10, f"The program printed {output}, what its plan comes to.", blame=NOBODY)
        return Verdict.scored(4, f"The program printed {output}, but its plan comes to {claim}.", blame=CODER)

    async def _verifier(self, scene: Scene) -> Verdict:
        answer, truth = final_answer(scene.step.reply.content), scene.task.reference
        if answer is None:
            return Verdict.scored(0, "The reply holds no boxed answer.", blame=VERIFIER)
        if truth is None:
            return Verdict.abstained(f"The box holds {answer}; without the truth nothing can be said of that.")
        if await self._grader.are_equal(answer, truth):
            return Verdict.scored(10, f"The box holds {answer}, which is right.", blame=NOBODY)
        output = _output_of(scene)
        if output is None:
            reason = f"The box holds {answer}, not {truth}, but there was no program output to go by."
            return Verdict.scored(4, reason, blame=await self._first_at_fault(scene, truth))
        if not await self._grader.are_equal(answer, output):
            reason = f"The box holds {answer}, but the program printed {output} and the truth is {truth}."
            return Verdict.scored(2, reason, blame=VERIFIER)
        reason = f"The box holds {answer}, as the program printed; the truth is {truth}."
        return Verdict.scored(7, reason, blame=await self._first_at_fault(scene, truth))

    async def _first_at_fault(self, scene: Scene, truth: str) -> str | None:
        """Who led the Verifier astray: the first whose own work was wrong; None where the plan cannot be checked."""
        claim = _plan_of(scene)
        if claim is None:
            return SOLVER if _asks_for_steps(scene) else None
        return CODER if await self._grader.are_equal(claim, truth) else SOLVER

    async def close(self) -> None:
        await self._grader.close()


def correction(scene: Scene) -> str | None:
    """The right action in full; None where the rules do not know it, or the agent could not have."""
    truth, agent = scene.task.reference, scene.step.agent
    if not _asks_for_steps(scene):
        return None
    if agent == SOLVER:
        told = read(scene.task.prompt)
        return told.text if told is not None and str(told.value) == truth else None
    if agent == CODER:
        plan = _handed_on(scene)
        return None if plan is None else plan.program
    output = _output_of(scene)
    return f"\\boxed{{{output}}}" if agent == VERIFIER and output is not None and output == truth else None


def _handed_on(scene: Scene) -> Plan | None:
    """The plan that the team works from."""
    return next((parse(step.reply.content) for step in scene.earlier if step.agent == SOLVER), None)


def _asks_for_steps(scene: Scene) -> bool:
    """Whether the task wants its plan in the language of `plans`."""
    return scene.task.meta.get("plan") == "steps"


def _claimed(scene: Scene, step: Step) -> str | None:
    """What an action says the answer is: the value of its plan or, where prose may do, its box."""
    plan = parse(step.reply.content)
    if plan is not None:
        return str(plan.value)
    return None if _asks_for_steps(scene) else final_answer(step.reply.content)


def _printed(step: Step) -> str | None:
    """The answer in a program's output: its last line, after a label such as `total:` or `x =`; None without one."""
    lines = [line for result in step.results if result.status == "ok" for line in result.stdout.split("\n")]
    said = [line.strip() for line in lines if line.strip()]
    return re.split(r"[:=]", said[-1])[-1].strip() or None if said else None


def _plan_of(scene: Scene) -> str | None:
    """What the plan that the team works from comes to."""
    return next((_claimed(scene, step) for step in scene.earlier if step.agent == SOLVER), None)


def _output_of(scene: Scene) -> str | None:
    """What the Code Executor's last program that ended well printed."""
    return next((_printed(step) for step in reversed(scene.earlier) if step.agent == CODER and _printed(step)), None)
