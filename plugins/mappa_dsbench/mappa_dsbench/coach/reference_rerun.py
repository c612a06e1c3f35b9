"""Reruns an agent's programs on reference artifacts, where its predecessors' artifacts were broken.

Reference artifacts are made by the plugin's own programs on the bench, once per task. Only reruns ever see them.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mappa_core import Bench, CoachError, Scene, Step, Task, ToolResult
from mappa_core.sandbox import PYTHON, ProgramRun
from mappa_dsbench.coach import reference_programs
from mappa_dsbench.coach.upstream_faults import steps_of_predecessors
from mappa_dsbench.contracts import Facts, inspect_files
from mappa_dsbench.contracts.faults import MISSING, build_fault
from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.table import problem_of_task

MAX_CACHED_TASKS = 256
"""Tasks whose reference artifacts are cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A rerun action: the results of its own programs, and the facts of its files."""

    results: tuple[ToolResult, ...]
    facts: Facts


@dataclass(slots=True)
class _CacheEntry:
    """The cached artifacts of one task. The first caller makes them; concurrent callers wait."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    artifacts: Mapping[str, Path] | None = None


class ReferenceRerunner:
    """Reruns actions on `bench`."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._cache: OrderedDict[str, _CacheEntry] = OrderedDict()

    async def rerun(self, scene: Scene) -> Rerun:
        """Rerun all programs of the agent of `scene.step` so far, in order, from the files at the beginning of its
        turns, with reference artifacts in place of those of its predecessors.

        Raises:
            CoachError: the reference artifacts cannot be made.
            ToolError: the machinery failed.
        """
        agent, task = scene.step.agent, scene.task
        own = [step for step in (*scene.earlier, scene.step) if step.agent == agent]
        good = await self.artifacts(task)
        others = {name: path for name, path in good.items() if name not in scene.role.produces}
        files: Mapping[str, Path] = {**self._bench.files(steps_of_predecessors(scene)), **others}
        results: list[ToolResult] = []
        for step in own:
            results, files = await self._rerun_step(step, files, task)
        missing = [build_fault(MISSING, path) for path in scene.role.produces if path not in files]
        facts = {"faults": missing} if missing else await inspect_files(agent, task, files, self._bench)
        return Rerun(results=tuple(results), facts=facts)

    async def artifacts(self, task: Task) -> Mapping[str, Path]:
        """Return the reference artifacts of a task, by name.

        Raises:
            CoachError: they cannot be made.
            ToolError: the machinery failed.
        """
        entry = self._cache.setdefault(task.id, _CacheEntry())
        self._cache.move_to_end(task.id)
        if len(self._cache) > MAX_CACHED_TASKS:
            self._cache.popitem(last=False)
        async with entry.lock:
            if entry.artifacts is None:
                entry.artifacts = await self._make_artifacts(task)
        return entry.artifacts

    async def _rerun_step(
        self, step: Step, files: Mapping[str, Path], task: Task
    ) -> tuple[list[ToolResult], Mapping[str, Path]]:
        """Rerun the calls of one action; return their results and the files afterwards."""
        results = []
        for call, result in zip(step.calls, step.results, strict=True):
            if call.name == PYTHON and call.error is None:
                ran = await self._run(call.arguments["code"], task, files)
                result, files = ran.result, ran.files
            results.append(result)
        return results, files

    async def _make_artifacts(self, task: Task) -> Mapping[str, Path]:
        """Run the reference programs on a task; return the files that they make."""
        problem = problem_of_task(task)
        parameters = {
            "id_column": problem.id_column,
            "targets": list(problem.targets),
            "prediction": METRICS[problem.metric].prediction,
        }
        files: Mapping[str, Path] = {}
        for name in reference_programs.PROGRAMS_IN_ORDER:
            ran = await self._run(
                reference_programs.read_program(name), task, files, arguments=[json.dumps(parameters)]
            )
            if ran.result.status != "ok":
                why = (ran.result.stderr.strip() or ran.result.status).splitlines()[-1]
                raise CoachError(f"no reference artifacts of task {task.id!r}: {name}.py failed: {why}")
            files = ran.files
        return files

    async def _run(
        self, code: str, task: Task, files: Mapping[str, Path], *, arguments: Sequence[str] = ()
    ) -> ProgramRun:
        inputs = {name: Path(path) for name, path in task.files.items()}
        return await self._bench.run(code, inputs=inputs, files=files, arguments=arguments)
