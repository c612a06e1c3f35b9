"""A contract for tools. Needs pytest and pytest-asyncio in auto mode."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mappa_core.codec import from_json, to_json
from mappa_core.protocols import Sandboxed, Tool
from mappa_core.records import ToolLimits, ToolResult
from mappa_core.tools.workspace import FolderWorkspace

GENEROUS_LIMITS = ToolLimits(wall_s=120.0, cpu_s=60.0)  # For programs of a contract on a busy machine.


class ToolContract:
    """Subclass it; set `arguments` (valid ones) and `nonsense` (ones that fit the schema but are meaningless), and
    implement `tool`. `without` maps a clause that the tool cannot satisfy to the reason: it must then fail."""

    arguments: Mapping[str, Any]
    nonsense: Sequence[Mapping[str, Any]] = ()
    without: Mapping[str, str] = {}
    limits: ToolLimits = GENEROUS_LIMITS

    def tool(self) -> Tool:
        """Create a tool."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _documented_exceptions(self, request: pytest.FixtureRequest) -> None:
        clause = request.node.originalname
        if clause in self.without:
            request.applymarker(pytest.mark.xfail(reason=self.without[clause], strict=True))

    @pytest.fixture
    async def opened(self) -> AsyncIterator[Tool]:
        tool = self.tool()
        if isinstance(tool, Sandboxed):
            await tool.open()
        yield tool
        await tool.close()

    @pytest.fixture
    def workspace(self, tmp_path: Path) -> FolderWorkspace:
        return FolderWorkspace(tmp_path / "work", tmp_path / "archive")

    def test_its_spec_is_one_that_models_take(self) -> None:
        """Name a function, with an object's schema; describe it and its arguments: models see nothing else."""
        spec = self.tool().spec
        Draft202012Validator.check_schema(dict(spec.schema))
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", spec.name), f"{spec.name!r} is no name for a function"
        assert spec.schema.get("type") == "object", "arguments are an object"
        assert spec.description.strip(), "a model reads the description and nothing else"

    async def test_a_call_gives_a_result_of_its_name(self, opened: Tool, workspace: FolderWorkspace) -> None:
        """A call with `arguments` returns a `ToolResult` of status `ok` whose `tool` is the name in `spec`."""
        result = await opened.call(self.arguments, workspace, self.limits)
        assert isinstance(result, ToolResult)
        assert (result.tool, result.status) == (opened.spec.name, "ok")

    async def test_nonsense_gives_a_result_too(self, opened: Tool, workspace: FolderWorkspace) -> None:
        """A mistake of an agent gives a `ToolResult` of status `error` with advice in `stderr`. Raise `ToolError` only
        for infrastructure failures: the call is retried, and in the end the trajectory is lost."""
        fits = Draft202012Validator(dict(opened.spec.schema)).is_valid
        for arguments in self.nonsense:
            assert fits(arguments), f"{arguments} do not fit the schema, so that no call would be made of them"
            result = await opened.call(arguments, workspace, self.limits)
            assert result.status == "error", f"what an agent got wrong is a result, not an exception: {arguments}"

    async def test_a_result_can_be_recorded(self, opened: Tool, workspace: FolderWorkspace) -> None:
        """A result survives JSON. Put text into `stdout` and `stderr`, and changes of files into `files`."""
        for arguments in (self.arguments, *self.nonsense):
            result = await opened.call(arguments, workspace, self.limits)
            assert from_json(ToolResult, to_json(result)) == result

    async def test_concurrent_calls_do_not_mix(self, opened: Tool, tmp_path: Path) -> None:
        """One instance serves all trajectories. Keep a call's state in local variables and in its workspace."""
        calls = [self.arguments, *self.nonsense] * 3
        folders = [FolderWorkspace(tmp_path / str(number)) for number in range(2 * len(calls))]
        count = len(calls)
        alone = [
            await opened.call(call, folder, self.limits) for call, folder in zip(calls, folders[:count], strict=True)
        ]
        pairs = zip(calls, folders[count:], strict=True)
        mixed = await asyncio.gather(*(opened.call(call, folder, self.limits) for call, folder in pairs))
        # All but how long they took.
        assert [replace(result, seconds=0.0) for result in mixed] == [replace(result, seconds=0.0) for result in alone]

    async def test_closing_twice_is_fine(self) -> None:
        """`close` may be called first, and twice. Check that something is open before you close it."""
        tool = self.tool()
        await tool.close()
        await tool.close()

    async def test_closing_twice_after_a_call_is_fine(self, workspace: FolderWorkspace) -> None:
        """`close` releases what a call has opened, and may be called twice."""
        tool = self.tool()
        await tool.call(self.arguments, workspace, self.limits)
        await tool.close()
        await tool.close()
