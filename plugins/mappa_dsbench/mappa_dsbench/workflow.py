"""DSBench: a Data Engineer makes features, a Modeler a model of them, an Analyst a submission of its predictions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from mappa_core import (
    PYTHON,
    SMALLEST_LIMIT,
    Bench,
    ConfigError,
    Inspection,
    Message,
    Role,
    Scene,
    Stage,
    Step,
    Task,
    TaskError,
    Workflow,
)
from mappa_dsbench.briefing import Briefing, Contribution
from mappa_dsbench.contracts import inspect
from mappa_dsbench.grading.grade import grade
from mappa_dsbench.grading.truth import truth_at
from mappa_dsbench.options import TeamOptions
from mappa_dsbench.outcome import outcome_of
from mappa_dsbench.revealing import revealed
from mappa_dsbench.roles import ROLES, SUBMISSION
from mappa_dsbench.table import table_in

DONE = "DONE"
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


class DSBench(Workflow):
    """Data Engineer -> Modeler -> Analyst. Each has several turns with Python in the one workspace, and stops when its
    files are in order and it says so."""

    agents: Mapping[str, Role] = ROLES
    metric: ClassVar[str] = "success"
    figures: ClassVar[tuple[str, ...]] = ("fair_dummy", "fair_paper")

    def __init__(self, options: TeamOptions) -> None:
        if options.turns < 1:
            raise ConfigError(f"workflow.options.turns is at least 1, not {options.turns}")
        if options.context not in ("full", "partial"):
            raise ConfigError(f"workflow.options.context is full or partial, not {options.context!r}")
        if options.output_chars < SMALLEST_LIMIT:
            raise ConfigError(f"workflow.options.output_chars is at least {SMALLEST_LIMIT}, not {options.output_chars}")
        self._options = options
        self.briefing = Briefing(options.prompts, token_limit=options.token_limit, output_chars=options.output_chars)

    @property
    def most_turns(self) -> Mapping[str, int]:
        """The same number for everyone."""
        return dict.fromkeys(self.agents, self._options.turns)

    async def run(self, stage: Stage) -> None:
        earlier: list[Contribution] = []
        for agent in self.agents:
            earlier.append(await self._play(stage, agent, earlier))
        stage.record(**await stage.grade_file(SUBMISSION))

    async def _play(self, stage: Stage, agent: str, earlier: Sequence[Contribution]) -> Contribution:
        """All turns of one agent; gives the last of them."""
        seen = earlier if self._options.context == "full" else earlier[-1:]
        opening = self.briefing.opening(agent, stage.task, stage.files, seen)
        messages = [Message(role="user", content=opening)]
        for turns_left in reversed(range(self._options.turns)):
            step = await stage.act(agent, messages, tools=(PYTHON,), turns_left=turns_left)
            if step.inspection is not None and step.inspection.over:
                break
            told = self.briefing.results(step.calls, step.results, unmet(step), stage.files)
            messages += [step.reply, Message(role="user", content=told)]
        results = self.briefing.results(step.calls, step.results, (), ()) if step.calls else ""
        return Contribution(agent=agent, text=step.reply.content, results=results)

    async def inspect(self, scene: Scene, bench: Bench, *, last: bool) -> Inspection:
        """What is in the files that the agent leaves, looked into when it says that it is done, or has to be."""
        return await inspect(scene, bench, last=last, done=says_done(scene.step))

    async def grade_file(self, file: Path | None, task: Task) -> Mapping[str, float]:
        """The figures of a submission (see `outcome_of`).

        Raises:
            ToolError: the answers are not there or do not fit the task, or the machine cannot read the submission.
        """
        table = table_in(task)
        truth = await asyncio.to_thread(truth_at, answers_of(task), table.problem)
        return outcome_of(await asyncio.to_thread(grade, truth, table.anchors, file), table)

    async def reveal(self, scene: Scene, bench: Bench) -> str:
        """What the answers say of the model or the submission, in figures; never the answers, nor where they are."""
        files = bench.files((*scene.earlier, scene.step))
        truth = await asyncio.to_thread(truth_at, answers_of(scene.task), table_in(scene.task).problem)
        return await asyncio.to_thread(revealed, scene, truth, files.get(SUBMISSION))


def answers_of(task: Task) -> Path:
    """Where the answers of a task are. TaskError: it has none."""
    if task.reference is None:
        raise TaskError(f"task {task.id!r} has no answers to grade against")
    return Path(task.reference)


def unmet(step: Step) -> tuple[str, ...]:
    """What of its contract an agent has not met, as far as that was looked at, in two words each."""
    faults = () if step.inspection is None else step.inspection.facts["faults"]
    return tuple(f"{one['path']} {one['code']}" for one in faults if one["hard"])


def says_done(step: Step) -> bool:
    """Whether an action says that it is its agent's last: by a line of its own outside of all code, or by making no
    call."""
    return not step.calls or any(line.strip() == DONE for line in _prose(step.reply.content))


def _prose(text: str) -> list[str]:
    """The lines of a reply that stand in no fence."""
    lines, fence = [], ""
    for line in text.splitlines():
        mark = _FENCE.fullmatch(line)
        if not fence and mark:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not mark[2].strip():
            fence = ""
        elif not fence:
            lines.append(line)
    return lines
