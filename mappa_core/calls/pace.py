"""How many calls at once, and how many a minute."""

from __future__ import annotations

import asyncio
from collections import deque

from aiolimiter import AsyncLimiter

from mappa_core.errors import CallError


class Slots:
    """Most calls at once, as many as the provider takes; first come, first served.

    Their number is halved when the provider says that it is too much: once for all calls of one `generation`, those
    that were under way together. It grows by one a call up to 95 % of where it was too much (and one below), and from
    there by one a round, as many calls as there are slots, or by 5 % where that is more. So refusals by chance cost
    little, and a limit of the provider is found again soon and overstepped seldom: additive increase and multiplicative
    decrease, with the memory of TCP's congestion window (RFC 5681, RFC 9438).
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = self._known_good = float(most)
        self._taken = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self.generation = 0

    @property
    def limit(self) -> int:
        """Slots there are now, 1 or more."""
        return int(self._limit)

    async def take(self) -> None:
        """Wait in line for a slot. Whoever got one gives it back."""
        # Somebody waits only while all slots are taken, so nobody is overtaken here.
        if self._taken < self.limit:
            self._taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the slot was handed over in the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """Leave a slot to the next in line."""
        self._taken -= 1
        self._hand_out()

    def went_well(self) -> None:
        """A call was answered."""
        if self._limit < self._known_good:
            self._limit = min(self._known_good, self._limit + 1.0)
        else:
            self._limit = min(self._most, self._limit + max(1.0 / self._limit, 0.05))
        self._hand_out()

    def too_much(self, generation: int) -> None:
        """A call that went out in `generation` was refused as one too many."""
        if generation == self.generation:
            self.generation += 1
            self._known_good = min(0.95 * self._limit, self._limit - 1.0)
            self._limit = max(1.0, self._limit / 2.0)

    def _hand_out(self) -> None:
        while self._line and self._taken < self.limit:
            turn = self._line.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)


class Pace:
    """Requests and tokens a minute, in buckets: a minute's worth may go at once, then as many as leak out; and the
    time for which the provider asked to be left alone.

    aiolimiter takes nothing back, so a call waits for its `estimate` of tokens, and what it took beyond is paid by the
    calls after it. It refuses more than a bucket holds, so a call that is larger waits for a full bucket and leaves the
    rest to those after it, too. And it lets small amounts overtake large ones, so one call waits there at a time.
    """

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        self._requests = None if requests_per_minute is None else AsyncLimiter(requests_per_minute, 60.0)
        self._tokens = None if tokens_per_minute is None else AsyncLimiter(tokens_per_minute, 60.0)
        self._turn = asyncio.Lock()
        self._owed = 0.0
        self._held_until = 0.0
        self.held_by: CallError | None = None
        """Who made everyone wait."""

    async def take(self, estimate: float) -> None:
        """Wait until another request, of about `estimate` tokens, may go."""
        if self._requests is None and self._tokens is None:
            return
        async with self._turn:
            if self._requests is not None:
                await self._requests.acquire()
            if self._tokens is not None:
                amount = min(max(0.0, self._owed + estimate), self._tokens.max_rate)
                await self._tokens.acquire(amount)
                self._owed += estimate - amount

    def put_right(self, estimate: float, used: float) -> None:
        """A request took `used` tokens."""
        self._owed += used - estimate

    def hold(self, fault: CallError, now: float) -> None:
        """Nobody may go before the `retry_after_s` of `fault` has passed."""
        assert fault.retry_after_s is not None
        if now + fault.retry_after_s > self._held_until:
            self._held_until = now + fault.retry_after_s
            self.held_by = fault

    def held_s(self, now: float) -> float:
        """Seconds for which nobody may go; 0 or less: at once."""
        return self._held_until - now
