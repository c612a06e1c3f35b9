"""DSBench: a Data Engineer makes features, a Modeler fits a model, an Analyst submits its predictions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from mappa_core import Bench, Inspection, Message, Role, Scene, Stage, Step, Task, TaskError, Workflow
from mappa_core.sandbox import PYTHON
from mappa_core.workflow import Contribution
from mappa_dsbench.contracts import inspect_action
from mappa_dsbench.grading.grade import grade_submission
from mappa_dsbench.grading.truth import load_truth
from mappa_dsbench.options import TeamOptions
from mappa_dsbench.outcome import build_outcome
from mappa_dsbench.prompts import TeamPrompts
from mappa_dsbench.roles import ROLES, SUBMISSION
from mappa_dsbench.table import table_of_task
from mappa_dsbench.truth_for_coach import describe_truth

DONE_LINE = "DONE"
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


class DSBench(Workflow):
    """Data Engineer -> Modeler -> Analyst. Each has several turns with Python in the shared workspace, and stops when
    its contract is met and it says that it is done."""

    agents: Mapping[str, Role] = ROLES
    metric: ClassVar[str] = "success"
    figures: ClassVar[tuple[str, ...]] = ("fair_dummy", "fair_paper", "parsed")

    def __init__(self, options: TeamOptions) -> None:
        self._options = options
        self.templates = TeamPrompts(
            options.prompts, token_limit=options.token_limit, output_chars=options.output_chars
        )
        self.prompts = self.templates.texts

    def with_prompts(self, prompts: Mapping[str, str]) -> Self:
        """Return a workflow with other templates of some agents. Raises ConfigError if one does not parse."""
        changed = super().with_prompts(prompts)
        changed.templates = self.templates.with_texts(prompts)
        return changed

    @property
    def max_turns(self) -> Mapping[str, int]:
        """The same number of turns for every agent."""
        return dict.fromkeys(self.agents, self._options.turns)

    async def run(self, stage: Stage) -> None:
        earlier: list[Contribution] = []
        for agent in self.agents:
            earlier.append(await self._run_agent(stage, agent, earlier))
        stage.record(**await stage.grade_file(SUBMISSION))

    async def _run_agent(self, stage: Stage, agent: str, earlier: Sequence[Contribution]) -> Contribution:
        """Run all turns of one agent; return the contribution of the last one."""
        seen = earlier if self._options.context == "full" else earlier[-1:]
        opening = self.templates.render_prompt(agent, stage.task, stage.files, seen)
        messages = [Message(role="user", content=opening)]
        for turns_left in reversed(range(self._options.turns)):
            step = await stage.act(agent, messages, tools=(PYTHON,), turns_left=turns_left)
            if step.inspection is not None and step.inspection.over:
                break
            results = self.templates.render_results(step.calls, step.results, unmet_outputs(step), stage.files)
            messages += [step.reply, Message(role="user", content=results)]
        results = self.templates.render_results(step.calls, step.results, (), ()) if step.calls else ""
        return Contribution(agent=agent, text=step.reply.content, results=results)

    async def inspect(self, scene: Scene, bench: Bench, *, last: bool) -> Inspection:
        """Inspect the agent's files, in full once it says that it is done or its turns end."""
        return await inspect_action(scene, bench, last=last, done=says_done(scene.step))

    async def grade_file(self, file: Path | None, task: Task) -> Mapping[str, float]:
        """Grade a submission; return its figures (see `build_outcome`).

        Raises:
            ToolError: the answers are not there or do not fit the task, or the machine cannot read the submission.
        """
        table = table_of_task(task)
        truth = await asyncio.to_thread(load_truth, answers_path(task), table.problem)
        return build_outcome(await asyncio.to_thread(grade_submission, truth, table.anchors, file), table)

    async def reveal(self, scene: Scene, bench: Bench) -> str:
        """Describe the quality of the model or the submission in figures; never the answers, nor their path."""
        files = bench.files((*scene.earlier, scene.step))
        truth = await asyncio.to_thread(load_truth, answers_path(scene.task), table_of_task(scene.task).problem)
        return await asyncio.to_thread(describe_truth, scene, truth, files.get(SUBMISSION))


def answers_path(task: Task) -> Path:
    """Return the path of a task's answers. TaskError: it has none."""
    if task.reference is None:
        raise TaskError(f"task {task.id!r} has no answers to grade against")
    return Path(task.reference)


def unmet_outputs(step: Step) -> tuple[str, ...]:
    """Return the unmet parts of an agent's contract, as far as inspected, in two words each."""
    faults = () if step.inspection is None else step.inspection.facts["faults"]
    return tuple(f"{one['path']} {one['code']}" for one in faults if one["hard"])


def says_done(step: Step) -> bool:
    """Whether an action ends its agent's turns: by the line DONE outside of all code, or by making no call."""
    return not step.calls or any(line.strip() == DONE_LINE for line in _lines_outside_fences(step.reply.content))


def _lines_outside_fences(text: str) -> list[str]:
    """Return the lines of a reply outside of code fences."""
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
