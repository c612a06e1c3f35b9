"""The tool `sandboxfusion`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import structlog

from mappa_core import PYTHON_SPEC, ConfigError, Sandbox, ToolError, ToolLimits, ToolResult, Workspace, program_result
from mappa_sandboxfusion.client import FusionClient, ServerFault
from mappa_sandboxfusion.findings import compiled_archive, folder_name, inspect
from mappa_sandboxfusion.local import Hashes, intact, remove, scan, write
from mappa_sandboxfusion.options import LOCAL, Options
from mappa_sandboxfusion.pool import NoServer, Pool
from mappa_sandboxfusion.sync import Outcome, Program, Remote

log = structlog.get_logger()

NAME = "sandboxfusion"


class SandboxFusionTool:
    """Implements protocols.Tool and protocols.Sandboxed: what the tool `python` is, on servers elsewhere.

    A program runs in a copy of the workspace's folder, under the same supervisor as here, so that exit codes, output,
    tracebacks and limits are the same; what it changed is brought back when it has ended. The copy is only a copy:
    where a server fails, another one gets all files and runs the program from its beginning.

    A program that kills the processes around it is an `error` without exit code, and its files are as they were before.
    """

    spec = PYTHON_SPEC

    def __init__(self, options: Options) -> None:
        options.check()
        self._options = options
        self._name = folder_name()
        self._clients = {
            client.url: client
            for client in (FusionClient(url, connect_timeout_s=options.connect_timeout_s) for url in options.urls)
        }
        self._remotes: dict[str, Remote] = {}
        self._hashes = Hashes()
        self._turns: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()
        self._opening = asyncio.Lock()
        self._open: tuple[Pool, Sandbox] | None = None

    async def open(self) -> Sandbox:
        """Run programs on every server. One that cannot is named in the warnings, and asked again later.

        Raises:
            ConfigError: none can.
        """
        return (await self._opened())[1]

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run `arguments["code"]`. Waits for its turn where all servers are busy; that time does not count.

        Raises:
            ToolError: no server ran it to its end, after `attempts` tries.
        """
        return await self.run(arguments["code"], (), workspace, limits)

    async def run(self, code: str, arguments: Sequence[str], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run a program with arguments on its command line; as `call` otherwise."""
        pool, sandbox = await self._opened()
        turn = self._turns.setdefault(workspace.path, asyncio.Lock())
        async with turn:  # programs in one folder run one after the other
            program = await asyncio.to_thread(self._look, code, arguments, workspace, limits)
            with tempfile.TemporaryDirectory(prefix="mappa-fetched-") as aside:
                outcome = await self._run(pool, program, Path(aside))
                await asyncio.to_thread(_bring_home, program, outcome)
            files = await asyncio.to_thread(workspace.changes)
        return program_result(
            outcome.reply,
            limits,
            folder=outcome.folder,
            files=files,
            left_behind=outcome.left_behind,
            sandbox=sandbox.name,
        )

    async def close(self) -> None:
        """Remove what is on the servers, as far as they answer."""
        if self._open is not None:
            (pool, _), self._open = self._open, None
            await pool.close()
            await asyncio.gather(*map(self._clear, self._remotes))
        self._remotes.clear()
        for client in self._clients.values():
            await client.close()

    async def _opened(self) -> tuple[Pool, Sandbox]:
        async with self._opening:
            if self._open is None:
                faults = [one for one in await asyncio.gather(*map(self._inspected, self._clients)) if one is not None]
                if not self._remotes:
                    raise ConfigError(_none_works(faults))
                self._open = self._pool(faults), _sandbox(self._remotes.values(), faults)
            return self._open

    def _pool(self, faults: Sequence[ServerFault]) -> Pool:
        pool = Pool(
            tuple(self._clients),
            concurrency=self._options.concurrency,
            backoff_s=self._options.backoff_s,
            max_backoff_s=self._options.max_backoff_s,
            probe=self._probe,
        )
        for fault in faults:
            pool.failed(fault.url, fault)
        return pool

    async def _run(self, pool: Pool, program: Program, aside: Path) -> Outcome:
        """Safe to repeat: what is here does not change before there is an outcome, and each try begins with it."""
        last: ToolError | None = None
        for _ in range(self._options.attempts):
            preferred = next((url for url, remote in self._remotes.items() if remote.has(program.folder)), None)
            try:
                async with pool.server(preferred) as url:
                    return await self._remotes[url].run(program, aside)
            except (ServerFault, NoServer) as fault:
                last = fault
        raise ToolError(f"the program was sent {self._options.attempts} times and did not run; the last time: {last}")

    def _look(self, code: str, arguments: Sequence[str], workspace: Workspace, limits: ToolLimits) -> Program:
        folder = workspace.path.resolve()
        inputs = intact(folder, workspace.inputs)
        return Program(
            code=code,
            arguments=tuple(arguments),
            limits=limits,
            folder=folder,
            files=scan(folder),
            inputs={name: (path, self._hashes.of(path)) for name, path in inputs.items()},
        )

    async def _probe(self, url: str) -> None:
        """Inspect a server. Copies there count on if nothing is found to be otherwise; each is compared when it is
        used. Raises ServerFault where it cannot run programs."""
        client = self._clients[url]
        findings = await inspect(client, self._name)
        if url not in self._remotes or self._remotes[url].findings != findings:
            self._remotes[url] = Remote(client, findings, await compiled_archive(client), self._options)

    async def _inspected(self, url: str) -> ServerFault | None:
        try:
            await self._probe(url)
        except ServerFault as fault:
            return fault
        return None

    async def _clear(self, url: str) -> None:
        try:
            await self._remotes[url].close()
        except ServerFault as fault:
            log.warning(
                "sandboxfusion.left_behind", url=url, folder=self._remotes[url].findings.root, reason=fault.reason
            )


def _bring_home(program: Program, outcome: Outcome) -> None:
    """Do in the workspace what the program did in its copy."""
    gone = {*program.files, *program.inputs} - outcome.files.keys() - outcome.linked
    try:
        remove(program.folder, gone)
        for name, sha256 in sorted(outcome.files.items()):
            before = program.files.get(name)
            if before is None or before.sha256 != sha256:
                write(program.folder, name, outcome.contents[sha256])
    except OSError as error:
        raise ToolError(f"what a program left cannot be written to {program.folder}: {error}") from error


def _sandbox(remotes: Iterable[Remote], faults: Sequence[ServerFault]) -> Sandbox:
    findings = [remote.findings for remote in remotes]
    return Sandbox(
        name=NAME,
        detail=", ".join(f"{one.url} (Python {'.'.join(map(str, one.python))})" for one in findings),
        warnings=(*map(str, faults), *(text for one in findings for text in one.warnings)),
    )


def _none_works(faults: Sequence[ServerFault]) -> str:
    reasons = "\n".join(f"  {fault}" for fault in faults)
    return (
        f"no SandboxFusion server can run programs:\n{reasons}\n"
        f"Start one (docs/sandboxfusion.md) and name it in tools.python.options.urls, for example [{LOCAL}], "
        "or run programs on this machine: tools.python.use=python"
    )
