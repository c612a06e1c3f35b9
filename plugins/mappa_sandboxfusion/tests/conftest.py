"""A server that speaks the wire of SandboxFusion and runs programs, well or badly; and what tests do with it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mappa_core import ToolLimits, ToolResult
from mappa_core.sandbox import FolderWorkspace
from mappa_sandboxfusion.options import Options
from mappa_sandboxfusion.tool import SandboxFusionTool

REAL = os.environ.get("MAPPA_SANDBOXFUSION_URL")
"""A real server, for the tests that any server has to pass."""
LIMITS = {"wall_s": 60.0, "cpu_s": 60.0}
"""No test is about a slow machine."""

Trouble = Callable[["FakeFusion", dict[str, Any]], Awaitable[web.StreamResponse | None]]
"""What happens instead of the next run; None goes on with it."""


class FakeFusion:
    """`/v1/ping` and `/run_code` as the recorded pairs have them: programs run, without isolation, in `temp`.

    `troubles` are taken one by one, each by one run. With `keeps` off the folder of temporary files is empty for every
    run, as with isolation lite. `heard` are the bodies of all runs.
    """

    def __init__(self, temp: Path, *, keeps: bool = True, environment: dict[str, str] | None = None) -> None:
        self.temp = temp
        self.keeps = keeps
        self.environment = environment or {}
        self.troubles: deque[Trouble] = deque()
        self.heard: list[dict[str, Any]] = []
        self.running = 0
        self.most_running = 0
        self.programs_work = True
        self._port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """On the same port as the last time."""
        self.temp.mkdir(exist_ok=True)
        application = web.Application(client_max_size=1 << 30)
        application.router.add_get("/v1/ping", self._ping)
        application.router.add_post("/run_code", self._run_code)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Connections under way break."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def lose(self) -> None:
        """All files of all clients."""
        shutil.rmtree(self.temp)
        self.temp.mkdir()

    @property
    def orders(self) -> list[str]:
        """The programs of agents that were to run, in order."""
        jobs = [
            json.loads(base64.b64decode(body["files"]["job.json"]))
            for body in self.heard
            if "upload.bin" in body["files"]
        ]
        return [job["order"]["code"] for job in jobs if job["order"] is not None]

    async def _ping(self, request: web.Request) -> web.Response:
        return web.json_response("pong")

    async def _run_code(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.heard.append(body)
        if self.troubles:
            answer = await self.troubles.popleft()(self, {**body, "request": request})
            if answer is not None:
                return answer
        if not self.programs_work:
            return web.json_response(sandbox_error("no Python here"))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return web.json_response(await self._run(body))
        finally:
            self.running -= 1

    async def _run(self, body: dict[str, Any]) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(dir=self.temp))
        for name, content in body["files"].items():
            (folder / name).write_bytes(base64.b64decode(content))
        (folder / "code.py").write_text(body["code"])
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TMPDIR": str(self.temp), **self.environment}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(folder / "code.py"), cwd=folder, env=environment, stdout=pipe, stderr=pipe
        )
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(), body["run_timeout"])
            status, code = "Finished", process.returncode
        except TimeoutError:
            process.kill()
            await process.wait()
            status, code, stdout, stderr = "TimeLimitExceeded", None, b"", b""
        except asyncio.CancelledError:
            process.kill()
            raise
        files = {
            path: base64.b64encode((folder / path).read_bytes()).decode()
            for path in body["fetch_files"]
            if (folder / path).is_file()
        }
        shutil.rmtree(folder)
        if not self.keeps:
            self.lose()
        result = {
            "status": status, "execution_time": 0.1, "return_code": code,
            "stdout": stdout.decode(), "stderr": stderr.decode(),
        }  # fmt: skip
        return answer("Success" if code == 0 else "Failed", result, files)


def answer(status: str, result: dict[str, Any] | None, files: dict[str, str], message: str = "") -> dict[str, Any]:
    return {
        "status": status, "message": message, "compile_result": None, "run_result": result,
        "executor_pod_name": None, "files": files,
    }  # fmt: skip


def sandbox_error(message: str) -> dict[str, Any]:
    return answer("SandboxError", None, {}, message)


@pytest.fixture
async def fusion(tmp_path: Path) -> AsyncIterator[FakeFusion]:
    """A running server."""
    server = FakeFusion(tmp_path / "server")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(params=["fake", *(["real"] if REAL else [])])
def url(request: pytest.FixtureRequest, fusion: FakeFusion) -> str:
    """A server of each kind that there is here."""
    return REAL if request.param == "real" and REAL else fusion.url


@pytest.fixture
async def build() -> AsyncIterator[Callable[..., Awaitable[SandboxFusionTool]]]:
    """Opened tools, which are closed at the end."""
    tools: list[SandboxFusionTool] = []

    async def build(*urls: str, **options: Any) -> SandboxFusionTool:
        tool = SandboxFusionTool(Options(urls=list(urls), **{"backoff_s": 0.02, "max_backoff_s": 0.1, **options}))
        tools.append(tool)
        await tool.open()
        return tool

    yield build
    for tool in tools:
        await tool.close()


@pytest.fixture
def workspace(tmp_path: Path) -> FolderWorkspace:
    return FolderWorkspace(tmp_path / "work", tmp_path / "archive")


@pytest.fixture
def run(workspace: FolderWorkspace) -> Callable[..., Awaitable[ToolResult]]:
    async def run(tool: SandboxFusionTool, code: str, folder: FolderWorkspace = workspace, **limits: Any) -> ToolResult:
        return await tool.call({"code": code}, folder, ToolLimits(**{**LIMITS, **limits}))

    return run
