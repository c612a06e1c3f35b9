"""Retry with exponential backoff when the machinery of a tool fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

import structlog

from mappa_core.errors import ToolError

T = TypeVar("T")

RETRY_AFTER_S = 0.5
"""Wait before the first retry of a run's tool."""
log = structlog.get_logger()

RETRY_AFTER_S = 0.5
"""Seconds before a tool that failed is retried for the first time."""


async def retry(
    attempt: Callable[[], Awaitable[T]], *, retries: int, label: str, wait_s: float = RETRY_AFTER_S
) -> tuple[T, int]:
    """Return the result of `attempt`, and the number of attempts. After a ToolError it is retried at most `retries`
    times, first after `wait_s` seconds, then after twice as long each time. `label` names it in the log."""
    for number in count(1):
        try:
            return await attempt(), number
        except ToolError as error:
            if retries == 0:
                raise
            if number > retries:
                raise ToolError(f"{error} (in {number} attempts)") from error
            log.warning("tool.retried", of=label, attempt=number, error=str(error))
            await asyncio.sleep(wait_s * 2 ** (number - 1))
    raise AssertionError("count does not end")
