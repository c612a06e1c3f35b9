"""Asking once for what several ask for at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Calls under way, by key. A call belongs to all who wait for it: it goes on while one of them waits, and is
    cancelled with the last."""

    def __init__(self) -> None:
        self._under_way: dict[str, _Call[T]] = {}

    async def call(self, key: str, start: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, bool]:
        """What the call under `key` gives, and whether somebody else was given it before. What it raises, all get."""
        call = self._under_way.get(key)
        if call is None:
            call = self._under_way[key] = _Call(asyncio.create_task(start()))
        call.waiting += 1
        try:
            result = await asyncio.shield(call.task)
            given, call.given = call.given, True
            return result, given
        finally:
            call.waiting -= 1
            if not call.waiting:
                # Who asks from now on begins a call of its own: this one is over, or will be.
                del self._under_way[key]
                call.task.cancel()


@dataclass(slots=True)
class _Call(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0
    given: bool = False
