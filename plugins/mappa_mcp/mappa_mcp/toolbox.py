"""Offer the tools of one MCP server to agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import anyio
import httpx2
import mcp_types
from mcp import Client, MCPError

from mappa_core import ConfigError, Tool, ToolError, ToolLimits, ToolResult, ToolSpec, Workspace
from mappa_core.sandbox import SMALLEST_LIMIT, cut_middle
from mappa_mcp.connection import Connection, build_connection, describe_error
from mappa_mcp.options import McpOptions

MAX_PAGES = 100
"""Maximum pages of a list of tools, so that a server with endless pages cannot hang a run."""


class McpToolbox:
    """Implements protocols.Toolbox. All trajectories share one connection, so its tools must not keep state of one
    caller between calls."""

    def __init__(self, options: McpOptions) -> None:
        self._options = options
        self._connection = build_connection(options)

    async def connect(self) -> Sequence[Tool]:
        """Connect and return the server's tools, by name.

        Raises:
            ConfigError: the server cannot be reached, lacks a requested tool, or has one that cannot be offered.
        """
        try:
            listed = {tool.name: tool for tool in await _list_tools(await self._connection.client())}
        except (ToolError, MCPError) as error:
            raise ConfigError(f"the tool mcp: {error}") from error
        names = self._options.only or sorted(listed)
        if unknown := [name for name in names if name not in listed]:
            available = ", ".join(sorted(listed)) or "none"
            raise ConfigError(
                f"the tool mcp: {self._connection.name} has no {', '.join(unknown)} (it has: {available})"
            )
        return [McpTool(self._connection, listed[name], self._options.prefix) for name in names]

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


class McpTool:
    """Implements protocols.Tool: one tool of a server. Its result is text; images and audio are replaced by a note."""

    def __init__(self, connection: Connection, tool: mcp_types.Tool, prefix: str) -> None:
        self._connection = connection
        self._name = tool.name
        self.spec = ToolSpec(name=f"{prefix}{tool.name}", description=tool.description or "", schema=tool.input_schema)
        _check_schema(self.spec, connection.name)

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Send the call to the server. An error that the server reports about the call is a result.

        Raises:
            ToolError: the connection broke, or the server failed.
        """
        client = await self._connection.client()
        try:
            answer = await client.call_tool(self._name, dict(arguments), read_timeout_seconds=limits.wall_s)
        except MCPError as error:
            if error.code == mcp_types.REQUEST_TIMEOUT:
                return ToolResult(
                    tool=self.spec.name, status="timeout", stderr=f"no answer within {limits.wall_s:g} s of wall time"
                )
            if error.code == mcp_types.INVALID_PARAMS:
                return ToolResult(tool=self.spec.name, status="error", stderr=error.message)
            await self._connection.drop(client)
            raise ToolError(f"{self._connection.name}: {self._name}: {error.message}") from error
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, httpx2.HTTPError, OSError) as error:
            await self._connection.drop(client)
            raise ToolError(f"{self._connection.name}: {self._name}: {describe_error(error)}") from error
        text, limit = _text(answer), max(SMALLEST_LIMIT, limits.output_bytes)
        shown, cut = cut_middle(text, limit), len(text) > limit
        if answer.is_error:
            return ToolResult(tool=self.spec.name, status="error", stderr=shown, truncated=cut)
        return ToolResult(tool=self.spec.name, status="ok", stdout=shown, truncated=cut)

    async def close(self) -> None:
        """Do nothing: the toolbox closes the connection."""


async def _list_tools(client: Client) -> list[mcp_types.Tool]:
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise ToolError(f"its list of tools has more than {MAX_PAGES} pages")


def _text(answer: mcp_types.CallToolResult) -> str:
    return "\n".join(_block_text(block) for block in answer.content)


def _block_text(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return f"[{block.type}, {block.mime_type}, cannot be shown as text]"
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents() as resource):
            return resource.text
        case mcp_types.EmbeddedResource(resource=resource):
            return f"[{resource.uri}, {resource.mime_type or 'of unknown type'}, cannot be shown as text]"
        case mcp_types.ResourceLink():
            return f"[{block.uri}]"


def _check_schema(spec: ToolSpec, server: str) -> None:
    """Raise ConfigError for a schema that is none, or one that refers to what it does not hold. Regular expressions
    are the server's to judge: they are JavaScript's."""
    from jsonschema import Draft202012Validator, FormatChecker, SchemaError  # here, as its import takes long
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema, problem = dict(spec.schema), ""
    try:
        kind: Any = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema, format_checker=FormatChecker(formats=()))
        validator = kind(schema, registry=Registry())
        for reference in sorted(set(_references_inside(schema))):
            problem = f"its reference {reference!r} leads nowhere"
            next(validator.evolve(schema={"$ref": reference}).iter_errors({}), None)
    except Exception as error:  # a server can write anything
        said = error.message if isinstance(error, SchemaError) else problem or str(error)
        raise ConfigError(f"the tool mcp: {server}: the schema of {spec.name!r} is no JSON schema: {said}") from error


def _references_inside(schema: Any) -> Iterator[str]:
    """Yield the references from one part of a schema to another; what values of arguments may be is no part."""
    if isinstance(schema, list):
        for part in schema:
            yield from _references_inside(part)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str) and value.startswith("#"):
                yield value
            elif key not in ("const", "default", "enum", "examples"):
                yield from _references_inside(value)
