"""The tool `sandboxfusion`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import structlog

from mappa_core import ConfigError, ToolError, ToolLimits, ToolResult, Workspace
from mappa_core.sandbox import OwnedFolder, Sandbox
from mappa_sandbox import PYTHON_SPEC, program_result
from mappa_sandboxfusion.client import FusionClient, ServerFault
from mappa_sandboxfusion.local import FileHashes, linked_inputs, remove_files, scan_folder, write_file
from mappa_sandboxfusion.options import LOCAL_URL, Options
from mappa_sandboxfusion.pool import NoServer, ServerPool
from mappa_sandboxfusion.probe import compile_archive, inspect_server, new_folder_name
from mappa_sandboxfusion.remote_server import RemoteOutcome, RemoteProgram, RemoteServer

log = structlog.get_logger()

TOOL_NAME = "sandboxfusion"


class SandboxFusionTool:
    """Implements protocols.Tool and protocols.Sandboxed: the tool `python` on remote servers.

    A program runs in a copy of the workspace's folder under the same supervisor as locally, so that exit codes, output,
    tracebacks and limits are the same; its changes are fetched when it has ended. Where a server fails, another one
    gets all files and runs the program from its beginning.

    A program that kills the processes around it is an `error` without exit code, and its files are as they were before.
    """

    spec = PYTHON_SPEC

    def __init__(self, options: Options) -> None:
        options.check()
        self._options = options
        self._name = new_folder_name()
        self._clients = {
            client.url: client
            for client in (FusionClient(url, connect_timeout_s=options.connect_timeout_s) for url in options.urls)
        }
        self._remotes: dict[str, RemoteServer] = {}
        self._hashes = FileHashes()
        self._turns: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()
        self._opening = asyncio.Lock()
        self._open: tuple[ServerPool, Sandbox] | None = None

    async def open(self) -> Sandbox:
        """Probe every server. One that cannot run programs is named in the warnings, and probed again later.

        Raises:
            ConfigError: no server can run programs.
        """
        return (await self._ensure_open())[1]

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run `arguments["code"]`. Waits where all servers are busy; that time does not count.

        Raises:
            ToolError: no server completed it in `attempts` attempts.
        """
        return await self.run(arguments["code"], (), workspace, limits)

    async def run(self, code: str, arguments: Sequence[str], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run a program with command line arguments; otherwise as `call`."""
        pool, sandbox = await self._ensure_open()
        turn = self._turns.setdefault(workspace.path, asyncio.Lock())
        async with turn:  # programs in one folder run one after the other
            program = await asyncio.to_thread(self._read_workspace, code, arguments, workspace, limits)
            with closing(OwnedFolder("mappa-fetched-")) as aside:
                outcome = await self._run(pool, program, aside.path)
                await asyncio.to_thread(_apply_changes, program, outcome)
            files = await asyncio.to_thread(workspace.changes)
        return program_result(
            outcome.reply,
            limits,
            folder=outcome.folder,
            files=files,
            irregular_files=outcome.irregular_files,
            sandbox=sandbox.name,
        )

    async def close(self) -> None:
        """Remove all files on the servers that answer, and close."""
        if self._open is not None:
            (pool, _), self._open = self._open, None
            await pool.close()
            await asyncio.gather(*map(self._clear_server, self._remotes))
        self._remotes.clear()
        for client in self._clients.values():
            await client.close()

    async def _ensure_open(self) -> tuple[ServerPool, Sandbox]:
        async with self._opening:
            if self._open is None:
                faults = [
                    fault for fault in await asyncio.gather(*map(self._try_probe, self._clients)) if fault is not None
                ]
                if not self._remotes:
                    raise ConfigError(_no_server_message(faults))
                self._open = self._build_pool(faults), _describe_sandbox(self._remotes.values(), faults)
            return self._open

    def _build_pool(self, faults: Sequence[ServerFault]) -> ServerPool:
        pool = ServerPool(
            tuple(self._clients),
            concurrency=self._options.concurrency,
            backoff_s=self._options.backoff_s,
            max_backoff_s=self._options.max_backoff_s,
            probe=self._probe,
        )
        for fault in faults:
            pool.mark_failed(fault.url, fault)
        return pool

    async def _run(self, pool: ServerPool, program: RemoteProgram, aside: Path) -> RemoteOutcome:
        """Run a program, with retries: each attempt starts from the local files, which change only after an outcome."""
        last: ToolError | None = None
        for _ in range(self._options.attempts):
            preferred = next((url for url, remote in self._remotes.items() if remote.has_copy(program.folder)), None)
            try:
                async with pool.server(preferred) as url:
                    return await self._remotes[url].run(program, aside)
            except (ServerFault, NoServer) as fault:
                last = fault
        raise ToolError(f"the program was sent {self._options.attempts} times and did not run; the last time: {last}")

    def _read_workspace(
        self, code: str, arguments: Sequence[str], workspace: Workspace, limits: ToolLimits
    ) -> RemoteProgram:
        folder = workspace.path.resolve()
        inputs = linked_inputs(folder, workspace.inputs)
        return RemoteProgram(
            code=code,
            arguments=tuple(arguments),
            limits=limits,
            folder=folder,
            files=scan_folder(folder),
            inputs={name: (path, self._hashes.of(path)) for name, path in inputs.items()},
        )

    async def _probe(self, url: str) -> None:
        """Probe a server. Its copies stay in use where the findings are unchanged; each copy is compared when it is
        used. Raises ServerFault where the server cannot run programs."""
        client = self._clients[url]
        findings = await inspect_server(client, self._name)
        if url not in self._remotes or self._remotes[url].findings != findings:
            self._remotes[url] = RemoteServer(client, findings, await compile_archive(client), self._options)

    async def _try_probe(self, url: str) -> ServerFault | None:
        try:
            await self._probe(url)
        except ServerFault as fault:
            return fault
        return None

    async def _clear_server(self, url: str) -> None:
        try:
            await self._remotes[url].close()
        except ServerFault as fault:
            log.warning(
                "sandboxfusion.left_behind", url=url, folder=self._remotes[url].findings.root, reason=fault.reason
            )


def _apply_changes(program: RemoteProgram, outcome: RemoteOutcome) -> None:
    """Apply the program's changes of its copy to the workspace."""
    gone = {*program.files, *program.inputs} - outcome.files.keys() - outcome.linked
    try:
        remove_files(program.folder, gone)
        for name, sha256 in sorted(outcome.files.items()):
            before = program.files.get(name)
            if before is None or before.sha256 != sha256:
                write_file(program.folder, name, outcome.contents[sha256])
    except OSError as error:
        raise ToolError(f"what a program left cannot be written to {program.folder}: {error}") from error


def _describe_sandbox(remotes: Iterable[RemoteServer], faults: Sequence[ServerFault]) -> Sandbox:
    findings = [remote.findings for remote in remotes]
    return Sandbox(
        name=TOOL_NAME,
        detail=", ".join(f"{server.url} (Python {'.'.join(map(str, server.python))})" for server in findings),
        warnings=(*map(str, faults), *(text for server in findings for text in server.warnings)),
    )


def _no_server_message(faults: Sequence[ServerFault]) -> str:
    reasons = "\n".join(f"  {fault}" for fault in faults)
    return (
        f"no SandboxFusion server can run programs:\n{reasons}\n"
        f"Start one (docs/sandboxfusion.md) and name it in tools.python.options.urls, for example [{LOCAL_URL}], "
        "or run programs on this machine: tools.python.use=python"
    )
