"""The calls of actions, made in the workspace of their trajectory, and made again where a tool's machinery failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mappa_core.records import FileChange, Step, ToolCall, ToolResult
from mappa_core.rollout.team import Job, Team
from mappa_core.tools import inputs as task_files
from mappa_core.tools.cage.walk import remove
from mappa_core.tools.patience import patiently
from mappa_core.tools.run import run_call
from mappa_core.tools.workspace import FolderWorkspace, kept


class Answering:
    """Answers the calls of one trajectory, those of one action at a time.

    The workspace is a folder that is made at the first call, and made anew, with the files of the actions so far, where
    calls were broken off: by a fault of the machinery, or because nobody waits for them any more. So calls that failed
    leave no trace, and an action that is only replayed costs no folder.

    Args:
        folder: where the workspace lies; a second one lies beside it.
        archive: folder that keeps the contents of files.
    """

    def __init__(self, team: Team, job: Job, *, folder: Path, archive: Path) -> None:
        self._team = team
        self._job = job
        self._folder = folder
        self._archive = archive
        self._workspace: FolderWorkspace | None = None
        self._spoilt = False
        self._made = 0
        self._changes: dict[str, FileChange] = {}
        self._turn = asyncio.Lock()

    @property
    def files(self) -> tuple[str, ...]:
        """Relative paths of the files that the task and the actions so far left, sorted."""
        there = {*self._job.task.files, *self._changes}
        gone = {name for name, change in self._changes.items() if change.kind == "deleted"}
        return tuple(sorted(there - gone))

    def content(self, path: str) -> Path | None:
        """Where what a file holds is kept, as the actions so far left it; None where it is not there. A file of the
        task that no action touched is where the task has it."""
        change = self._changes.get(path)
        if change is None:
            return task_files.checked(self._job.task.files).get(path)
        return None if change.sha256 is None else kept(self._archive, change.sha256)

    def recall(self, step: Step) -> None:
        """`step` is done already: what it did to the files holds."""
        self._note(step.results)

    async def answer(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Make the calls of one action, in order. Where the machinery of a tool fails, all of them are made again in
        the workspace as it was before, as often as the least patient of the tools called allows.

        Raises:
            ToolError: the machinery failed every time.
            TaskError: a file of the task cannot be used.
        """
        if not calls:
            return ()
        retries = min((self._team.retries[one.name] for one in calls if one.name in self._team.tools), default=0)
        async with self._turn:
            results, attempts = await patiently(
                lambda: self._once(calls), retries=retries, wait_s=self._team.retry_after_s, whose=self._job.id
            )
        return tuple(replace(result, attempts=result.attempts + attempts - 1) for result in results)

    async def close(self) -> None:
        """Remove the workspace; a call after this has another."""
        if self._workspace is not None:
            self._spoilt = True
            await asyncio.to_thread(remove, self._workspace.path)

    async def _once(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        if self._workspace is None or self._spoilt:
            self._workspace = await asyncio.to_thread(self._make) if self._changes else self._make()
        self._spoilt = True
        results = [await run_call(call, self._team.tools, self._workspace, self._team.limits) for call in calls]
        self._spoilt = False
        self._note(results)
        return results

    def _make(self) -> FolderWorkspace:
        """A workspace with the files of the actions so far. Never in the folder of one that was spoilt: a tool that
        failed may not have ended its program."""
        if self._workspace is not None:
            remove(self._workspace.path)
        path = self._folder.with_name(f"{self._folder.name}-{self._made}")
        self._made += 1
        workspace = FolderWorkspace(path, self._archive, task_files.checked(self._job.task.files))
        # What was deleted goes first: a file may stand where a folder was.
        workspace.restore(sorted(self._changes.values(), key=lambda change: change.kind != "deleted"))
        return workspace

    def _note(self, results: Sequence[ToolResult]) -> None:
        for result in results:
            for change in result.files:
                self._changes[change.path] = change
