"""Servers whose answers have no end, become much, or come byte by byte: bounded and typed, as those of providers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mappa.testing import WireAnswer, WireRequest, WireServer
from mappa_core import ToolError, ToolLimits
from mappa_mcp.options import McpOptions
from mappa_mcp.toolbox import McpToolbox

JSON, EVENTS = {"content-type": "application/json"}, {"content-type": "text/event-stream"}
ANSWERS = {
    "endless": WireAnswer(body=b'{"so": "far"}' * 5000, trouble="endless"),
    "endless events": WireAnswer(headers=EVENTS, body=b'data: {"so": "far"}\n\n' * 500, trouble="endless"),
    "an endless event": WireAnswer(headers=EVENTS, body=b"data: " + b"x" * 50_000, trouble="endless"),
    "endless headers": WireAnswer(trouble="headers"),
    "compressed": WireAnswer(headers={**JSON, "content-encoding": "gzip"}, body=b"not even that"),
    "another place": WireAnswer(status=307, headers={"location": "/mcp"}),
}
DRIP = WireAnswer(body=b" " * 1000, trouble="drip", pace_s=0.02)


def server_of_one_tool(answer: WireAnswer) -> WireServer:
    """A server that answers calls of its tool so."""

    def respond(request: WireRequest) -> WireAnswer:
        body: Any = request.body or {}
        match body.get("method"):
            case "initialize":
                about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
                result: Any = {**about, "protocolVersion": body["params"]["protocolVersion"]}
            case "tools/list":
                result = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
            case "tools/call":
                return answer
            case _:
                return WireAnswer(status=405 if request.method == "GET" else 202)
        return WireAnswer(body=json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": result}).encode())

    return WireServer(respond)


async def call(answer: WireAnswer, wall_s: float) -> Any:
    async with server_of_one_tool(answer) as server:
        toolbox = McpToolbox(McpOptions(url=f"{server.url}/mcp"))
        try:
            (tool,) = await toolbox.connect()
            return await tool.call({}, None, ToolLimits(wall_s=wall_s))  # type: ignore[arg-type]
        finally:
            await toolbox.close()


@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_without_bounds_is_a_fault_of_the_server(answer: str) -> None:
    with pytest.raises(ToolError, match="MCP server"):
        await call(ANSWERS[answer], wall_s=60.0)


async def test_a_slow_answer_has_the_time_of_the_call() -> None:
    assert (await call(DRIP, wall_s=0.5)).status == "timeout"
