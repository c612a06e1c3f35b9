"""What a coach of MathChat is to judge: scenes with a plan, code, a traceback, printed numbers and earlier actions."""

from __future__ import annotations

import io
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from mappa.rollout.scenes import live_scenes
from mappa.testing import play
from mappa_core.protocols import Workspace
from mappa_core.records import Scene, Task, ToolLimits, ToolResult, ToolSpec
from mappa_mathchat.workflow import MathChat, MathChatOptions

TEAMS, ACTIONS = 128, 4
VERDICTS = TEAMS * ACTIONS

PROBLEM = """\
A school in district {n} packs pencils into boxes of 24. In autumn it has {boxes} full boxes and 17 loose pencils. \
It gives 65 pencils to the classes next door, which return a third of what they were given, rounded down, at the end \
of the year. In spring a sponsor adds one box for every eight pencils that are left in the cupboard after the tables \
were served. The {boxes} tables of the school are served alike, as many pencils each as there can be, and what is left \
stays in the cupboard. How many pencils does each table get in spring, and how many stay in the cupboard? Give the \
sum of both numbers."""
PLAN = """\
Let me name the quantities first and then say what has to be computed, step by step.

1. The school starts with b = {boxes} full boxes of 24 and 17 loose pencils, so with P0 = 24 b + 17 pencils.
2. It gives away 65, and floor(65 / 3) of these come back at the end of the year, so P1 = P0 - 65 + floor(65 / 3).
3. In autumn each of the b tables gets floor(P1 / b), and the remainder r1 = P1 mod b stays in the cupboard.
4. The sponsor adds one box for every eight pencils in the cupboard: floor(r1 / 8) boxes of 24. The tables are served \
anew from all pencils of the school, so P2 = P1 + 24 floor(r1 / 8).
5. In spring each table gets q = floor(P2 / b) and r2 = P2 mod b pencils stay. The answer is q + r2.

A point where one can go wrong: \\(\\lfloor 65/3 \\rfloor = 21\\), not 22, and the remainder has to be taken anew \
after the sponsor's boxes came in.
"""
WRONG = """\
I put the plan into a program that prints every quantity on the way.

```python
from dataclasses import dataclass


@dataclass
class School:
    boxes: int
    pencils: int

    def serve(self):
        return divmod(self.pencils, self.boxes)


school = School(boxes={boxes}, pencils=24 * {boxes} + 17)
school.pencils += -65 + 65 // 3
print("after the year:", school.pencils)
each, left = school.serve()
print("autumn:", each, "a table,", left, "in the cupboard")
school.pencils += 24 * (left // 8)
each, left = school.serves()
print("spring:", each, left, each + left)
```
"""
RIGHT = """\
The method is called `serve`. I also print a table around the number of boxes in question, as a check of the plan.

```python
def served(boxes):
    pencils = 24 * boxes + 17 - 65 + 65 // 3
    _, left = divmod(pencils, boxes)
    pencils += 24 * (left // 8)
    return pencils, *divmod(pencils, boxes)


for boxes in range({boxes} - 8, {boxes} + 9):
    pencils, each, left = served(boxes)
    print(f"boxes={{boxes:4d}} pencils={{pencils:6d}} each={{each:4d}} left={{left:4d}} sum={{each + left:5d}}")
```
"""
ANSWER = """\
The plan is right in every step, and the program follows it: the school keeps {pencils} pencils after the sponsor \
came, of which each of the {boxes} tables gets {each}, and {left} stay in the cupboard. I went through the row of the \
table by hand: 24 * {boxes} + 17 - 65 + 21 pencils before the sponsor, and the remainder by {boxes} decides on the \
boxes that are added. The first program failed by a misspelled name before it printed the result, and the second one \
does not share its code with it, so that the two agree on the autumn by computation and not by copy.

\\boxed{{{answer}}}"""


class HerePython:
    """The tool `python`, run in this process: what it is given are the programs above."""

    spec = ToolSpec(name="python", description="Runs a program.", schema={"type": "object"})

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        printed = io.StringIO()
        with redirect_stdout(printed):
            try:
                exec(compile(arguments["code"], "block_1.py", "exec"), {"__name__": "__main__"})
            except AttributeError:
                error = traceback.format_exc()
                return ToolResult(tool="python", status="error", exit_code=1, stdout=printed.getvalue(), stderr=error)
        return ToolResult(tool="python", status="ok", exit_code=0, stdout=printed.getvalue())

    async def close(self) -> None:
        pass


async def of_mathchat() -> list[Scene]:
    """Every action of `TEAMS` teams, each on a problem of its own, as its coach sees it live."""
    workflow = MathChat(MathChatOptions())
    found: list[Scene] = []
    for number in range(TEAMS):
        known = {"n": number, **_solved(number + 20)}
        task = Task(id=f"{number}", prompt=PROBLEM.format(**known), reference=str(known["answer"]))
        replies = [text.format(**known) for text in (PLAN, WRONG, RIGHT, ANSWER)]
        trajectory = await play(workflow, task, replies, tools={"python": HerePython()})
        assert trajectory.error is None and len(trajectory.steps) == ACTIONS, trajectory.error
        found += live_scenes(trajectory, workflow.agents, reference_for=())
    await workflow.close()
    return found


def _solved(boxes: int) -> Mapping[str, int]:
    pencils = 24 * boxes + 17 - 65 + 65 // 3
    pencils += 24 * (pencils % boxes // 8)
    each, left = divmod(pencils, boxes)
    return {"boxes": boxes, "pencils": pencils, "each": each, "left": left, "answer": each + left}
