"""Several servers as one: each takes a number of programs at once, those that fail are left alone and tried again."""

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
    """Every server failed, by its address."""

    def __init__(self, faults: Mapping[str, ServerFault]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults.values()))


@dataclass(eq=False)
class _Member:
    url: str
    busy: int = 0
    """Programs under way there."""
    fault: ServerFault | None = None
    """Why it is left alone; None where it takes programs."""


@dataclass(eq=False)
class _Waiting:
    turn: asyncio.Future[_Member]
    preferred: str | None
    failed: dict[str, ServerFault] = field(default_factory=dict)
    """Servers that failed a probe since this one began to wait."""


class Pool:
    """Lends servers to programs, in the order in which they ask.

    A server that failed is left alone for `backoff_s`; then it is probed, and left alone for twice as long, up to
    `max_backoff_s`, each time that this fails. All times are seconds of the event loop's clock.
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
        """`probe` finds out whether the server of an address can run programs. Raises ServerFault where it cannot."""
        self._members = [_Member(url) for url in urls]
        self._concurrency = concurrency
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._probe = probe
        self._line: deque[_Waiting] = deque()
        self._revivals: set[asyncio.Task[None]] = set()

    @property
    def up(self) -> tuple[str, ...]:
        """Addresses of the servers that take programs."""
        return tuple(member.url for member in self._members if member.fault is None)

    @asynccontextmanager
    async def server(self, preferred: str | None = None) -> AsyncIterator[str]:
        """The address of a server for one program: `preferred` where it has room, else the one with the fewest under
        way. A ServerFault that leaves the context is the end of its turn for a while.

        Raises:
            NoServer: none takes programs, and each failed a probe while this one waited.
        """
        member = await self._turn(preferred)
        try:
            yield member.url
        except ServerFault as fault:
            self.failed(member.url, fault)
            raise
        finally:
            member.busy -= 1
            self._serve()

    def failed(self, url: str, fault: ServerFault) -> None:
        """Leave the server at `url` alone for a while."""
        member = next(one for one in self._members if one.url == url)
        if member.fault is None:
            member.fault = fault
            log.warning("sandboxfusion.down", url=url, reason=fault.reason)
            revival = asyncio.create_task(self._revive(member))
            self._revivals.add(revival)
            revival.add_done_callback(self._revivals.discard)

    async def close(self) -> None:
        """Probe no more."""
        for revival in tuple(self._revivals):
            revival.cancel()
        await asyncio.gather(*self._revivals, return_exceptions=True)

    async def _turn(self, preferred: str | None) -> _Member:
        waiting = _Waiting(asyncio.get_running_loop().create_future(), preferred)
        self._line.append(waiting)
        self._serve()
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled() and waiting.turn.exception() is None:
                waiting.turn.result().busy -= 1  # its turn came as it was cancelled
                self._serve()
            raise
        finally:
            if waiting in self._line:
                self._line.remove(waiting)

    def _serve(self) -> None:
        while self._line and (member := self._room(self._line[0].preferred)) is not None:
            waiting = self._line.popleft()
            if not waiting.turn.done():
                member.busy += 1
                waiting.turn.set_result(member)

    def _room(self, preferred: str | None) -> _Member | None:
        free = [one for one in self._members if one.fault is None and one.busy < self._concurrency]
        return min(free, key=lambda one: (one.url != preferred, one.busy), default=None)

    async def _revive(self, member: _Member) -> None:
        rest_s = self._backoff_s
        while True:
            await asyncio.sleep(rest_s)
            try:
                await self._probe(member.url)
            except ServerFault as fault:
                member.fault = fault
                self._report(fault)
                rest_s = min(2 * rest_s, self._max_backoff_s)
            else:
                member.fault = None
                log.warning("sandboxfusion.up", url=member.url)
                self._serve()
                return

    def _report(self, fault: ServerFault) -> None:
        """Tell all who wait; those for whom this was the last server wait no longer."""
        for waiting in self._line:
            waiting.failed[fault.url] = fault
            if not self.up and len(waiting.failed) == len(self._members) and not waiting.turn.done():
                waiting.turn.set_exception(NoServer(waiting.failed))
