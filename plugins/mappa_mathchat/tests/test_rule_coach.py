"""The table of the rule coach, every row by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import pytest_asyncio

from mappa.testing import CoachContract
from mappa_core import NOBODY, Completion, Message, Role, Scene, Step, Task, ToolCall, ToolResult
from mappa_mathchat.rule_coach import RuleCoach, RuleOptions
from mappa_mathchat.workflow import CODER, SOLVER, VERIFIER

WORDS = Task(id="w", prompt="Ana has 38 pens. Ana splits 2. How many pens?", reference="19", meta={"plan": "steps"})
AIME = Task(id="a", prompt="Find x.", reference="025")
BLIND = Task(id="w", prompt=WORDS.prompt, meta={"plan": "steps"})


def said(agent: str, text: str, *results: ToolResult, cut: bool = False) -> Step:
    return Step(
        id=f"{agent}:{text}",
        agent=agent,
        turn=0,
        position=0,
        policy=agent,
        messages=(),
        reply=Message(role="assistant", content=text),
        completion=Completion(
            text=text,
            prompt_tokens=None,
            tokens=np.zeros(1, np.int32),
            logprobs=None,
            finish="length" if cut else "stop",
        ),
        calls=tuple(ToolCall(name="python") for _ in results),
        results=results,
    )


def plan(text: str) -> Step:
    return said(SOLVER, text)


def printing(text: str) -> Step:
    return said(CODER, "```python\n…\n```", ToolResult(tool="python", status="ok", exit_code=0, stdout=text))


def failing(why: str) -> Step:
    result = ToolResult(tool="python", status="error", exit_code=1, stdout="19", stderr=f"Traceback\n{why}\n")
    return said(CODER, "```python\n…\n```", result)


RIGHT, WRONG, PROSE = plan("start 38\ndiv 2"), plan("start 38\nsub 2"), plan("Split them evenly.")
SILENT = printing("")
BOXED_SOLUTION = plan(r"By symmetry $x = 25$, so \boxed{25}.")

SUMS, SLIPPED = plan(r"38 - 9 = 29. 29 * 2 = 58. \boxed{58}"), plan(r"38 - 9 = 28. 28 * 2 = 56. \boxed{56}")
OTHER_BOX = plan(r"38 - 9 = 28. 28 * 2 = 56. \boxed{5}")
ASKED = (Message(role="user", content=r"How many? End with \boxed{}."),)
STORY = Task(id="story", prompt="How many?", reference="58")

# 38 - 9 = 29, 29 * 2 = 58
DOUBLED = Task(
    id="doubled",
    prompt="Mia has 38 shells in a box. A week later 9 of them are gone. Then Mia doubles the number of shells. "
    "How many shells are there now?",
    reference="58",
)
# 5 + 3 = 8, 8 * 4 = 32, 32 - 6 = 26
SOLD = Task(
    id="sold",
    prompt="Tom brought 5 pens to school. Eva gives Tom another 3. By the end of the month there are 4 times as many. "
    "Tom sells 6 of them. How many pens are left?",
    reference="26",
)

TABLE = [
    # the solver: 10 / 3 / 0
    ("right plan", WORDS, (), RIGHT, 10, NOBODY),
    ("plan that comes to something else", WORDS, (), WRONG, 3, SOLVER),
    ("no plan where one is asked for", WORDS, (), PROSE, 0, SOLVER),
    ("a guess instead of a plan", WORDS, (), plan(r"\boxed{19}"), 0, SOLVER),
    ("plan that divides by zero", WORDS, (), plan("start 38\ndiv 0"), 0, SOLVER),
    ("plan cut off", WORDS, (), said(SOLVER, "start 38\ndiv 2", cut=True), 0, SOLVER),
    ("right plan, truth not shown", BLIND, (), RIGHT, None, None),
    ("no plan, truth not shown", BLIND, (), PROSE, 0, SOLVER),
    ("prose", AIME, (), PROSE, None, None),
    ("prose with the right answer", AIME, (), BOXED_SOLUTION, 10, NOBODY),
    ("prose without the box that was asked for", AIME, (), replace(PROSE, messages=ASKED), 0, SOLVER),
    ("a chain of sums", STORY, (), SUMS, 10, NOBODY),
    ("right sums with a slip", STORY, (), SLIPPED, 6, SOLVER),
    ("prose with a wrong answer", AIME, (), plan(r"\boxed{24}"), 3, SOLVER),
    # the coder: 10 / 4 / 2 / 1 / 0, against its plan and not against the truth
    ("faithful to a right plan", BLIND, (RIGHT,), printing("19\n"), 10, NOBODY),
    ("faithful to a wrong plan", BLIND, (WRONG,), printing("36\n"), 10, NOBODY),
    ("silent repair of a wrong plan", WORDS, (WRONG,), printing("19\n"), 4, CODER),
    ("labelled output", BLIND, (RIGHT,), printing("steps\nx = 19\n"), 10, NOBODY),
    ("float for a count", BLIND, (RIGHT,), printing("19.0\n"), 4, CODER),
    ("printed nothing", BLIND, (RIGHT,), SILENT, 2, CODER),
    ("failed", BLIND, (RIGHT,), failing("NameError: y"), 1, CODER),
    ("no program", BLIND, (RIGHT,), said(CODER, "It is 19."), 0, CODER),
    ("program cut off", BLIND, (RIGHT,), said(CODER, "```python\nx", cut=True), 0, CODER),
    ("second try counts by itself", BLIND, (RIGHT, failing("NameError: y")), printing("19"), 10, NOBODY),
    ("output with no plan to hold it against", BLIND, (PROSE,), printing("19"), None, None),
    ("equal to the answer of the prose", AIME, (BOXED_SOLUTION,), printing("50/2"), 10, NOBODY),
    ("another answer than that of the prose", AIME, (BOXED_SOLUTION,), printing("24"), 4, CODER),
    ("a rule under the output", BLIND, (RIGHT,), printing("19\n====="), 10, NOBODY),
    ("a colon at the end", BLIND, (RIGHT,), printing("The answer:"), 4, CODER),
    ("Python's list", AIME, (plan(r"\boxed{26, 24}"),), printing("[24, 26]"), 10, NOBODY),
    ("Python's set", AIME, (plan(r"\boxed{\{24, 26\}}"),), printing("{24, 26}"), 10, NOBODY),
    ("Python's power", AIME, (plan(r"\boxed{1024}"),), printing("2**10"), 10, NOBODY),
    ("Python's polynomial", AIME, (plan(r"\boxed{x^2+1}"),), printing("x**2 + 1"), 10, NOBODY),
    ("Python's fraction", AIME, (plan(r"\boxed{\frac13}"),), printing("Fraction(1, 3)"), 10, NOBODY),
    ("another fraction", AIME, (plan(r"\boxed{\frac13}"),), printing("Fraction(1, 4)"), 4, CODER),
    ("an interval", AIME, (plan(r"\boxed{[24, 26]}"),), printing("[24, 26]"), 10, NOBODY),
    ("a plan of too many digits", AIME, (plan(rf"\boxed{{{'9' * 5000}}}"),), printing("24"), 4, CODER),
    ("the program of a chain of sums", AIME, (SUMS,), printing("58"), 10, NOBODY),
    ("the program of sums that slip", AIME, (SLIPPED,), printing("58"), 10, NOBODY),
    ("the number in the box of sums that slip", AIME, (SLIPPED,), printing("56"), 4, CODER),
    ("the sums of a plan that boxes another number", AIME, (OTHER_BOX,), printing("58"), 10, NOBODY),
    ("the box of a plan with other sums", AIME, (OTHER_BOX,), printing("5"), 10, NOBODY),
    ("neither sums nor box", AIME, (OTHER_BOX,), printing("56"), 4, CODER),
    ("an output that accepts many", AIME, (SUMS,), printing("56 or 57 or 58 (all accepted)"), 4, CODER),
    ("sums that do not go on", AIME, (plan(r"3 + 4 = 7. 5 * 2 = 10. \boxed{10}"),), printing("10"), 10, NOBODY),
    # the verifier: 10 / 7 / 4 / 2 / 0
    ("right", WORDS, (RIGHT, printing("19")), said(VERIFIER, r"\boxed{19}"), 10, NOBODY),
    ("right against a wrong output", WORDS, (WRONG, printing("36")), said(VERIFIER, r"\boxed{19}"), 10, NOBODY),
    ("faithful, wrong plan", WORDS, (WRONG, printing("36")), said(VERIFIER, r"\boxed{36}"), 7, SOLVER),
    ("faithful, wrong program", WORDS, (RIGHT, printing("18")), said(VERIFIER, r"\boxed{18}"), 7, CODER),
    ("faithful, no plan", WORDS, (PROSE, printing("18")), said(VERIFIER, r"\boxed{18}"), 7, SOLVER),
    ("faithful, plan in prose", AIME, (PROSE, printing("18")), said(VERIFIER, r"\boxed{18}"), 7, None),
    ("faithful, right sums in another box", STORY, (OTHER_BOX, printing("5")), said(VERIFIER, r"\boxed{5}"), 7, SOLVER),
    ("nothing to go by", WORDS, (RIGHT, SILENT, SILENT), said(VERIFIER, r"\boxed{2}"), 4, CODER),
    ("nothing to go by, wrong plan", WORDS, (WRONG, failing("x")), said(VERIFIER, r"\boxed{2}"), 4, SOLVER),
    ("neither output nor truth", WORDS, (RIGHT, printing("19")), said(VERIFIER, r"\boxed{2}"), 2, VERIFIER),
    ("second program's output", WORDS, (WRONG, SILENT, printing("36")), said(VERIFIER, r"\boxed{36}"), 7, SOLVER),
    ("faithful to Python's list", AIME, (PROSE, printing("[24, 26]")), said(VERIFIER, r"\boxed{24, 26}"), 7, None),
    ("too many digits printed", AIME, (PROSE, printing("9" * 5000)), said(VERIFIER, r"\boxed{24}"), 2, VERIFIER),
    ("too deep a print", AIME, (PROSE, printing("(" * 1200 + ")" * 1200)), said(VERIFIER, r"\boxed{24}"), 2, VERIFIER),
    ("no box", WORDS, (RIGHT, printing("19")), said(VERIFIER, "19"), 0, VERIFIER),
    ("box cut off", WORDS, (RIGHT, printing("19")), said(VERIFIER, r"\boxed{19}", cut=True), 0, VERIFIER),
    ("truth not shown", BLIND, (RIGHT, printing("19")), said(VERIFIER, r"\boxed{19}"), None, None),
    ("another spelling of the truth", AIME, (PROSE,), said(VERIFIER, r"\boxed{25.0}"), 10, NOBODY),
    ("an agent of another team", WORDS, (), said("critic", "?"), None, None),
]


def scene_of(task: Task, earlier: Sequence[Step], step: Step) -> Scene:
    return Scene(task=task, role=Role(brief=""), step=step, earlier=tuple(earlier))


@pytest_asyncio.fixture(loop_scope="function")
async def coach() -> AsyncIterator[RuleCoach]:
    coach = RuleCoach(RuleOptions())
    yield coach
    await coach.close()


@pytest.mark.parametrize(
    ("task", "earlier", "step", "score", "blame"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
async def test_table(
    coach: RuleCoach, task: Task, earlier: Sequence[Step], step: Step, score: float | None, blame: str | None
) -> None:
    verdict = await coach.score(scene_of(task, earlier, step))
    assert (verdict.score, verdict.blame) == (score, blame)
    assert verdict.reasoning


HANDED_PROGRAM = "```python\nx=38\nx//=2\nx+=1\nprint(x)\n```"
HANDED = plan("start 38\ndiv 2\nadd 1")
PROGRAM = "```python\nx=38\nx//=2\nprint(x)\n```"
CORRECTIONS = [
    ("the plan that the text tells", WORDS, (), WRONG, "start 38\ndiv 2"),
    ("also for prose", WORDS, (), PROSE, "start 38\ndiv 2"),
    ("a right plan needs none", WORDS, (), RIGHT, None),
    ("nothing where the truth is not shown", BLIND, (), PROSE, None),
    ("nothing where the text tells another truth", replace(WORDS, reference="20"), (), WRONG, None),
    ("nothing where the text is none of ours", replace(WORDS, prompt="Halve 38."), (), WRONG, None),
    ("the program of the plan, right or wrong", BLIND, (HANDED,), failing("x"), HANDED_PROGRAM),
    ("the program of a right plan", BLIND, (RIGHT,), SILENT, PROGRAM),
    ("no program where there is no plan", BLIND, (PROSE,), failing("x"), None),
    ("a faithful program needs none", BLIND, (RIGHT,), printing("19"), None),
    ("the box around a right output", WORDS, (RIGHT, printing("19")), said(VERIFIER, "19"), r"\boxed{19}"),
    ("no truth that the agent could not know", WORDS, (WRONG, printing("36")), said(VERIFIER, r"\boxed{36}"), None),
    ("nor without output", WORDS, (RIGHT, SILENT), said(VERIFIER, "2"), None),
    ("an action that was cut off", WORDS, (), said(SOLVER, "start 38\ndiv 2", cut=True), "start 38\ndiv 2"),
    ("the sums that a story tells", DOUBLED, (), plan(r"\boxed{7}"), SUMS.reply.content),
    ("also where there is no box", DOUBLED, (), said(SOLVER, "38", cut=True), SUMS.reply.content),
    ("nothing where a story tells another truth", replace(DOUBLED, reference="57"), (), plan(r"\boxed{7}"), None),
    ("nothing where it is not shown", replace(DOUBLED, reference=None), (), said(SOLVER, "38", cut=True), None),
    ("nothing for another text", AIME, (), plan(r"\boxed{24}"), None),
    ("prose is not corrected", AIME, (BOXED_SOLUTION,), printing("24"), None),
]


@pytest.mark.parametrize(
    ("task", "earlier", "step", "expected"), [row[1:] for row in CORRECTIONS], ids=[row[0] for row in CORRECTIONS]
)
async def test_corrections(task: Task, earlier: Sequence[Step], step: Step, expected: str | None) -> None:
    correcting, silent = RuleCoach(RuleOptions(correction=True)), RuleCoach(RuleOptions())
    seen = scene_of(task, earlier, step)
    verdict = await correcting.score(seen)
    assert verdict.correction == expected
    assert replace(verdict, correction=None) == await silent.score(seen)
    await correcting.close()
    await silent.close()


OF_STORIES = [
    ("right", SOLD, r"5 + 3 = 8. 8 * 4 = 32. 32 - 6 = 26. \boxed{26}", 10, "The plan comes to 26, which is right."),
    ("swapped operands", SOLD, r"3 + 5 = 8. 4 * 8 = 32. 32 - 6 = 26. \boxed{26}", 10, "which is right."),
    (
        "right steps with a slip",
        SOLD,
        r"5 + 3 = 8. 8 * 4 = 36. 36 - 6 = 30. \boxed{30}",
        6,
        "The sums of the plan come to 26, which is right, but it says 30.",
    ),
    (
        "a wrong last step",
        SOLD,
        r"5 + 3 = 8. 8 * 4 = 32. 32 + 6 = 38. \boxed{38}",
        3.7,
        "The plan comes to 38, not to 26: its step 3 is '+ 6', where the story says '- 6'.",
    ),
    (
        "a wrong number in the middle",
        SOLD,
        r"5 + 3 = 8. 8 * 3 = 24. 24 - 6 = 18. \boxed{18}",
        2.3,
        "its step 2 is '* 3', where the story says '* 4'.",
    ),
    (
        "swapped operands before a wrong step",
        SOLD,
        r"3 + 5 = 8. 4 * 8 = 32. 32 / 6 = 5. \boxed{5}",
        3.7,
        "its step 3 is '/ 6', where the story says '- 6'.",
    ),
    (
        "a wrong step after a slip",
        SOLD,
        r"5 + 3 = 9. 9 * 4 = 36. 36 + 6 = 42. \boxed{42}",
        3.7,
        "The plan comes to 42, not to 26: its step 3 is '+ 6', where the story says '- 6'.",
    ),
    (
        "another order",
        SOLD,
        r"5 * 4 = 20. 20 + 3 = 23. 23 - 6 = 17. \boxed{17}",
        1,
        "its step 1 is '* 4', where the story says '+ 3'.",
    ),
    ("no last step", SOLD, r"5 + 3 = 8. 8 * 4 = 32. \boxed{32}", 3.7, "it leaves out '- 6'."),
    ("only the first step", SOLD, r"5 + 3 = 8. \boxed{8}", 2.3, "it leaves out '* 4' and '- 6'."),
    (
        "no step in the middle",
        SOLD,
        r"5 + 3 = 8. 8 - 6 = 2. \boxed{2}",
        2.3,
        "its step 2 is '- 6', where the story says '* 4'.",
    ),
    (
        "one step more",
        SOLD,
        r"5 + 3 = 8. 8 * 4 = 32. 32 - 6 = 26. 26 + 7 = 33. \boxed{33}",
        5,
        "it goes on with '+ 7', where the story ends.",
    ),
    ("another start", SOLD, r"6 + 3 = 9. 9 * 4 = 36. 36 - 6 = 30. \boxed{30}", 1, "it begins with 6, where the story "),
    ("a subtraction swapped", DOUBLED, r"9 - 38 = 29. 29 * 2 = 59. \boxed{59}", 1, "it begins with 9, where the "),
    (
        "another number in the box",
        SOLD,
        r"5 + 3 = 8. 8 * 4 = 32. 32 - 6 = 26. \boxed{32}",
        5,
        "its steps are those of the story, but its box is not what they come to.",
    ),
    (
        "another number in the box of a wrong plan",
        SOLD,
        r"5 + 3 = 8. 8 + 4 = 12. 12 - 6 = 6. \boxed{9}",
        2.3,
        "The plan comes to 9, not to 26: its step 2 is '+ 4', where the story says '* 4'.",
    ),
    (
        "sums below zero",
        SOLD,
        r"5 + 3 = 8. 8 - 9 = -1. \boxed{-1}",
        2.3,
        "as far as its sums can be read, it leaves out '* 4' and '- 6'.",
    ),
    (
        "sums that do not go on",
        SOLD,
        r"5 + 3 = 8. 6 * 4 = 24. 24 - 6 = 18. \boxed{18}",
        1,
        "The plan comes to 18, not to 26: it is no chain of sums that go on from one another.",
    ),
    ("no sums", SOLD, r"\boxed{24}", 1, "it is no chain of sums that go on from one another."),
    (
        "of two steps",
        DOUBLED,
        r"38 - 9 = 29. 29 + 2 = 31. \boxed{31}",
        3,
        "its step 2 is '+ 2', where the story says '* 2'.",
    ),
    ("in the plan language", SOLD, "start 5\nadd 3\nmul 4", 3.7, "it leaves out '- 6'."),
    ("in the plan language, a start alone", SOLD, "start 5", 1, "it leaves out '+ 3' and '* 4' and '- 6'."),
    ("no box, where none was asked for", SOLD, "5 + 3 = 8.", None, "The plan is prose"),
    (
        "a story with another truth",
        replace(SOLD, reference="27"),
        r"5 + 3 = 8. \boxed{8}",
        3,
        "The plan comes to 8, not to 27.",
    ),
    ("the truth not shown", replace(SOLD, reference=None), r"5 + 3 = 8. \boxed{8}", None, "without the truth"),
    ("sums of another task", AIME, r"5 + 3 = 8. \boxed{8}", 3, "The plan comes to 8, not to 025."),
]


@pytest.mark.parametrize(
    ("task", "reply", "score", "reason"), [row[1:] for row in OF_STORIES], ids=[row[0] for row in OF_STORIES]
)
async def test_a_wrong_plan_is_held_against_its_story(
    coach: RuleCoach, task: Task, reply: str, score: float | None, reason: str
) -> None:
    verdict = await coach.score(scene_of(task, (), plan(reply)))
    assert verdict.score == score
    assert reason in verdict.reasoning
    assert reason[-1] != "." or verdict.reasoning.endswith(reason)


class TestContract(CoachContract):
    scenes = (
        *(scene_of(task, earlier, step) for _, task, earlier, step, _, _ in TABLE),
        *(scene_of(task, (), plan(reply)) for _, task, reply, _, _ in OF_STORIES),
    )

    def coach(self) -> RuleCoach:
        return RuleCoach(RuleOptions())
