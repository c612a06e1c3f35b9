"""The options of the tool `mcp`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class McpOptions:
    """One of `command` and `url` is given."""

    command: list[str] = field(default_factory=list)
    """A program and its arguments: a server that speaks on its standard streams, started and ended with the run."""
    env: list[str] = field(default_factory=list)
    """Names of environment variables that the program is given, beside PATH, HOME and the like. No value is stored."""
    url: str | None = None
    """A server that is there already (streamable HTTP)."""
    key_env: str | None = None
    """Environment variable that holds the server's key, sent as `Authorization: Bearer`."""
    only: list[str] = field(default_factory=list)
    """Names of the tools to take; none named: all that the server has."""
    prefix: str = ""
    """What the names of the tools begin with as agents see them, where those of two servers are alike."""
    connect_s: float = 30.0
    """Seconds in which a connection must stand."""
