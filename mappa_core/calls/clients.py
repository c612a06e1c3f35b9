"""For authors of transports: the client of an official SDK, bound to one event loop and kept from the environment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Client = TypeVar("Client")


class LoopBound(Generic[Client]):
    """A client that is made at its first use and belongs to the event loop of that use until it is closed; then it is
    made anew. The connections of SDKs fail in many ways in a second loop: here one error says what is wrong."""

    def __init__(self, connect: Callable[[], Client], close: Callable[[Client], Awaitable[None]]) -> None:
        """`connect` makes a client, inside of its event loop; `close` releases the connections of one."""
        self._connect = connect
        self._close = close
        self._open: tuple[Client, asyncio.AbstractEventLoop] | None = None

    def get(self) -> Client:
        """The client, made now where there is none.

        Raises:
            RuntimeError: it is open in another event loop, or there is no event loop.
        """
        loop = asyncio.get_running_loop()
        if self._open is None:
            self._open = self._connect(), loop
        client, home = self._open
        if home is not loop:
            raise RuntimeError("this transport is open in another event loop: close it there, or build a second one")
        return client

    async def close(self) -> None:
        """Release the connections of the client, where there is one."""
        if self._open is not None:
            (client, _), self._open = self._open, None
            await self._close(client)


@contextmanager
def environment_without(*variables: str) -> Iterator[None]:
    """Hide environment variables that an SDK obeys whatever it is told. They are hidden from the whole process: only
    make the client inside, and await nothing there."""
    hidden = {name: os.environ.pop(name) for name in variables if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
