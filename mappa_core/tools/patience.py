"""Another try where the machinery of a tool failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

import structlog

from mappa_core.errors import ToolError

T = TypeVar("T")
log = structlog.get_logger()


async def patiently(attempt: Callable[[], Awaitable[T]], *, retries: int, wait_s: float, whose: str) -> tuple[T, int]:
    """What `attempt` gives, and how often it was made: again after a ToolError, at most `retries` times, the first time
    after `wait_s` seconds, and after twice as long every time. `whose` names it in the log.

    Raises:
        ToolError: it failed every time.
    """
    for number in count(1):
        try:
            return await attempt(), number
        except ToolError as error:
            if retries == 0:
                raise
            if number > retries:
                raise ToolError(f"{error} (in {number} attempts)") from error
            log.warning("tool.retried", of=whose, attempt=number, error=str(error))
            await asyncio.sleep(wait_s * 2 ** (number - 1))
    raise AssertionError("count does not end")
