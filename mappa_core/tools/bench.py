"""Where workflows look into what agents left, and coaches try it out."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mappa_core.errors import ConfigError, ToolError
from mappa_core.protocols import Ran, Sandboxed, Tool
from mappa_core.records import FileChange, Step, ToolLimits
from mappa_core.tools.cage.walk import remove
from mappa_core.tools.calls import PYTHON
from mappa_core.tools.inputs import checked
from mappa_core.tools.patience import patiently
from mappa_core.tools.workspace import FolderWorkspace, kept


class ToolBench:
    """Implements protocols.Bench with the tool `python` of a run: the same cage, limits and preloaded modules as for
    agents, in folders that no agent sees. What programs leave is kept in `archive`, by content, as all files of a run
    are.

    Args:
        tools, limits, retries: those of the run, by the name of the tool.
        wait_s: seconds before the first retry.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        limits: Mapping[str, ToolLimits],
        retries: Mapping[str, int],
        *,
        wait_s: float,
        archive: Path,
    ) -> None:
        self._tool = tools.get(PYTHON)
        self._limits = limits
        self._retries = retries
        self._wait_s = wait_s
        self._archive = archive

    def files(self, steps: Sequence[Step]) -> Mapping[str, Path]:
        return self._contents([change for step in steps for result in step.results for change in result.files])

    def _contents(self, changes: Sequence[FileChange]) -> Mapping[str, Path]:
        """Where the contents lie of the files that are there after `changes`, by name."""
        there: dict[str, Path] = {}
        for change in changes:
            there.pop(change.path, None)
            if change.sha256 is not None:
                there[change.path] = kept(self._archive, change.sha256)
        return there

    async def run(
        self,
        code: str,
        *,
        inputs: Mapping[str, Path],
        files: Mapping[str, Path] | None = None,
        arguments: Sequence[str] = (),
    ) -> Ran:
        tool, copies = self._tool, files or {}
        if not isinstance(tool, Sandboxed):
            raise ConfigError("files are looked into by programs, and tools.python is no tool that runs them: set it")

        async def once() -> Ran:
            folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="mappa-bench-"))
            try:
                workspace = await asyncio.to_thread(self._workspace, folder / "work", inputs, copies)
                result = await tool.run(code, arguments, workspace, self._limits[PYTHON])
            finally:
                await asyncio.to_thread(remove, folder)
            changed = {change.path for change in result.files}
            untouched = {name: path for name, path in copies.items() if name not in changed}
            return Ran(result=result, files={**untouched, **self._contents(result.files)})

        ran, _ = await patiently(once, retries=self._retries[PYTHON], wait_s=self._wait_s, whose="bench")
        return ran

    def _workspace(self, path: Path, inputs: Mapping[str, Path], files: Mapping[str, Path]) -> FolderWorkspace:
        linked = {name: file for name, file in inputs.items() if name not in files}
        workspace = FolderWorkspace(path, self._archive, checked(linked))
        try:
            for name, source in files.items():
                target = path / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        except OSError as error:
            raise ToolError(f"cannot lay out files on the bench: {error}") from error
        workspace.changes()
        return workspace
