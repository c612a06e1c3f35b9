"""A connection to an MCP server: opened at its first use, and reopened after it broke."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import IO, Any

import httpx2
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from mappa_core import ConfigError, ToolError
from mappa_core.redaction import keep_secret, redact
from mappa_core.sandbox import cut_middle
from mappa_core.transport import bounded_hooks
from mappa_mcp.options import McpOptions

READ_TIMEOUT_S = 300.0
"""Seconds that an HTTP stream of a server may be silent; calls have their own limit."""
STDERR_TAIL_CHARACTERS = 1000
"""Maximum characters of a server's standard error, or of an error, in a message."""

ClientFactory = Callable[[], AbstractAsyncContextManager[Client]]


class Connection:
    """A shared connection for the calls of many trajectories. A dedicated task holds it, as the SDK requires that a
    connection is closed by the task that opened it.

    Args:
        open_client: opens a connection, in the task that closes it.
        name: name of the server, for messages.
        connect_s: seconds until connecting times out.
    """

    def __init__(self, open_client: ClientFactory, *, name: str, connect_s: float) -> None:
        self.name = name
        self._open_client = open_client
        self._connect_s = connect_s
        self._lock = asyncio.Lock()
        self._held: tuple[Client, asyncio.Event, asyncio.Task[None]] | None = None

    async def client(self) -> Client:
        """Return the client of the connection, which is opened if needed.

        Raises:
            ToolError: the connection cannot be opened.
        """
        async with self._lock:
            if self._held is None:
                self._held = await self._connect()
            return self._held[0]

    async def drop(self, client: Client) -> None:
        """Drop the broken connection of `client`: the next call opens another."""
        async with self._lock:
            if self._held is not None and self._held[0] is client:
                await self._disconnect()

    async def close(self) -> None:
        """Close the connection, and end the server if it was started here."""
        async with self._lock:
            if self._held is not None:
                await self._disconnect()

    async def _connect(self) -> tuple[Client, asyncio.Event, asyncio.Task[None]]:
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        closing = asyncio.Event()
        holder = asyncio.create_task(self._hold(ready, closing))
        try:
            async with asyncio.timeout(self._connect_s):
                await asyncio.wait((ready, holder), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            await _cancel(holder)
            raise ToolError(f"{self.name}: no connection within {self._connect_s:g} s (connect_s)") from None
        except asyncio.CancelledError:
            holder.cancel()
            raise
        if not ready.done():
            error = holder.exception()
            raise ToolError(f"{self.name}: no connection: {describe_error(error)}") from error
        return ready.result(), closing, holder

    async def _hold(self, ready: asyncio.Future[Client], closing: asyncio.Event) -> None:
        async with self._open_client() as client:
            ready.set_result(client)
            await closing.wait()

    async def _disconnect(self) -> None:
        assert self._held is not None  # callers check this
        (_, closing, holder), self._held = self._held, None
        closing.set()
        # Errors while closing a broken or unused connection do not matter.
        with suppress(Exception):
            await holder


def build_connection(options: McpOptions) -> Connection:
    """Build the connection described by `options`. Raises ConfigError if they are invalid."""
    if bool(options.command) == (options.url is not None):
        raise ConfigError("the tool mcp takes one of command (a program and its arguments) and url")
    if options.url is not None:
        if not options.url.startswith(("http://", "https://")):
            raise ConfigError(f"the tool mcp takes a url that begins with http:// or https://, not {options.url!r}")
        if options.key_env is not None and not os.environ.get(options.key_env):
            raise ConfigError(
                f"{options.key_env} is not set or empty: the MCP server {options.url} needs its key there"
            )
        url, key_env = options.url, options.key_env
        return Connection(lambda: _over_http(url, key_env), name=f"MCP server {url}", connect_s=options.connect_s)
    program = options.command[0]
    if shutil.which(program) is None:
        raise ConfigError(f"the tool mcp: there is no program {program!r}: install it, or give its path in command")
    if missing := [name for name in options.env if name not in os.environ]:
        raise ConfigError(
            f"the tool mcp: env: {', '.join(missing)} is not set in this environment: set it, or leave it out"
        )
    environment = {name: _read_secret(name) for name in options.env}
    server = StdioServerParameters(command=program, args=list(options.command[1:]), env=environment)
    return Connection(lambda: _over_stdio(server), name=f"MCP server {program!r}", connect_s=options.connect_s)


def _read_secret(name: str) -> str:
    """Read an environment variable, whose value is masked from now on in all that is written."""
    keep_secret(name, os.environ[name])
    return os.environ[name]


def describe_error(error: BaseException | None) -> str:
    """Describe an error in one line; of a group, its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is None:
        return "it ended at once"
    return cut_middle(redact(" ".join(f"{type(error).__name__}: {error}".split())), STDERR_TAIL_CHARACTERS)


@asynccontextmanager
async def _over_http(url: str, key_env: str | None) -> AsyncIterator[Client]:
    headers = {} if key_env is None else {"Authorization": f"Bearer {_read_secret(key_env)}"}
    timeout = httpx2.Timeout(30.0, read=READ_TIMEOUT_S)
    refused: list[int] = []

    async def note(response: httpx2.Response) -> None:
        if response.is_error:
            refused.append(response.status_code)

    hooks = bounded_hooks()
    hooks["response"].insert(0, note)
    try:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            yield client
    except Exception as error:
        status = f" (its last answer had the status {refused[-1]})" if refused else ""
        raise ToolError(f"{describe_error(error)}{status}") from error


@asynccontextmanager
async def _over_stdio(server: StdioServerParameters) -> AsyncIterator[Client]:
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as errors:
        try:
            async with Client(stdio_client(server, errlog=errors)) as client:
                yield client
        except Exception as error:
            raise ToolError(f"{describe_error(error)}; its standard error ends: {_tail(errors)}") from error


def _tail(errors: IO[Any]) -> str:
    errors.seek(0)
    return cut_middle(redact(str(errors.read()).strip()), STDERR_TAIL_CHARACTERS) or "(nothing)"


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))
