"""Transports that break or hang: they are closed and built anew, and the run hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import structlog

from mappa_core.calls.bounded_reply import causes
from mappa_core.errors import CallError, MappaError, Terminated
from mappa_core.protocols import Reply, Request, Transport
from mappa_core.records import Message
from mappa_core.redaction import describe_error

T = TypeVar("T")
log = structlog.get_logger()

MAX_RESTARTS = 3
"""Restarts of a transport without a reply between them; after that it stays, as another would not help."""
CANCEL_S = 5.0
"""Seconds in which a call has to end that was cancelled. A transport that needs longer hangs."""
CLOSE_S = 5.0
"""Seconds that a transport has to close."""

_record: ContextVar[Callable[[str, str], None] | None] = ContextVar("record", default=None)


@contextmanager
def record_losses(record: Callable[[str, str], None]) -> Iterator[None]:
    """Inside the context, `record` is called with the provider and the reason of every transport that is lost."""
    token = _record.set(record)
    try:
        yield
    finally:
        _record.reset(token)


def report_loss(provider: str, reason: str) -> None:
    """Report that the transport of `provider` was lost and is replaced: to the log, and to the run if there is one."""
    log.warning("transport.restarts", provider=provider, reason=reason)
    if (record := _record.get()) is not None:
        record(provider, reason)


async def close_transport(transport: Transport, provider: str) -> None:
    """Close a transport. One that fails to, or takes longer than `CLOSE_S`, is left: whatever it did is done."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await transport.close()
    except Exception as error:  # noqa: BLE001 - the boundary of transports
        log.warning("transport.not_closed", provider=provider, reason=_describe(error))


async def ask_reconnecting(transport: Transport, ask: Callable[[], Awaitable[T]], *, provider: str) -> T:
    """Return what `ask` returns, which asks a transport that connects again after it was closed. It is closed after
    what is no MappaError, `MAX_RESTARTS` times; then that is raised. For questions that may be asked again."""
    restarts = 0
    while True:
        try:
            return await ask()
        except MappaError:
            raise
        except Exception as error:
            if restarts == MAX_RESTARTS:
                raise
            restarts += 1
            report_loss(provider, _describe(error))
            await close_transport(transport, provider)


class RestartedTransport:
    """The transport of a provider, and those that replace it. It is lost once it raises what is no MappaError, or does
    not end a call that was cancelled: nobody knows what it left half done. The calls that come then go through a new
    one; calls that are under way end on the old one, which then is closed."""

    def __init__(self, first: Transport, build: Callable[[], Transport], *, provider: str) -> None:
        self._build = build
        self._provider = provider
        self._current = _Used(first)
        self._restarts = 0  # since the last reply
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def model(self) -> str:
        return self._current.transport.model

    @property
    def host(self) -> str:
        return self._current.transport.host

    async def complete(self, request: Request, seconds: float) -> Reply:
        """Make one call. Raises CallError: `timeout` if it takes longer, `connection` if the transport is lost."""
        return await self._ask(lambda transport: transport.complete(request), seconds)

    async def count(self, messages: Sequence[Message], seconds: float) -> int | None:
        """Count tokens. Raises like `complete`."""
        return await self._ask(lambda transport: transport.count(messages), seconds)

    def restart(self, reason: str) -> None:
        """Replace the transport for the calls to come, though it raised nothing that says that it is lost."""
        self._replace(self._current, reason)

    async def close(self) -> None:
        await asyncio.gather(*self._closing, close_transport(self._current.transport, self._provider))

    async def _ask(self, question: Callable[[Transport], Awaitable[T]], seconds: float) -> T:
        used = self._current
        # In a task of its own, which can be left behind: a wait for a transport that hangs would hang, too.
        task = asyncio.create_task(_contained(question, used.transport))
        # Asked for, as asyncio logs what nobody does: of a call whose caller is gone, too.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        used.calls += 1
        try:
            is_late = await _end(task, seconds)
        finally:
            used.calls -= 1
            if not task.done():
                self._replace(used, f"it did not end a call within {CANCEL_S:g} s of its being cancelled")
            self._close_if_unused(used)
        if not task.done() or (is_late and task.cancelled()):
            raise CallError("timeout", f"no reply within {seconds:g} s")
        error = asyncio.CancelledError("by itself") if task.cancelled() else task.exception()
        if error is None:
            if used is self._current:
                self._restarts = 0
            return task.result()
        if isinstance(error, MappaError):
            # A fault of the call, or one of the run that no other transport would mend, as a full disk.
            raise error
        reason = _describe(error)
        self._replace(used, reason)
        # Of a new exception without a context: that of a client may hold the request's headers.
        raise CallError("connection", f"the client of {self._provider} broke: {reason}")

    def _replace(self, used: _Used, reason: str) -> None:
        # Calls that are under way on one transport fail together: it is lost once.
        if used is not self._current or self._restarts == MAX_RESTARTS:
            return
        self._current = _Used(self._build())
        self._restarts += 1
        report_loss(self._provider, reason)
        self._close_if_unused(used)

    def _close_if_unused(self, used: _Used) -> None:
        if used is not self._current and not used.calls and not used.is_closed:
            used.is_closed = True
            task = asyncio.create_task(close_transport(used.transport, self._provider))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _describe(error: BaseException) -> str:
    """Describe what an exception was raised from in the first place: an SDK's own says less."""
    *_, root = causes(error)
    return describe_error(root, MappaError, OSError)


class _Used:
    """A transport, and how many calls are under way on it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.calls = 0
        self.is_closed = False


async def _contained(question: Callable[[Transport], Awaitable[T]], transport: Transport) -> T:
    try:
        return await question(transport)
    except Terminated:
        raise
    except SystemExit as left:
        # In a task it would end the event loop, and with it the run.
        raise RuntimeError("it called exit") from left


async def _end(task: asyncio.Task[T], seconds: float) -> bool:
    """Wait for a task, cancel it after `seconds` or with the caller, and return whether it was late. It may not end."""
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        is_late = not task.done()
        if is_late:
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_S)
    return is_late
