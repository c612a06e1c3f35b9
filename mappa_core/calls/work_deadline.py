"""A deadline that stands still while a call waits for its turn: for a slot, a rate limit, a pause of the provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar


class _Clock:
    def __init__(self, deadline: asyncio.Timeout, seconds: float) -> None:
        self._deadline = deadline
        self._seconds = seconds
        self._waiting = 0
        self._left_s = 0.0

    def count_waiting(self, change: int) -> None:
        """Add `change` to the number of waiting calls; the clock stands still while there are any."""
        now = asyncio.get_running_loop().time()
        waited_before = self._waiting > 0
        self._waiting += change
        # The deadline may have passed, or its work may be over while others go on with the call that they share.
        with suppress(RuntimeError):
            when = self._deadline.when()
            if not waited_before and when is not None:
                self._left_s = when - now
                self._deadline.reschedule(None)
            elif self._waiting == 0:
                self._deadline.reschedule(now + self._left_s)

    def restart(self) -> None:
        """Give the work its whole time again; a deadline that has passed stays so."""
        self._left_s = self._seconds
        if not self._waiting:
            with suppress(RuntimeError):
                self._deadline.reschedule(asyncio.get_running_loop().time() + self._seconds)


_clock: ContextVar[_Clock | None] = ContextVar("clock", default=None)


@asynccontextmanager
async def work_deadline(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError after `seconds`, without those in which a call inside the context waited for its turn."""
    async with asyncio.timeout(seconds) as deadline:
        token = _clock.set(_Clock(deadline, seconds))
        try:
            yield
        finally:
            _clock.reset(token)


@contextmanager
def waiting_for_turn() -> Iterator[None]:
    """Stop the clock of the work that this is part of, if it has one."""
    clock = _clock.get()
    if clock is None:
        yield
        return
    clock.count_waiting(1)
    try:
        yield
    finally:
        clock.count_waiting(-1)


def restart_deadline() -> None:
    """Give the work that this is part of, if it has a deadline, its whole time again: for work of several questions to
    a model, of which each has the time of one."""
    clock = _clock.get()
    if clock is not None:
        clock.restart()
