"""For authors of transports: what every transport on a provider's SDK or HTTP client does alike."""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from mappa_core.calls.bounded_reply import bound_fault, causes
from mappa_core.calls.errors import ErrorParser, one_line, retry_after
from mappa_core.calls.secret import Secret
from mappa_core.errors import CallError, ConfigError
from mappa_core.protocols import Reply, Request
from mappa_core.records import Message

UNSENT = (ConnectionRefusedError, socket.gaierror)
"""Why there was no connection on which anything could be sent: nobody listens there, or the name leads nowhere."""

ClientT = TypeVar("ClientT")


class LoopBound(Generic[ClientT]):
    """A client that is created at its first use and bound to that event loop until it is closed. SDK connections fail
    in obscure ways in a second event loop: here one error says what is wrong."""

    def __init__(self, connect: Callable[[], ClientT], close: Callable[[ClientT], Awaitable[None]]) -> None:
        """`connect` creates a client, inside its event loop; `close` releases the connections of a client."""
        self._connect = connect
        self._close = close
        self._open: tuple[ClientT, asyncio.AbstractEventLoop] | None = None

    def get(self) -> ClientT:
        """Return the client, created if there is none. Raises RuntimeError outside of its event loop, or of any."""
        loop = asyncio.get_running_loop()
        if self._open is None:
            self._open = self._connect(), loop
        client, home = self._open
        if home is not loop:
            raise RuntimeError("this transport is open in another event loop: close it there, or build a second one")
        return client

    async def close(self) -> None:
        """Release the connections of the client, if there is one."""
        if self._open is not None:
            client, _ = self._open
            # Before the await: a call that comes meanwhile opens a new client, and not one that is being closed.
            self._open = None
            await self._close(client)


@contextmanager
def hidden_environment(*variables: str) -> Iterator[None]:
    """Hide environment variables that an SDK reads even if it is given explicit arguments, from the whole process: only
    create the client inside, and await nothing there."""
    hidden = {name: os.environ.pop(name) for name in variables if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


class SdkTransport(ABC, Generic[ClientT]):
    """Base of transports: one client per event loop, and faults and replies that do not show the key. A subclass opens
    and closes the client, sends through `_send`, and says which fault each exception is."""

    COUNT_TIMEOUT_S = 60.0
    """Timeout of the token counter, which gets no request with one."""

    def __init__(self, *, model: str, url: str, secret: Secret | None, parse_error: ErrorParser | None = None) -> None:
        """`url` is where the API begins; `secret` is None for a server that needs no key."""
        self.model: Final = model
        self.host: Final = urlsplit(url).netloc
        self._key = secret
        self._parse_error = parse_error or ErrorParser()
        self._client = LoopBound(self._connect, self._disconnect)

    @abstractmethod
    async def complete(self, request: Request) -> Reply: ...

    async def count(self, messages: Sequence[Message]) -> int | None:
        return None

    async def close(self) -> None:
        await self._client.close()

    @abstractmethod
    def _connect(self) -> ClientT:
        """Open a client, without retries, redirects and settings from the environment."""

    @abstractmethod
    async def _disconnect(self, client: ClientT) -> None:
        """Release the connections of `client`."""

    @abstractmethod
    def _fault(self, error: Exception) -> CallError | None:
        """Return the fault of an exception of the client, or of TimeoutError; None: a bug, which is raised as it is."""

    @property
    def _secret(self) -> Secret | None:
        """The secret to mask: the key, unless a subclass sends something else."""
        return self._key

    async def _send(self, call: Awaitable[Any], seconds: float) -> Any:
        """Await `call` for so many seconds, the whole reply included: the timeout of a client may be of each read."""
        try:
            async with asyncio.timeout(seconds):
                return await call
        except Exception as error:
            fault = bound_fault(error) or self._fault(error)
            if fault is None:
                raise
            fault.free |= any(isinstance(cause, UNSENT) for cause in causes(error))
        # Raised outside of the except block: the client's error holds the request's headers and must not be chained.
        raise fault

    def _status_fault(self, status: int, headers: Mapping[str, str], body: str) -> CallError:
        fault, message = self._parse_error(status, body)
        return CallError(fault, self._hide(message), retry_after_s=retry_after(headers))

    def _reveal(self, default: str = "") -> str:
        """Return the key, for the client alone; `default` for a server that needs none."""
        return default if self._key is None else self._key.reveal()

    def _hide(self, text: str) -> str:
        """Return `text` as one line without the secret, for messages."""
        return one_line(text) if self._secret is None else self._secret.hide(text)

    def _scrub(self, body: str) -> str:
        """Return the body of a response without the secret, otherwise unchanged."""
        return body if self._secret is None else self._secret.scrub(body)


def check_base_url(transport: str, url: str, *, path: str = "") -> None:
    """Raise ConfigError unless the option `base_url` of a transport is a URL of HTTP without user and password; `path`
    is the one that it should end with."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigError(f"{transport}: base_url: must be http(s)://HOST{path}, with no name or password in it")
