"""For authors of transports: SDK clients bound to one event loop and isolated from environment variables."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

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
            (client, _), self._open = self._open, None
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
