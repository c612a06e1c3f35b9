"""Waits in an event loop for futures of other threads, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any


async def wait_all(futures: Sequence[Future[Any]], deadline_s: float) -> None:
    """Wait until all futures are done, or one failed. Raises TimeoutError after `deadline_s` seconds.

    No future is cancelled, whatever ends the wait: their work goes on elsewhere.
    """
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the waiter is gone and its loop closed
            loop.call_soon_threadsafe(changed.set)

    for future in futures:
        future.add_done_callback(tell)
    until = time.monotonic() + deadline_s
    while not all(future.done() for future in futures):
        if any(future.done() and future.exception() for future in futures):
            return
        changed.clear()
        # A future may have ended between the check above and clear().
        if all(future.done() for future in futures):
            return
        async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
            await changed.wait()
