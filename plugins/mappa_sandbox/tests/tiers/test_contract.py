"""The tool `python` keeps the contract of executors, in every tier that works here and without one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from mappa.testing import ToolContract
from mappa_core import Tool
from mappa_sandbox.calculator import Calculator
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.testing import ExecutorContract
from mappa_sandbox.tool import PythonTool


class TestCalculator(ToolContract):
    arguments: Mapping[str, Any] = {"expression": "6 * 7"}
    nonsense = ({"expression": ""}, {"expression": "1 +"}, {"expression": "\x00"}, {"expression": "import os"})

    def tool(self) -> Tool:
        return Calculator()


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def tool_of_the_class(request: pytest.FixtureRequest, open_cage) -> AsyncIterator[Tool]:
    tool = request.cls().tool()
    await open_cage(tool, request.cls.cage)
    yield tool
    await tool.close()


@pytest.mark.asyncio(loop_scope="class")
@pytest.mark.filterwarnings("ignore:.* but it is not an async function:pytest.PytestWarning")
class InACage(ExecutorContract):
    """All clauses share a tool, and its event loop."""

    cage: str
    allow_unsafe = False

    def tool(self) -> Tool:
        return PythonTool(PythonOptions(sandbox=self.cage, allow_unsafe=self.allow_unsafe, workers=4))

    @pytest.fixture
    def opened(self, tool_of_the_class: Tool) -> Tool:
        return tool_of_the_class


class TestInBubblewrap(InACage):
    cage = "bubblewrap"


class TestInLandlock(InACage):
    cage = "landlock"


class TestWithoutACage(InACage):
    cage = "none"
    allow_unsafe = True
    without: Mapping[str, str] = {
        "test_input_files_can_be_read_and_not_written": "who runs the programs may write to them"
    }
