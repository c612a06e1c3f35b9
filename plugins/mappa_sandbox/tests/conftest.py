import os
from pathlib import Path

import pytest
import pytest_asyncio

from mappa_core import ConfigError, ToolLimits, ToolResult
from mappa_core.sandbox import FolderWorkspace
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

CAGES = ("bubblewrap", "landlock", "none")


@pytest.fixture
async def tool():
    """In the best cage that works here."""
    tool = PythonTool(PythonOptions(workers=4))
    yield tool
    await tool.close()


@pytest.fixture
async def uncaged():
    tool = PythonTool(PythonOptions(workers=4, sandbox="none", allow_unsafe=True))
    yield tool
    await tool.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=CAGES)
async def caged(request):
    """A tool in every cage, one for all tests of a module, which share its event loop."""
    tool = PythonTool(PythonOptions(workers=4, sandbox=request.param, allow_unsafe=request.param == "none"))
    try:
        await tool.open()
    except ConfigError as error:
        pytest.skip(str(error))
    yield tool
    await tool.close()


@pytest.fixture
def workspace(tmp_path):
    return FolderWorkspace(tmp_path / "work", tmp_path / "archive")


@pytest.fixture
def run(tool, workspace):
    async def run(code: str, **limits: float) -> ToolResult:
        return await tool.call({"code": code}, workspace, ToolLimits(**{"wall_s": 20.0, **limits}))

    return run


@pytest.fixture
def processes():
    """Ids of living processes that have `mark` in their command line."""

    def processes(mark: str) -> list[int]:
        found = []
        for folder in Path("/proc").iterdir():
            try:
                command = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
            except OSError:
                continue
            if mark.encode() in command and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        return found

    return processes
