"""The tool `python`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mappa_core.errors import ConfigError
from mappa_core.protocols import Workspace
from mappa_core.records import Sandbox, ToolLimits, ToolResult
from mappa_core.tools.cage.order import Setup
from mappa_core.tools.python.driver import WardenProcess
from mappa_core.tools.python.exchange import PYTHON_SPEC, program_order, program_result
from mappa_core.tools.python.options import PythonOptions
from mappa_core.tools.python.tiers import Chosen, choose, inside, start


class PythonTool:
    """Implements protocols.Tool and protocols.Sandboxed: runs each program in a fresh process, in a cage around the
    workspace's folder.

    A program is run as a plain interpreter runs a script: same exit code, same stdout and stderr, an empty stdin, the
    interpreter's own packages, `import` from the workspace. It gets nothing of this process's environment and reaches
    nothing but its workspace; when it ends, or is stopped at a limit of the call, every process that it left is killed.

    A program that kills or stops its supervisor, which it can only where there is no cage, is an `error` without exit
    code: it is the program's own doing. A warden that dies is a ToolError for the programs under way, and is started
    again for the next one.
    """

    spec = PYTHON_SPEC

    def __init__(self, options: PythonOptions) -> None:
        workers = max(2, os.cpu_count() or 2) if options.workers is None else options.workers
        if workers < 1:
            raise ConfigError(f"workers of the tool python must be at least 1, not {workers}")
        self._options = options
        self._slots = asyncio.Semaphore(workers)
        self._warden: WardenProcess | None = None
        self._choice: Chosen | None = None
        self._starting = asyncio.Lock()

    async def open(self) -> Sandbox:
        """Find the first cage that works by running a program in it, and say which it is. A first call does so too.

        Raises:
            ConfigError: none works and `allow_unsafe` is off; a preloaded module or a hidden path does not exist.
        """
        async with self._starting:
            return (await self._chosen()).sandbox

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run `arguments["code"]`. Waits for its turn where all workers are busy; that time does not count.

        Raises:
            ToolError: the program could not be run, or was lost with the warden.
        """
        return await self.run(arguments["code"], (), workspace, limits)

    async def run(self, code: str, arguments: Sequence[str], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run a program with arguments on its command line; as `call` otherwise."""
        order = program_order(
            code,
            limits,
            folder=str(workspace.path.resolve()),
            arguments=arguments,
            inputs=[str(path.resolve()) for path in workspace.inputs.values()],
        )
        async with self._slots:
            warden, setup = await self._running()
            reply = await warden.run(order)
        files = await asyncio.to_thread(workspace.changes)
        return program_result(
            reply,
            limits,
            folder=inside(setup.tier, order.folder),
            files=files,
            left_behind=workspace.left_behind(),
            sandbox=setup.tier,
        )

    async def _chosen(self) -> Chosen:
        if self._choice is None:
            self._choice = await choose(self._options)
            self._warden = self._choice.warden
        return self._choice

    async def _running(self) -> tuple[WardenProcess, Setup]:
        async with self._starting:
            setup = (await self._chosen()).setup
            if self._warden is None or not self._warden.alive:
                if self._warden is not None:
                    await asyncio.to_thread(self._warden.close)
                self._warden = await start(setup)
            return self._warden, setup

    async def close(self) -> None:
        """End the warden and every program under way."""
        if self._warden is not None:
            warden, self._warden = self._warden, None
            await asyncio.to_thread(warden.close)
