"""Checks of `mappa doctor`: every sandbox backend against a program that tries to escape, and the tool `python`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_core import CheckResult, MappaError, Tool, ToolLimits, ToolResult
from mappa_core.sandbox import FolderWorkspace, Sandbox
from mappa_sandbox.choose_sandbox import survey_backends

if TYPE_CHECKING:
    from mappa_core import Registry


def check_sandboxes(registry: Registry) -> Mapping[str, CheckResult]:
    """Run a program that tries to escape in every sandbox backend."""
    results: dict[str, CheckResult] = {}
    for name, result in asyncio.run(survey_backends()).items():
        if isinstance(result, Sandbox):
            results[name] = CheckResult(True, "; ".join((result.detail, *result.warnings)))
        else:
            results[name] = CheckResult(False, result)
    return results


def check_python_tool(registry: Registry) -> Mapping[str, CheckResult]:
    """Run one program by the tool `python`."""
    try:
        result = asyncio.run(_run_print(registry))
    except MappaError as error:
        return {"python": CheckResult(False, str(error))}
    answer = (result.stdout or result.stderr).strip()
    detail = f"print(1) gave {answer!r} in {result.seconds:.2f} s, sandbox: {result.sandbox}"
    return {"python": CheckResult(answer == "1", detail)}


async def _run_print(registry: Registry) -> ToolResult:
    tool: Tool = registry.build("tools", "python")
    try:
        with tempfile.TemporaryDirectory() as folder:
            return await tool.call({"code": "print(1)"}, FolderWorkspace(Path(folder)), ToolLimits())
    finally:
        await tool.close()
