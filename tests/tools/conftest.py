import os
from pathlib import Path

import pytest

from mappa_core.records import ToolLimits, ToolResult
from mappa_core.tools.python.options import PythonOptions
from mappa_core.tools.python.tool import PythonTool
from mappa_core.tools.workspace import FolderWorkspace


@pytest.fixture
async def tool():
    tool = PythonTool(PythonOptions(workers=4))
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
