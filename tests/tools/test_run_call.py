import asyncio

import pytest

from mappa_core import ToolCall, ToolError, ToolLimits, ToolResult, ToolSpec
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


async def test_call_of_an_unknown_tool_is_answered_with_the_known_tools(tmp_path):
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


def schema_of(x, **rest):
    return {"type": "object", "properties": {"x": x}, **rest}


async def called_by(tmp_path, schema, **arguments):
    class Hands(Squares):
        spec = ToolSpec(name="hands", description="", schema=schema)

        async def call(self, arguments, workspace, limits):
            return ToolResult(tool="hands", status="ok")

    call = ToolCall(name="hands", arguments=arguments)
    return (await run_call(call, {"hands": Hands()}, FolderWorkspace(tmp_path), {"hands": ToolLimits()})).status


@pytest.mark.parametrize(
    "schema",
    [
        schema_of({"type": "string", "pattern": r"^\p{L}+$"}),
        schema_of({"type": "string", "pattern": r"^(a+)+$"}),
        {"patternProperties": {r"^(?<one>x)": {}}, "additionalProperties": False},
        schema_of({}, patternProperties={"(": {}}, unevaluatedProperties=False),
        schema_of({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "number"}]}),
    ],
)
async def test_regular_expressions_are_left_to_the_tool(tmp_path, schema):
    """They are JavaScript's, and one can take for ever."""
    assert await called_by(tmp_path, schema, x="a" * 64 + "!") == "ok"


@pytest.mark.parametrize(
    "schema", [schema_of({"$ref": "#/$defs/X"}), {"$ref": "#"}, schema_of({"type": "any"}), {"properties": []}]
)
async def test_a_schema_that_cannot_be_used_leaves_the_arguments_to_the_tool(tmp_path, schema):
    assert await called_by(tmp_path, schema, x="a") == "ok"


async def test_a_schema_is_read_by_the_draft_that_it_names(tmp_path):
    pair = schema_of({"items": [{"type": "number"}]}, **{"$schema": "http://json-schema.org/draft-07/schema#"})
    assert await called_by(tmp_path, pair, x=["a"]) == "error"
    assert await called_by(tmp_path, pair, x=[1, "a"]) == "ok"


async def test_exception_of_a_tool_is_a_tool_failure(tmp_path):
    with pytest.raises(ToolError, match=r"the tool 'odd' raised KeyError: 'oh' \(test_run_call\.py:\d+\)$") as caught:
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
