"""Options of the tool `mcp`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class McpOptions:
    """Exactly one of `command` and `url` is set."""

    command: list[str] = field(default_factory=list)
    """A program and its arguments: a server on standard input and output, started and ended with the run."""
    env: list[str] = field(default_factory=list)
    """Names of environment variables passed to the program, beside PATH, HOME and the like. No value is stored."""
    url: str | None = None
    """URL of a running server (streamable HTTP)."""
    key_env: str | None = None
    """Environment variable with the server's key, sent as `Authorization: Bearer`."""
    only: list[str] = field(default_factory=list)
    """Names of the tools to offer; empty: all tools of the server."""
    prefix: str = ""
    """Prefix of the tools' names for agents, to tell apart two servers with equal names."""
    connect_s: float = 30.0
    """Seconds until connecting times out."""
