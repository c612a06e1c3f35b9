"""Tools from servers of the Model Context Protocol (MCP)."""

from __future__ import annotations

from collections.abc import Iterable

from mappa_core import Offer, Tool, Toolbox, hookimpl
from mappa_mcp.options import McpOptions


@hookimpl
def mappa_tools() -> Iterable[Offer[Tool | Toolbox]]:
    yield Offer("mcp", _build_mcp, McpOptions)


def _build_mcp(options: McpOptions) -> Toolbox:
    from mappa_mcp.toolbox import McpToolbox

    return McpToolbox(options)
