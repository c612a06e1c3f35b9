"""The contract of the tool `python`, kept by programs on servers."""

from __future__ import annotations

import os
from typing import Any

import pytest

from mappa_sandbox.testing import ExecutorContract
from mappa_sandboxfusion.options import Options
from mappa_sandboxfusion.tool import SandboxFusionTool

ROOT_MAY = {
    "test_input_files_can_be_read_and_not_written": "a server that runs as root lets programs write to any file; what "
    "they write to a file of a task is found before the next program and put right"
}


class TestSandboxFusion(ExecutorContract):
    without = ROOT_MAY if os.getuid() == 0 else {}

    @pytest.fixture(autouse=True)
    def at(self, url: str) -> None:
        self.url = url

    def tool(self) -> Any:
        return SandboxFusionTool(Options(urls=[self.url]))
