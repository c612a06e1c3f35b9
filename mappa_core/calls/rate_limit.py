"""Concurrency and rate limits of calls."""

from __future__ import annotations

import asyncio
from collections import deque

from aiolimiter import AsyncLimiter

from mappa_core.errors import CallError


class ConcurrencyLimiter:
    """Adaptive limit of concurrent calls, first come, first served: additive increase and multiplicative decrease, with
    the memory of TCP's congestion window (RFC 5681, RFC 9438). The limit is halved when the provider reports overload,
    once for all calls of one `generation`, those in flight together. It grows by one per call up to 95 % of the limit
    that was too high (at least one below it), from there by one per round of as many calls as slots, or by 5 %."""

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._limit = self._known_good = float(max_calls)
        self._in_use = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.generation = 0

    @property
    def limit(self) -> int:
        return int(self._limit)

    async def acquire(self) -> None:
        """Wait for a slot. The caller must release it."""
        # Tasks wait only while all slots are in use, so no waiter is overtaken here.
        if self._in_use < self.limit:
            self._in_use += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # The slot was assigned at the same moment: without this it would never be used again.
            if not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        self._in_use -= 1
        self._wake_waiters()

    def record_success(self) -> None:
        if self._limit < self._known_good:
            self._limit = min(self._known_good, self._limit + 1.0)
        else:
            # In a round of as many calls, 1 / limit adds up to one, and 0.05 to 5 % of the limit: more, above 20.
            self._limit = min(self._max_calls, self._limit + max(1.0 / self._limit, 0.05))
        self._wake_waiters()

    def record_overload(self, generation: int) -> None:
        """Record that a call sent in `generation` was refused for overload."""
        # Calls in flight together meet the same overload; halved for each of them, the limit would be 1 at once.
        if generation == self.generation:
            self.generation += 1
            self._known_good = min(0.95 * self._limit, self._limit - 1.0)
            self._limit = max(1.0, self._limit / 2.0)

    def _wake_waiters(self) -> None:
        while self._waiters and self._in_use < self.limit:
            turn = self._waiters.popleft()
            if not turn.done():  # Else it was cancelled while it waited.
                # Counted here and not when it wakes: a call that comes in between must not take the slot.
                self._in_use += 1
                turn.set_result(None)


class RateLimiter:
    """Leaky buckets of requests and tokens per minute (a minute's worth may burst), and the pause that the provider
    asked for. aiolimiter cannot return capacity, so tokens beyond a call's `estimate` are a debt of the next calls. It
    refuses amounts above a bucket's size, so a larger call leaves the rest as debt, too. It lets small amounts overtake
    large ones, so only one call waits at a time."""

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        self._requests = None if requests_per_minute is None else AsyncLimiter(requests_per_minute, 60.0)
        self._tokens = None if tokens_per_minute is None else AsyncLimiter(tokens_per_minute, 60.0)
        self._order_lock = asyncio.Lock()
        self._token_debt = 0.0
        self._paused_until = 0.0
        self.paused_by: CallError | None = None

    async def acquire(self, estimate: float) -> None:
        """Wait until a request of about `estimate` tokens may be sent."""
        if self._requests is None and self._tokens is None:
            return
        async with self._order_lock:
            if self._requests is not None:
                await self._requests.acquire()
            if self._tokens is not None:
                # Negative debt is credit: an estimate was too high. The bucket takes no negative amount.
                amount = min(max(0.0, self._token_debt + estimate), self._tokens.max_rate)
                await self._tokens.acquire(amount)
                # Added and not set, as calls that were answered during the wait have corrected it.
                self._token_debt += estimate - amount

    def correct_estimate(self, estimate: float, used: float) -> None:
        self._token_debt += used - estimate

    def pause(self, fault: CallError, now: float) -> None:
        """Pause all calls for the `retry_after_s` of `fault`."""
        assert fault.retry_after_s is not None
        # Of several pauses the one that ends last counts.
        if now + fault.retry_after_s > self._paused_until:
            self._paused_until = now + fault.retry_after_s
            self.paused_by = fault

    def pause_left_s(self, now: float) -> float:
        """Return the seconds left of the pause; 0 or less if there is none."""
        return self._paused_until - now
