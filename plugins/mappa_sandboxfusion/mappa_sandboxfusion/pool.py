"""A pool of servers: limits the programs per server, and backs off from servers that fail."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from mappa_core import ToolError
from mappa_sandboxfusion.client import ServerFault

log = structlog.get_logger()


class NoServer(ToolError):
    """Every server failed; holds the fault of each, by address."""

    def __init__(self, faults: Mapping[str, ServerFault]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults.values()))


@dataclass(eq=False)
class _Member:
    url: str
    busy: int = 0
    """Programs running there."""
    fault: ServerFault | None = None
    """Why it gets no programs; None where it is available."""


@dataclass(eq=False)
class _WaitingProgram:
    turn: asyncio.Future[_Member]
    preferred: str | None
    failed: dict[str, ServerFault] = field(default_factory=dict)
    """Servers that failed a probe since this program began to wait."""


class ServerPool:
    """Assigns servers to programs, first come, first served.

    A server that failed gets no programs for `backoff_s`; then it is probed, and the time doubles, up to
    `max_backoff_s`, with each probe that fails. All times are seconds of the event loop's clock.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        concurrency: int,
        backoff_s: float,
        max_backoff_s: float,
        probe: Callable[[str], Awaitable[None]],
    ) -> None:
        """`probe` checks whether the server at an address can run programs; it raises ServerFault where it cannot."""
        self._members = [_Member(url) for url in urls]
        self._concurrency = concurrency
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._probe = probe
        self._queue: deque[_WaitingProgram] = deque()
        self._revivals: set[asyncio.Task[None]] = set()

    @property
    def available(self) -> tuple[str, ...]:
        """Addresses of the servers that accept programs."""
        return tuple(member.url for member in self._members if member.fault is None)

    @asynccontextmanager
    async def server(self, preferred: str | None = None) -> AsyncIterator[str]:
        """Yield the address of a server for one program: `preferred` where it is free, else the least busy one. A
        ServerFault that leaves the context puts the server into back-off.

        Raises:
            NoServer: no server accepts programs, and each failed a probe while this program waited.
        """
        member = await self._wait_for_turn(preferred)
        try:
            yield member.url
        except ServerFault as fault:
            self.mark_failed(member.url, fault)
            raise
        finally:
            member.busy -= 1
            self._assign()

    def mark_failed(self, url: str, fault: ServerFault) -> None:
        """Put the server at `url` into back-off."""
        member = next(member for member in self._members if member.url == url)
        if member.fault is None:
            member.fault = fault
            log.warning("sandboxfusion.down", url=url, reason=fault.reason)
            revival = asyncio.create_task(self._revive(member))
            self._revivals.add(revival)  # the event loop alone would not keep it from being collected
            revival.add_done_callback(self._revivals.discard)

    async def close(self) -> None:
        """Stop all probes."""
        for revival in tuple(self._revivals):
            revival.cancel()
        await asyncio.gather(*self._revivals, return_exceptions=True)

    async def _wait_for_turn(self, preferred: str | None) -> _Member:
        waiting = _WaitingProgram(asyncio.get_running_loop().create_future(), preferred)
        self._queue.append(waiting)
        self._assign()
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled() and waiting.turn.exception() is None:
                waiting.turn.result().busy -= 1  # its turn came as it was cancelled
                self._assign()
            raise
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)

    def _assign(self) -> None:
        while self._queue and (member := self._free_member(self._queue[0].preferred)) is not None:
            waiting = self._queue.popleft()
            if not waiting.turn.done():
                member.busy += 1  # here and not by the program, which runs later: the next one must not see it free
                waiting.turn.set_result(member)

    def _free_member(self, preferred: str | None) -> _Member | None:
        free = [member for member in self._members if member.fault is None and member.busy < self._concurrency]
        return min(free, key=lambda member: (member.url != preferred, member.busy), default=None)

    async def _revive(self, member: _Member) -> None:
        rest_s = self._backoff_s
        while True:
            await asyncio.sleep(rest_s)
            try:
                await self._probe(member.url)
            except ServerFault as fault:
                member.fault = fault
                self._notify_waiting(fault)
                rest_s = min(2 * rest_s, self._max_backoff_s)
            else:
                member.fault = None
                log.warning("sandboxfusion.up", url=member.url)
                self._assign()
                return

    def _notify_waiting(self, fault: ServerFault) -> None:
        """Record the fault for all waiting programs; fail those for which it was the last server."""
        for waiting in self._queue:
            waiting.failed[fault.url] = fault
            if not self.available and len(waiting.failed) == len(self._members) and not waiting.turn.done():
                waiting.turn.set_exception(NoServer(waiting.failed))
