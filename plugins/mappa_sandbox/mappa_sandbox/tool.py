"""The tool `python`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mappa_core import ConfigError, ToolLimits, ToolResult, Workspace
from mappa_core.sandbox import Sandbox
from mappa_sandbox.choose_sandbox import OpenedSandbox, choose_sandbox, folder_inside, start_fork_server
from mappa_sandbox.fork_server_process import ForkServerProcess
from mappa_sandbox.isolation.job import SandboxConfig
from mappa_sandbox.messages import PYTHON_SPEC, program_job, program_result
from mappa_sandbox.options import PythonOptions


class PythonTool:
    """Implements protocols.Tool and protocols.Sandboxed: runs each program in a fresh process, sandboxed to the folder
    of its workspace.

    A program is run as a plain interpreter runs a script: same exit code, same stdout and stderr, an empty stdin, the
    interpreter's own packages, `import` from the workspace. It gets nothing of this process's environment and reaches
    nothing but its workspace; when it ends, or is stopped at a limit of the call, every process that it left is killed.

    A program that kills or stops its supervisor, which is possible only without a sandbox, is an `error` without exit
    code: the program caused it. If the fork server dies, running programs raise ToolError, and the next program starts
    a new one.
    """

    spec = PYTHON_SPEC

    def __init__(self, options: PythonOptions) -> None:
        workers = max(2, os.cpu_count() or 2) if options.workers is None else options.workers
        if workers < 1:
            raise ConfigError(f"workers of the tool python must be at least 1, not {workers}")
        self._options = options
        self._workers = workers
        self._slots = asyncio.Semaphore(workers)
        self._fork_server: ForkServerProcess | None = None
        self._opened: OpenedSandbox | None = None
        self._starting = asyncio.Lock()

    async def open(self) -> Sandbox:
        """Open the first sandbox in which a test program works, and return its description. The first call does so too.

        Raises:
            ConfigError: none works and `allow_unsafe` is off; a preloaded module or a hidden path does not exist.
        """
        async with self._starting:
            return (await self._open_sandbox()).sandbox

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run `arguments["code"]`. Waits while all workers are busy; that time does not count.

        Raises:
            ToolError: the program could not be run, or was lost with the fork server.
        """
        return await self.run(arguments["code"], (), workspace, limits)

    async def run(self, code: str, arguments: Sequence[str], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run a program with arguments on its command line; as `call` otherwise."""
        job = program_job(
            code,
            limits,
            folder=str(workspace.path.resolve()),
            arguments=arguments,
            inputs=[str(path.resolve()) for path in workspace.inputs.values()],
        )
        async with self._slots:
            fork_server, config = await self._running_fork_server()
            reply = await fork_server.run(job)
        files = await asyncio.to_thread(workspace.changes)
        return program_result(
            reply,
            limits,
            folder=folder_inside(config.backend, job.folder),
            files=files,
            irregular_files=workspace.irregular_files(),
            sandbox=config.backend,
        )

    async def _open_sandbox(self) -> OpenedSandbox:
        if self._opened is None:
            self._opened = await choose_sandbox(self._options, self._workers)
            self._fork_server = self._opened.fork_server
        return self._opened

    async def _running_fork_server(self) -> tuple[ForkServerProcess, SandboxConfig]:
        async with self._starting:
            config = (await self._open_sandbox()).config
            if self._fork_server is None or not self._fork_server.is_alive:
                if self._fork_server is not None:
                    await asyncio.to_thread(self._fork_server.close)
                self._fork_server = await start_fork_server(config)
            return self._fork_server, config

    async def close(self) -> None:
        """End the fork server and every running program."""
        if self._fork_server is not None:
            fork_server, self._fork_server = self._fork_server, None
            await asyncio.to_thread(fork_server.close)
