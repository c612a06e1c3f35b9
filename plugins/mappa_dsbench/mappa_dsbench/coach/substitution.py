"""What an action would have come to on good artifacts: an agent's own programs, run once more where those of its
predecessors were broken, with reference artifacts in their place.

Reference artifacts are made by the plugin's own programs on the bench, once for each task. Only the coach's programs
ever see them.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mappa_core import PYTHON, Bench, CoachError, Ran, Scene, Step, Task, ToolResult
from mappa_dsbench.coach import reference_programs
from mappa_dsbench.coach.hindrance import before
from mappa_dsbench.contracts import Facts, look_into
from mappa_dsbench.contracts.faults import MISSING, fault
from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.table import problem_in

REMEMBERED = 256
"""Tasks whose reference artifacts are kept at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """An action that was tried once more: the results of its own programs, and what was found in the files then."""

    results: tuple[ToolResult, ...]
    facts: Facts


@dataclass(slots=True)
class _Place:
    """Where the artifacts of one task are kept. Whoever asks first makes them, and whoever comes meanwhile waits."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    artifacts: Mapping[str, Path] | None = None


class Substitution:
    """Tries actions once more on `bench`."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._known: OrderedDict[str, _Place] = OrderedDict()

    async def again(self, scene: Scene) -> Again:
        """Run all programs of the agent of `scene.step` so far, in order, from the files that it found when it began,
        with reference artifacts in place of those of its predecessors.

        Raises:
            CoachError: the reference artifacts cannot be made.
            ToolError: the machinery failed.
        """
        agent, task = scene.step.agent, scene.task
        own = [step for step in (*scene.earlier, scene.step) if step.agent == agent]
        good = await self.artifacts(task)
        others = {name: path for name, path in good.items() if name not in scene.role.produces}
        files: Mapping[str, Path] = {**self._bench.files(before(scene)), **others}
        results: list[ToolResult] = []
        for step in own:
            results, files = await self._played(step, files, task)
        missing = [fault(MISSING, path) for path in scene.role.produces if path not in files]
        facts = {"faults": missing} if missing else await look_into(agent, task, files, self._bench)
        return Again(results=tuple(results), facts=facts)

    async def artifacts(self, task: Task) -> Mapping[str, Path]:
        """The reference artifacts of a task, by name.

        Raises:
            CoachError: they cannot be made.
            ToolError: the machinery failed.
        """
        place = self._known.setdefault(task.id, _Place())
        self._known.move_to_end(task.id)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        async with place.lock:
            if place.artifacts is None:
                place.artifacts = await self._made(task)
        return place.artifacts

    async def _played(
        self, step: Step, files: Mapping[str, Path], task: Task
    ) -> tuple[list[ToolResult], Mapping[str, Path]]:
        """The results of the calls of one action, and the files after them."""
        results = []
        for call, result in zip(step.calls, step.results, strict=True):
            if call.name == PYTHON and call.error is None:
                ran = await self._run(call.arguments["code"], task, files)
                result, files = ran.result, ran.files
            results.append(result)
        return results, files

    async def _made(self, task: Task) -> Mapping[str, Path]:
        """What the reference programs make of a task."""
        problem = problem_in(task)
        order = {
            "id_column": problem.id_column,
            "targets": list(problem.targets),
            "prediction": METRICS[problem.metric].prediction,
        }
        files: Mapping[str, Path] = {}
        for name in reference_programs.IN_ORDER:
            ran = await self._run(reference_programs.code_of(name), task, files, arguments=[json.dumps(order)])
            if ran.result.status != "ok":
                why = (ran.result.stderr.strip() or ran.result.status).splitlines()[-1]
                raise CoachError(f"no reference artifacts of task {task.id!r}: {name}.py failed: {why}")
            files = ran.files
        return files

    async def _run(self, code: str, task: Task, files: Mapping[str, Path], *, arguments: Sequence[str] = ()) -> Ran:
        inputs = {name: Path(path) for name, path in task.files.items()}
        return await self._bench.run(code, inputs=inputs, files=files, arguments=arguments)
