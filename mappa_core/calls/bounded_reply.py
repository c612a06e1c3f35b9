"""Bounds on what a server may send, for clients on httpx2 and on aiohttp: bytes that arrive, and nothing compressed, as
a few of its bytes can become gigabytes before anybody counts them. The time is bounded by who waits for the reply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mappa_core.calls.errors import fault_from_status
from mappa_core.errors import CallError

if TYPE_CHECKING:
    import aiohttp
    import httpx2

REPLY_BYTES = 21 * 2**19
"""Of one reply: ten times the longest that a model writes. Its text and what is parsed of it take as much again."""
WIDE = 4
"""Bytes of a character in memory where one of a text has a code above U+FFFF: a reply that is not of ASCII alone counts
so many times, as does one whose JSON has half of such a character (`\\ud83d`)."""
ERROR_BYTES = 2**20
UNCOMPRESSED: Mapping[str, str] = {"accept-encoding": "identity"}
"""Headers of a client whose replies are bounded."""

_max_bytes: ContextVar[int] = ContextVar("max_bytes", default=REPLY_BYTES)


@contextmanager
def reply_bytes(limit: int) -> Iterator[None]:
    """Inside the context, replies may have `limit` bytes, and at least what they may have elsewhere."""
    token = _max_bytes.set(max(limit, REPLY_BYTES))
    try:
        yield
    finally:
        _max_bytes.reset(token)


class ByteCounter:
    """Counts the bytes of one reply. Raises CallError for one that is compressed or too large: `garbled`, or the fault
    of its status if that is an error."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self._fault = fault_from_status(status)
        self._limit = _max_bytes.get() if status < 300 else ERROR_BYTES
        self._count = 0
        self._width = 1
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise CallError("garbled", f"the reply (status {status}) is compressed, which was not asked for")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._limit:
            raise self._too_large()

    def add(self, chunk: bytes) -> bytes:
        self._count += len(chunk)
        if not chunk.isascii() or b"\\ud" in chunk or b"\\uD" in chunk:
            self._width = WIDE
        if self._count * self._width > self._limit:
            raise self._too_large()
        return chunk

    def _too_large(self) -> CallError:
        return CallError(
            self._fault,
            f"the reply has more than {self._limit} bytes (one that is not of ASCII alone, {self._limit // WIDE})",
        )


def bounded_hooks() -> dict[str, list[Any]]:
    """Return `event_hooks` of an httpx2 client that bound all its replies, streams too. Errors that they raise inside
    of an SDK are often the `__cause__` of its own."""
    import httpx2

    class Counted(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream, counter: ByteCounter) -> None:
            self._stream = stream
            self._counter = counter

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self._stream:
                yield self._counter.add(chunk)

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def ask_for_plain(request: httpx2.Request) -> None:
        request.headers.update(UNCOMPRESSED)

    async def bound(response: httpx2.Response) -> None:
        stream: Any = response.stream
        response.stream = Counted(stream, ByteCounter(response.status_code, response.headers))

    return {"request": [ask_for_plain], "response": [bound]}


def bound_response(response: aiohttp.ClientResponse) -> None:
    """Bound a response of an aiohttp session, of which nothing has been read."""
    content: Any = _CountedContent(response.content, ByteCounter(response.status, response.headers))
    response.content = content


class _CountedContent:
    """The part of aiohttp's StreamReader that reads a response."""

    def __init__(self, content: aiohttp.StreamReader, counter: ByteCounter) -> None:
        self._content = content
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def read(self, n: int = -1) -> bytes:
        if n >= 0:
            return self._counter.add(await self._content.read(n))
        chunks = [self._counter.add(chunk) async for chunk in self._content.iter_any()]
        return b"".join(chunks)


def bound_fault(error: BaseException) -> CallError | None:
    """Return the fault that a bound raised, if `error` is one or was raised from one."""
    return next((cause for cause in causes(error) if isinstance(cause, CallError)), None)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and what it was raised from, the outermost first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
