"""Spend of a run, and its cap: what a call may cost at most is reserved before it is sent, and settled after it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from mappa_core.calls.work_deadline import waiting_for_turn
from mappa_core.errors import CallError
from mappa_core.records import Usage

_enforced: ContextVar[Ledger | None] = ContextVar("ledger", default=None)
_HEADROOM = 2.0
"""Calls are sent together only if all of them may cost so many times their bounds, as each may exceed its own."""
_ROUNDING = 1e-9
"""Share of the cap by which a sum of floats may miss it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBound:
    """US dollars of one call: `most` is an upper bound, `likely` what a call that is alone is held to."""

    most: float
    likely: float


class Reservation:
    """What one piece of work under way may cost. It is settled once; what comes after does nothing, so that a `finally`
    can settle whatever nothing else did."""

    def __init__(self, ledger: Ledger, payer: _Payer, bound: CostBound | None) -> None:
        self._ledger = ledger
        self._payer = payer
        self._bound = bound
        self._is_open = True
        payer.begin(self._units)

    @property
    def _units(self) -> float:
        return 1.0 if self._bound is None else self._bound.most

    def settle(self, *usages: Usage) -> None:
        """Replace it by what the work cost, which nobody was billed for if there are no `usages`."""
        if not self._is_open:
            return
        self._payer.learn(sum(usage.usd or 0.0 for usage in usages), self._bound)
        for usage in usages:
            if usage.usd is None and self._bound is not None:
                self._ledger._add_uncertain(self._units * self._payer.factor, answered=True)
            else:
                self._ledger.add(usage)
        self._close()

    def release(self) -> None:
        """Give all of it back: nothing was billed, and nothing is learned of what such work costs."""
        if self._is_open:
            self._close()

    def settle_unknown(self) -> None:
        """Count all of it as spent: the call failed, and nobody knows whether it was billed."""
        if not self._is_open:
            return
        # Without a bound the price is unknown, so that no cap is kept.
        if self._bound is not None:
            self._ledger._add_uncertain(self._units * self._payer.factor, answered=False)
        self._close()

    def _close(self) -> None:
        self._is_open = False
        self._payer.end(self._units)
        self._ledger._admit_waiting()


class Ledger:
    """Sums the cost of coaches and of policies behind an API in US dollars, and keeps their cap. A resumed run adds its
    previous spend; reservations are those of this process.

    A call is sent beside others if twice the upper bounds of all of them fit under the cap (in a batch, where each wait
    is long: if the bounds fit), and otherwise alone, if what it will likely cost fits. Until the first call of a payer
    is settled, it has no other under way. A call that is billed above its bound raises all bounds of its payer by as
    much. So the cap is passed by no more than the error of one call's estimate, unless a call beside others costs
    more than twice its bound, raised as it is."""

    def __init__(self, cap_usd: float | None) -> None:
        self._cap = cap_usd
        self._priced_usd = 0.0
        self._max_call_usd: float | None = None
        self._unpriced_calls = 0
        self._has_unpriced_reply = False
        self._uncertain_calls = 0
        self._uncertain_usd = 0.0
        self._payers: dict[str, _Payer] = {}
        self._waiting: deque[_Waiting] = deque()
        self._has_refused = False

    def add(self, usage: Usage | None) -> None:
        """Add what was spent already; None: no provider was called."""
        if usage is None:
            return
        calls = max(1, usage.calls)  # A call for several verdicts is counted once, with one of them.
        if usage.usd is None:
            self._unpriced_calls += calls
            return
        self._priced_usd += usage.usd
        self._max_call_usd = max(self._max_call_usd or 0.0, usage.usd / calls)

    @property
    def total_usd(self) -> float | None:
        """US dollars so far, without `uncertain_usd`; None once the cost of any reply is unknown."""
        return None if self._unpriced_calls or self._has_unpriced_reply else self._priced_usd

    @property
    def uncertain_calls(self) -> int:
        """Calls that were sent and whose bill is unknown: they failed, or their reply does not say what they took."""
        return self._uncertain_calls

    @property
    def uncertain_usd(self) -> float:
        """The most that `uncertain_calls` cost; all of it counts as spent."""
        return self._uncertain_usd

    @property
    def left_usd(self) -> float | None:
        """US dollars left of the cap, at most 0 once it is reached; None without a cap. An earlier call of unknown cost
        counts as much as the most expensive known call."""
        if self._cap is None:
            return None
        unpriced_usd = self._unpriced_calls * (self._max_call_usd or 0.0)
        return self._cap - (self._priced_usd + self._uncertain_usd + unpriced_usd)

    def check(self) -> None:
        """Raise CallError `spend` if the cap is reached, had no room for a call, or cannot be enforced because no cost
        is known at all."""
        self._check_known()
        left = self.left_usd
        if left is not None and self._cap is not None and (left <= _ROUNDING * self._cap or self._has_refused):
            raise self._refusal()

    async def reserve(self, payer: str, bound: CostBound | None = None, *, in_batch: bool = False) -> Reservation:
        """Reserve what a call of `payer` may cost; wait while calls are under way that may leave enough. Without a
        `bound` it is taken to cost as much as the dearest one of its payer before. Calls `in_batch` are sent together
        from the first on. Raises CallError `spend` if the cap has no room for it."""
        if self._cap is None:
            return self.hold(payer, bound)
        turn: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(self._payer(payer, bound), bound, in_batch, turn))
        self._admit_waiting()
        try:
            with waiting_for_turn():
                return await turn
        except asyncio.CancelledError:
            # It was made at the same moment: without this it would be held for ever.
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                turn.result().release()
            raise

    def hold(self, payer: str, bound: CostBound | None = None) -> Reservation:
        """Reserve whatever is left: for a call that was sent already, such as one in a batch of an earlier process."""
        return Reservation(self, self._payer(payer, bound), bound)

    @contextmanager
    def enforce_cap(self) -> Iterator[None]:
        """Inside the context, calls to providers reserve what they cost from this ledger."""
        with _ledger_of_calls(self):
            yield

    def _payer(self, name: str, bound: CostBound | None) -> _Payer:
        return self._payers.setdefault(name, _Payer(has_bounds=bound is not None))

    def _add_uncertain(self, usd: float, *, answered: bool) -> None:
        self._uncertain_calls += 1
        self._uncertain_usd += usd
        self._has_unpriced_reply |= answered

    @property
    def _is_idle(self) -> bool:
        return not any(payer.under_way for payer in self._payers.values())

    def _admit_waiting(self) -> None:
        """Give reservations to those that wait, in their order. Nobody overtakes a call that waits for money, or a
        large one would wait for ever; those that wait for the first call of their payer do not hold up others."""
        for waiting in tuple(self._waiting):
            if waiting.turn.done():  # Cancelled.
                self._waiting.remove(waiting)
            elif waiting.in_batch or waiting.payer.is_known or not waiting.payer.under_way:
                if self._fits(waiting):
                    self._waiting.remove(waiting)
                    waiting.turn.set_result(Reservation(self, waiting.payer, waiting.bound))
                elif self._is_idle:
                    self._waiting.remove(waiting)
                    waiting.turn.set_exception(self._refusal())
                else:
                    return

    def _fits(self, waiting: _Waiting) -> bool:
        left = self.left_usd
        assert left is not None and self._cap is not None
        if self._unpriced_calls and self._max_call_usd is None:
            return False
        payer, bound = waiting.payer, waiting.bound or CostBound(most=1.0, likely=1.0)
        most, likely = bound.most * payer.factor, bound.likely * payer.factor
        if waiting.bound is None and not payer.is_known:
            most = likely = self._max_call_usd or 0.0
        elif most == 0.0:
            return True
        rounding = _ROUNDING * self._cap
        if left <= rounding:
            return False
        left += rounding
        held = sum(other.units * other.factor for other in self._payers.values())
        headroom = 1.0 if waiting.in_batch else _HEADROOM
        return headroom * (held + most) <= left or (self._is_idle and likely <= left)

    def _check_known(self) -> None:
        if self._cap is not None and self._unpriced_calls and self._max_call_usd is None:
            unknown = "what the calls took is not known, as their provider does not say it"
            advice = "Leave coach.spend_usd out, or price.cached if cached tokens are all that is missing"
            raise CallError("spend", f"coach.spend_usd={self._cap:g} cannot be kept: {unknown}. {advice}")

    def _refusal(self) -> CallError:
        try:
            self._check_known()
        except CallError as unknown:
            return unknown
        self._has_refused = True
        left = self.left_usd
        # The same text for all calls that meet it: reasons are counted by their text.
        assert left is not None and self._cap is not None
        why = "" if left <= _ROUNDING * self._cap else ": a call may cost more than is left"
        if self._unpriced_calls:
            why += ", with every call of unknown cost taken for the dearest"
        if self._uncertain_calls:
            why += ", with what calls of unknown bill may have cost"
        return CallError("spend", f"coach.spend_usd={self._cap:g} is reached{why}")


async def reserve_cost(
    payer: str, bound: CostBound | None, *, is_sent: bool = False, in_batch: bool = False
) -> Reservation:
    """Reserve from the ledger that work under way is held to (`Ledger.enforce_cap`), if any; of a call that `is_sent`
    already in any case. Raises CallError like `Ledger.reserve`."""
    ledger = _enforced.get() or Ledger(None)
    if is_sent:
        return ledger.hold(payer, bound)
    return await ledger.reserve(payer, bound, in_batch=in_batch)


@contextmanager
def no_cap() -> Iterator[None]:
    """Inside the context, calls reserve nothing: work around them did."""
    with _ledger_of_calls(None):
        yield


@contextmanager
def _ledger_of_calls(ledger: Ledger | None) -> Iterator[None]:
    token = _enforced.set(ledger)
    try:
        yield
    finally:
        _enforced.reset(token)


class _Payer:
    """Whose calls cost money, such as the client of one provider: what those under way may cost, in units of which each
    costs `factor` US dollars at most. Of calls with a bound the units are its dollars, and the factor is above 1 once
    one cost more; a call without one is a unit, and the factor the price of the dearest so far."""

    def __init__(self, *, has_bounds: bool) -> None:
        self.units = 0.0
        self.under_way = 0
        self.factor = 1.0 if has_bounds else 0.0
        self.is_known = False
        """Whether what a call cost is known to lie within its bound, or how far above it."""

    def begin(self, units: float) -> None:
        self.units += units
        self.under_way += 1

    def end(self, units: float) -> None:
        self.under_way -= 1
        # Exactly 0 with the last one: floats that are subtracted in another order than they were added leave a rest.
        self.units = self.units - units if self.under_way else 0.0

    def learn(self, usd: float, bound: CostBound | None) -> None:
        self.is_known = True
        units = 1.0 if bound is None else bound.most
        if units > 0.0:
            self.factor = max(self.factor, usd / units)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    payer: _Payer
    bound: CostBound | None
    in_batch: bool
    turn: asyncio.Future[Reservation]
