"""A team that says whether a number is even: `e` or `o`."""

from __future__ import annotations

from collections.abc import Sequence

from mappa_core import Coach, Message, Role, Scene, Stage, Task, Verdict, Workflow


class ParityTasks:
    """The numbers from 0 to 9, in both splits: a table knows only what it has seen."""

    def load(self, split: str) -> Sequence[Task]:
        return [Task(id=f"{split}{n}", prompt=str(n), reference="eo"[n % 2], stratum="eo"[n % 2]) for n in range(10)]


class Parity(Workflow):
    """A guesser answers, and a checker has the last word."""

    def __init__(self) -> None:
        self.agents = {"guesser": Role(brief="Says e or o."), "checker": Role(brief="Says e or o.")}

    async def run(self, stage: Stage) -> None:
        guess = await stage.act("guesser", [Message(role="user", content=stage.task.prompt)])
        shown = f"{stage.task.prompt} {guess.reply.content}"
        checked = await stage.act("checker", [Message(role="user", content=shown)])
        stage.record(correct=await stage.grade(checked.reply.content))

    async def grade(self, text: str, task: Task) -> float:
        return float(text == task.reference)


class RightLetter(Coach):
    """Ten points for the right letter, and none for another."""

    async def score(self, scene: Scene) -> Verdict:
        right = "eo"[int(scene.task.prompt) % 2]
        return Verdict.scored(10.0 if scene.step.reply.content == right else 0.0, f"it is {right}")
