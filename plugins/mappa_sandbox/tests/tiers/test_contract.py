"""The tool `python` keeps the contract of executors, in every tier that works here and without one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from mappa_core.protocols import Tool
from mappa_core.testing import ToolContract
from mappa_sandbox.calculator import Calculator
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.testing import ExecutorContract
from mappa_sandbox.tool import PythonTool


class TestCalculator(ToolContract):
    arguments: Mapping[str, Any] = {"expression": "6 * 7"}
    nonsense = ({"expression": ""}, {"expression": "1 +"}, {"expression": "\x00"}, {"expression": "import os"})

    def tool(self) -> Tool:
        return Calculator()


class InACage(ExecutorContract):
    cage: str
    allow_unsafe = False

    def tool(self) -> Tool:
        return PythonTool(PythonOptions(sandbox=self.cage, allow_unsafe=self.allow_unsafe, workers=4))

    @pytest.fixture
    async def opened(self, open_cage) -> AsyncIterator[Tool]:
        tool = self.tool()
        await open_cage(tool, self.cage)
        yield tool
        await tool.close()


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
