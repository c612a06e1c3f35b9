"""Single-flight calls: concurrent tasks with equal keys share one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Calls in flight, by key. A call runs as long as any task waits for it, and is cancelled with the last waiter."""

    def __init__(self) -> None:
        self._under_way: dict[str, _Call[T]] = {}

    async def call(self, key: str, start: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, bool]:
        """Return the result of the call under `key`, and whether another waiter got it first; or raise its error."""
        call = self._under_way.get(key)
        if call is None:
            call = self._under_way[key] = _Call(asyncio.create_task(start()))
        call.waiting += 1
        try:
            # Shielded: a waiter that is cancelled must not take the call from the others.
            result = await asyncio.shield(call.task)
            was_given, call.given = call.given, True
            return result, was_given
        finally:
            call.waiting -= 1
            if not call.waiting:
                # Later tasks start a call of their own: this one is over, or will be.
                del self._under_way[key]
                call.task.cancel()


@dataclass(slots=True)
class _Call(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0
    given: bool = False
