"""Tools of an MCP server: a real one, over its standard streams and over HTTP."""

from __future__ import annotations

import asyncio
import re
import runpy
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import mcp_types
import pytest
import uvicorn

from mappa.testing import ToolContract
from mappa_core import ConfigError, ToolError, ToolLimits, ToolResult
from mappa_core.sandbox import FolderWorkspace
from mappa_mcp.connection import build_connection
from mappa_mcp.options import McpOptions
from mappa_mcp.toolbox import McpTool, McpToolbox

HERE = Path(__file__).parent
SERVER = [sys.executable, str(HERE / "server.py")]
PLAIN = [sys.executable, str(HERE / "plain_server.py")]
LIMITS = ToolLimits()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    app = runpy.run_path(SERVER[1])["guarded"]("key-7")
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    server.should_exit = True
    thread.join()


@pytest.fixture
def workspace(tmp_path):
    return FolderWorkspace(tmp_path / "work", tmp_path / "archive")


@pytest.fixture(params=["stdio", "http"])
async def shelf(request, monkeypatch):
    """The tools of the server by name."""
    if request.param == "stdio":
        options = McpOptions(command=SERVER)
    else:
        monkeypatch.setenv("SHELF_KEY", "key-7")
        options = McpOptions(url=request.getfixturevalue("url"), key_env="SHELF_KEY")
    box = McpToolbox(options)
    yield {tool.spec.name: tool for tool in await box.connect()}
    await box.close()


async def test_tools_of_a_server_are_listed_and_called(shelf, workspace):
    assert list(shelf) == ["copy_out", "cover", "fetch", "look_up"]
    spec = shelf["look_up"].spec
    assert (spec.description, spec.schema["required"]) == ("Look a book up.", ["title"])
    assert spec.schema["properties"]["copies"]["type"] == "integer"

    async def call(name, limits=LIMITS, **arguments):
        return await shelf[name].call(arguments, workspace, limits)

    found = await call("look_up", title="Emma", copies=2)
    assert found == ToolResult(tool="look_up", status="ok", stdout="Emma: 2 on the shelf")
    burnt = await call("look_up", title="burnt")
    assert (burnt.status, burnt.stdout) == ("error", "") and "that book is burnt" in burnt.stderr
    misfit = await call("look_up", title=3)
    assert misfit.status == "error" and "title" in misfit.stderr
    shown = await call("cover", title="Emma")
    assert shown.stdout == "the cover of Emma\n[image, image/png, cannot be shown as text]"
    late = await call("fetch", ToolLimits(wall_s=0.3), seconds=1)
    assert (late.status, late.stderr) == ("timeout", "no answer within 0.3 s of wall time")
    long = await call("copy_out", ToolLimits(output_bytes=500), pages=9)
    assert long.truncated and len(long.stdout) == 500
    assert long.stdout.startswith("first\n") and long.stdout.endswith("\nlast") and "cut" in long.stdout
    several = await asyncio.gather(*(call("look_up", title=str(number)) for number in range(20)))
    assert [result.stdout for result in several] == [f"{number}: 1 on the shelf" for number in range(20)]


class TestContract(ToolContract):
    """What any tool must do; a server keeps its connection until its box is closed."""

    arguments = {"title": "Emma"}  # noqa: RUF012

    @pytest.fixture
    async def opened(self):
        box = McpToolbox(McpOptions(command=PLAIN, only=["look_up"]))
        (tool,) = await box.connect()
        yield tool
        await box.close()

    def tool(self):
        schema = {"type": "object", "properties": {"title": {"type": "string"}}}
        described = mcp_types.Tool(name="look_up", description="Look a book up.", input_schema=schema)
        return McpTool(build_connection(McpOptions(command=PLAIN)), described, "")


async def test_a_program_is_given_the_environment_that_is_named_and_no_more(monkeypatch, workspace):
    monkeypatch.setenv("SHELF_KEY", "key-7")
    monkeypatch.setenv("PLANTED_KEY", "planted")
    box = McpToolbox(McpOptions(command=PLAIN, env=["SHELF_KEY"], only=["look_up"], prefix="shelf_"))
    (tool,) = await box.connect()
    result = await tool.call({"title": "Emma"}, workspace, LIMITS)
    assert (result.tool, result.stdout) == ("shelf_look_up", "Emma key-7 None")
    await box.close()


def offered(schema):
    described = mcp_types.Tool(name="look_up", description="", input_schema=schema)
    return McpTool(build_connection(McpOptions(command=PLAIN)), described, "")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"title": {"type": "string", "pattern": r"^\p{L}+$"}}},
        {"properties": {"title": {"type": "string", "pattern": r"^(?<year>\d{4})$"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"title": {"items": [{"$ref": "#/definitions/word"}]}},
            "definitions": {"word": {"type": "string", "default": {"$ref": "#/nowhere"}}},
        },
        {"properties": {"inner": {"type": "array", "items": {"$ref": "#"}}}},
    ],
)
def test_schemas_in_other_drafts_and_with_patterns_of_javascript_are_offered(schema):
    assert offered({"type": "object", **schema}).spec.schema["type"] == "object"


@pytest.mark.parametrize("reference", ["#/$defs/Book", "#"])
def test_a_schema_that_refers_to_what_it_does_not_hold_is_refused(reference):
    schema = {"allOf": [{"$ref": reference}]}
    with pytest.raises(
        ConfigError, match=f"the schema of 'look_up' is no JSON schema: its reference '{re.escape(reference)}'"
    ):
        offered(schema)


async def test_a_server_that_dies_is_a_fault_of_the_machinery_and_is_there_again_for_the_next_call(workspace):
    box = McpToolbox(McpOptions(command=PLAIN))
    tools = {tool.spec.name: tool for tool in await box.connect()}
    with pytest.raises(ToolError, match="burn_down"):
        await tools["burn_down"].call({}, workspace, LIMITS)
    assert (await tools["look_up"].call({"title": "Emma"}, workspace, LIMITS)).status == "ok"
    await box.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "one of command"),
        ({"command": PLAIN, "url": "http://127.0.0.1/mcp"}, "one of command"),
        ({"command": ["no-such-program"]}, "there is no program 'no-such-program'"),
        ({"command": PLAIN, "env": ["NOT_SET_7"]}, "NOT_SET_7 is not set"),
        ({"url": "127.0.0.1:80"}, "begins with http"),
        ({"url": "http://127.0.0.1:1/mcp", "key_env": "NOT_SET_7"}, "NOT_SET_7 is not set or empty"),
        ({"url": "http://127.0.0.1:1/mcp"}, "no connection"),
        ({"command": [*PLAIN, "locked"]}, "the shelf is locked"),
        ({"command": PLAIN, "only": ["borrow"]}, "has no borrow .it has: burn_down, look_up"),
        ({"command": [*PLAIN, "odd"]}, "the schema of 'look_up' is no JSON schema"),
        ({"command": [*PLAIN, "mute"], "connect_s": 0.2}, "no connection within 0.2 s"),
    ],
)
async def test_tools_that_cannot_be_offered_are_refused_before_the_run(options, says):
    with pytest.raises(ConfigError, match=says):
        box = McpToolbox(McpOptions(**options))
        try:
            await box.connect()
        finally:
            await box.close()


async def test_rejected_key_is_an_error(url, monkeypatch):
    monkeypatch.setenv("SHELF_KEY", "key-8")
    with pytest.raises(ConfigError, match="the status 401") as caught:
        await McpToolbox(McpOptions(url=url, key_env="SHELF_KEY")).connect()
    assert "key-8" not in str(caught.value)
