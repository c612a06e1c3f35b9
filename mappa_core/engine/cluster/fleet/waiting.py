"""Waiting in an event loop for what other threads finish, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any


async def settled(futures: Sequence[Future[Any]], deadline_s: float) -> None:
    """Wait until all are done, or one failed. Raises TimeoutError after `deadline_s` seconds.

    None is cancelled, whatever ends the wait: what they stand for goes on elsewhere.
    """
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # nobody waits any more and the loop is closed
            loop.call_soon_threadsafe(changed.set)

    for future in futures:
        future.add_done_callback(tell)
    until = time.monotonic() + deadline_s
    while not all(future.done() for future in futures):
        if any(future.done() and future.exception() for future in futures):
            return
        changed.clear()
        # Between the look above and clear() a future may have ended.
        if all(future.done() for future in futures):
            return
        async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
            await changed.wait()
