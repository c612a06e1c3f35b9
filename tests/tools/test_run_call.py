import asyncio

import pytest

from mappa_core.errors import ToolError
from mappa_core.records import ToolCall, ToolLimits, ToolResult, ToolSpec
from mappa_core.tools.run_call import run_call
from mappa_core.tools.workspace import FolderWorkspace


class Squares:
    """An ordinary tool."""

    spec = ToolSpec(
        name="squares",
        description="",
        schema={
            "type": "object",
            "properties": {"number": {"type": "string"}},
            "required": ["number"],
            "additionalProperties": False,
        },
    )

    async def call(self, arguments, workspace, limits):
        return ToolResult(tool="squares", status="ok", stdout=f"{int(arguments['number']) ** 2}")

    async def close(self): ...


class Odd:
    """A tool whose code misbehaves as told."""

    spec = ToolSpec(
        name="odd",
        description="",
        schema={"type": "object", "properties": {"how": {"enum": ["raise", "fault", "wait", "limits"]}}},
    )

    async def call(self, arguments, workspace, limits):
        match arguments["how"]:
            case "raise":
                raise KeyError("oh")
            case "fault":
                raise ToolError("the machine is gone")
            case "wait":
                await asyncio.sleep(60)
            case "limits":
                return ToolResult(tool="odd", status="ok", stdout=f"{limits.wall_s}")

    async def close(self): ...


TOOLS = {"squares": Squares(), "odd": Odd()}
LIMITS = {"squares": ToolLimits(), "odd": ToolLimits(wall_s=7.0)}


async def run(tmp_path, name="squares", *, error=None, **arguments):
    call = ToolCall(name=name, arguments=arguments, error=error)
    return await run_call(call, TOOLS, FolderWorkspace(tmp_path), LIMITS)


async def test_a_fitting_call_is_run_with_the_limits_of_its_tool(tmp_path):
    assert (await run(tmp_path, number="7")).stdout == "49"
    assert (await run(tmp_path, "odd", how="limits")).stdout == "7.0"


async def test_a_call_with_an_error_is_answered_with_it(tmp_path):
    result = await run(tmp_path, "python", error="the block is not closed")
    assert result == ToolResult(tool="python", status="error", stderr="the block is not closed")


async def test_an_unknown_tool_is_answered_with_those_that_are_there(tmp_path):
    result = await run(tmp_path, "shell")
    assert (result.tool, result.status) == ("shell", "error")
    assert result.stderr == "there is no tool 'shell' (there are: odd, squares)"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "do not fit its schema: 'number' is a required property"),
        ({"number": 5}, "do not fit its schema at 'number': 5 is not of type 'string'"),
        ({"number": "1", "x": 2}, "'x' was unexpected"),
    ],
)
async def test_arguments_that_do_not_fit_are_explained(tmp_path, arguments, reason):
    result = await run(tmp_path, **arguments)
    assert result.status == "error" and reason in result.stderr


async def test_the_whole_of_json_schema_is_checked_and_long_values_are_cut(tmp_path):
    result = await run(tmp_path, "odd", how="x" * 10_000)
    assert result.status == "error" and "characters cut" in result.stderr and len(result.stderr) < 700


async def test_what_a_tool_raises_is_nobodys_fault(tmp_path):
    with pytest.raises(ToolError, match="the tool 'odd' raised KeyError: 'oh'") as caught:
        await run(tmp_path, "odd", how="raise")
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ToolError, match=r"^the machine is gone$"):
        await run(tmp_path, "odd", how="fault")


def test_a_call_that_hangs_is_given_up_long_after_its_limit_unless_the_tool_runs_programs(tmp_path, travel):
    """What runs programs ends them itself, and its calls may wait for one of its workers."""

    class Patient(Odd):
        async def call(self, arguments, workspace, limits):
            await asyncio.sleep(arguments["seconds"])
            return ToolResult(tool="patient", status="ok")

    class Programs(Patient):
        async def open(self): ...

        async def run(self, code, arguments, workspace, limits): ...

    async def call(tool, seconds):
        one = ToolCall(name="odd", arguments={"seconds": seconds})
        return await run_call(one, {"odd": tool}, FolderWorkspace(tmp_path), LIMITS)

    assert travel(call(Patient(), 60)).status == "ok"
    with pytest.raises(ToolError, match=r"'odd' gave no result within 67 s \(limits.wall_s"):
        travel(call(Patient(), 1000))
    assert travel(call(Programs(), 1000)).status == "ok"


async def test_cancelling_is_not_an_error_of_the_tool(tmp_path):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run(tmp_path, "odd", how="wait")
