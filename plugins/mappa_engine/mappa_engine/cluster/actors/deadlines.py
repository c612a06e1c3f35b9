"""Waits in an event loop with deadlines that count only time in which the loop ran.

A driver that computes, or is suspended, takes no answers meanwhile: they may have come long ago. So a stall of the
loop, however long, counts as at most `TICK_S`, and an answer that is there ends a wait whatever the time is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
TICK_S = 1.0
"""Most seconds that a wait counts at a time."""


class RunningTime:
    """Seconds in which the event loop ran, as seen by the one wait that uses it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def wait(self, event: asyncio.Event, limit_s: float) -> None:
        """Wait until `event` is set, `limit_s` seconds at most, and never longer than `TICK_S`."""
        loop, step_s = asyncio.get_running_loop(), max(0.0, min(limit_s, TICK_S))
        begun = loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(step_s):
                await event.wait()
        self.seconds += min(loop.time() - begun, step_s)


async def wait_all(futures: Sequence[Future[Any]], deadline_s: float) -> None:
    """Wait until all futures are done, or one failed. Raises TimeoutError after `deadline_s` seconds.

    No future is cancelled, whatever ends the wait: their work goes on elsewhere.
    """
    loop, changed, running = asyncio.get_running_loop(), asyncio.Event(), RunningTime()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the waiter is gone and its loop closed
            loop.call_soon_threadsafe(changed.set)

    for future in futures:
        future.add_done_callback(tell)
    while True:
        changed.clear()
        if all(future.done() for future in futures) or any(future.done() and future.exception() for future in futures):
            return
        if running.seconds >= deadline_s:
            raise TimeoutError
        await running.wait(changed, deadline_s - running.seconds)


async def run_by_deadline(
    work: Coroutine[Any, Any, T], deadline_s: float, *, exempt: Callable[[], bool] = lambda: False
) -> T:
    """Run `work` to its end; cancel it and raise TimeoutError after `deadline_s` seconds. Those at whose end it is
    `exempt`, in a part of the work that has a deadline of its own, do not count."""
    ended, running = asyncio.Event(), RunningTime()
    task = asyncio.create_task(work)
    task.add_done_callback(lambda _: ended.set())
    try:
        while not task.done() and running.seconds < deadline_s:
            counted = running.seconds
            await running.wait(ended, TICK_S if exempt() else deadline_s - counted)
            if exempt():
                running.seconds = counted
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
