"""Scratch programs: workflows and coaches inspect the files of agents by programs in separate sandboxed folders."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa_core.errors import ConfigError, ToolError
from mappa_core.protocols import ProgramRun, Sandboxed, Tool
from mappa_core.records import FileChange, Step, ToolLimits
from mappa_core.safe_files import UnsafeFileError
from mappa_core.tools.file_archive import archived_path, open_content, place_content
from mappa_core.tools.owned_folder import OwnedFolder
from mappa_core.tools.parse_calls import PYTHON
from mappa_core.tools.retry import RETRY_AFTER_S, retry
from mappa_core.tools.task_files import resolve_task_files
from mappa_core.tools.workspace import FolderWorkspace


@dataclass(frozen=True, slots=True, eq=False)
class ScratchRunner:
    """Implements protocols.Bench with the tool `python` of a run, as for agents, in folders that no agent sees. Files
    that programs leave are stored in `archive` by content. `tools`, `limits` and `retries` are by tool name; `wait_s`
    is the wait before the first retry."""

    tools: Mapping[str, Tool]
    limits: Mapping[str, ToolLimits]
    retries: Mapping[str, int]
    archive: Path
    wait_s: float = RETRY_AFTER_S

    def files(self, steps: Sequence[Step]) -> Mapping[str, Path]:
        return self._contents([change for step in steps for result in step.results for change in result.files])

    def _contents(self, changes: Sequence[FileChange]) -> Mapping[str, Path]:
        """Archived contents of the files that exist after `changes`, by name."""
        contents: dict[str, Path] = {}
        for change in changes:
            contents.pop(change.path, None)
            if change.sha256 is not None:
                contents[change.path] = archived_path(self.archive, change.sha256)
        return contents

    async def run(
        self,
        code: str,
        *,
        inputs: Mapping[str, Path],
        files: Mapping[str, Path] | None = None,
        arguments: Sequence[str] = (),
    ) -> ProgramRun:
        tool, copies = self.tools.get(PYTHON), files or {}
        if not isinstance(tool, Sandboxed):
            raise ConfigError(
                "files are looked into by programs, and tools.python is not set, or no tool that runs programs: set "
                "tools.python.use to one of a sandbox"
            )

        async def once() -> ProgramRun:
            folder = await asyncio.to_thread(OwnedFolder, "mappa-bench-")
            try:
                workspace = await asyncio.to_thread(self._workspace, folder.path / "work", inputs, copies)
                result = await tool.run(code, arguments, workspace, self.limits[PYTHON])
            finally:
                await asyncio.to_thread(folder.close)
            changed = {change.path for change in result.files}
            untouched = {name: path for name, path in copies.items() if name not in changed}
            return ProgramRun(result=result, files={**untouched, **self._contents(result.files)})

        ran, _ = await retry(once, retries=self.retries[PYTHON], wait_s=self.wait_s, label="bench")
        return ran

    def _workspace(self, path: Path, inputs: Mapping[str, Path], files: Mapping[str, Path]) -> FolderWorkspace:
        linked = {name: file for name, file in inputs.items() if name not in files}
        workspace = FolderWorkspace(path, self.archive, resolve_task_files(linked))
        for name, source in files.items():
            try:
                self._place(path, name, source)
            except OSError as error:
                why = error.strerror if isinstance(error, UnsafeFileError) else error
                raise ToolError(f"cannot lay out the file {name!r} on the bench: {why}") from error
        workspace.changes()  # What is there now is not what the program does.
        return workspace

    def _place(self, folder: Path, name: str, source: Path) -> None:
        """Copy a file into a workspace: a content of the archive, or a file that a workflow has at hand."""
        archived = source.parent.parent == self.archive
        with open_content(self.archive, source.name) if archived else source.open("rb") as content:
            _, sha256 = place_content(folder, name, content)
        if archived and sha256 != source.name:
            raise ToolError(
                f"cannot lay out the file {name!r} on the bench: {source} is damaged (its hash is {sha256})"
            )
