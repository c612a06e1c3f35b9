"""Tool calls of actions: run in the workspace of their trajectory, and retried when a tool's machinery fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mappa.rollout.team import Job, Team
from mappa_core.codec import check_record
from mappa_core.errors import ToolError
from mappa_core.records import FileChange, Step, ToolCall, ToolResult
from mappa_core.safe_walk import remove_tree
from mappa_core.tools import task_files as task_files
from mappa_core.tools.file_archive import archived_path
from mappa_core.tools.retry import retry
from mappa_core.tools.run_call import run_call
from mappa_core.tools.workspace import FolderWorkspace


class ToolCallRunner:
    """Runs the tool calls of one trajectory, one action at a time.

    The workspace is created beside `folder` at the first call, and created anew, with the files of the actions so far,
    after calls that were aborted: by a fault of the machinery, or by cancellation. So failed calls leave no trace, and
    an action that is only replayed costs no folder. `archive` keeps file contents by hash.
    """

    def __init__(self, team: Team, job: Job, *, folder: Path, archive: Path) -> None:
        self._team = team
        self._job = job
        self._folder = folder
        self._archive = archive
        self._workspace: FolderWorkspace | None = None
        self._is_spoilt = False
        self._workspace_count = 0
        self._changes: dict[str, FileChange] = {}  # The last one of every file.
        self._turn = asyncio.Lock()  # Two actions at once share the workspace.

    @property
    def files(self) -> tuple[str, ...]:
        """Relative paths of the files of the task and of the actions so far, sorted."""
        there = {*self._job.task.files, *self._changes}
        gone = {name for name, change in self._changes.items() if change.kind == "deleted"}
        return tuple(sorted(there - gone))

    def content(self, path: str) -> Path | None:
        """Path to the current content of a file, the task's own path if no action touched it; None if it does not
        exist."""
        change = self._changes.get(path)
        if change is None:
            return task_files.resolve_task_files(self._job.task.files).get(path)
        return None if change.sha256 is None else archived_path(self._archive, change.sha256)

    def add_recorded(self, step: Step) -> None:
        """Apply the file changes of a recorded step without running its calls."""
        self._note(step.results)

    async def run(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Run the calls of one action, in order. When the machinery of a tool fails, all of them are retried in the
        workspace as it was before, up to the smallest `retries` of the tools called; then ToolError is raised. Raises
        TaskError if a file of the task cannot be used."""
        if not calls:
            return ()
        # The smallest, because all calls are made again, also those of the tool that allows the fewest.
        retries = min((self._team.retries[call.name] for call in calls if call.name in self._team.tools), default=0)
        async with self._turn:
            results, attempts = await retry(
                lambda: self._run_calls(calls), retries=retries, wait_s=self._team.retry_after_s, label=self._job.id
            )
        # A tool may have counted attempts of its own in the last of ours.
        return tuple(replace(result, attempts=result.attempts + attempts - 1) for result in results)

    async def close(self) -> None:
        """Remove the workspace; a later call creates a new one."""
        if self._workspace is not None:
            # Before the removal, which may be cancelled half-way.
            self._is_spoilt = True
            await asyncio.to_thread(remove_tree, self._workspace.path)

    async def _run_calls(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        if self._workspace is None or self._is_spoilt:
            # Restoring files takes long enough to delay other trajectories; an empty folder does not.
            if self._changes:
                self._workspace = await asyncio.to_thread(self._make_workspace)
            else:
                self._workspace = self._make_workspace()
        # Until all calls are through: an exception or a cancellation among them leaves it so.
        self._is_spoilt = True
        results = []
        for call in calls:
            result = await run_call(call, self._team.tools, self._workspace, self._team.limits)
            results.append(check_record(ToolResult, result, f"the tool {call.name!r}", ToolError))
        self._is_spoilt = False
        self._note(results)
        return results

    def _make_workspace(self) -> FolderWorkspace:
        """Create a workspace with the files of the actions so far. A spoilt workspace's folder is never reused: a tool
        that failed may have left its program running."""
        if self._workspace is not None:
            remove_tree(self._workspace.path)
        path = self._folder.with_name(f"{self._folder.name}-{self._workspace_count}")
        self._workspace_count += 1
        workspace = FolderWorkspace(path, self._archive, task_files.resolve_task_files(self._job.task.files))
        # Deletions go first: a file may replace a folder.
        workspace.restore(sorted(self._changes.values(), key=lambda change: change.kind != "deleted"))
        return workspace

    def _note(self, results: Sequence[ToolResult]) -> None:
        for result in results:
            for change in result.files:
                self._changes[change.path] = change
