"""Money that was reserved before it was spent: caps at one call at a time and at many, and prices above every bound."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core import Message, Usage
from mappa_core.calls.client import ProviderClient
from mappa_core.calls.options import CallLimits, Price
from mappa_core.calls.spend_ledger import CostBound, Ledger
from mappa_core.transport import CallError, Request

PRICE = Price(input=1.0, output=1.0)  # a dollar per million tokens
AT_ONCE = (1, 8, 64)


def dollars(usd: float) -> Usage:
    return Usage(calls=1, prompt_tokens=0, completion_tokens=round(usd * 1e6), cached_tokens=0)


def request(most_usd: float) -> Request:
    """A request whose upper bound is a little more than `most_usd`."""
    return Request(messages=(Message(role="user", content="x"),), max_tokens=round(most_usd * 1e6))


class Paid:
    """A transport that takes what the next of `prices` says, in dollars, or fails with what stands there."""

    model, host = "m", "example.org"

    def __init__(self, answer, prices) -> None:
        self._answer = answer
        self._prices = prices
        self._random = Random(7)
        self.spent = 0.0
        self.calls = 0
        self.under_way = self.most_at_once = 0

    async def complete(self, asked: Request):
        price = self._prices[self.calls % len(self._prices)]
        self.calls += 1
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            await asyncio.sleep(self._random.uniform(0.5, 2.0))
        finally:
            self.under_way -= 1
        if isinstance(price, CallError):
            raise price
        self.spent += price
        return self._answer(usage=dollars(price))

    async def count(self, messages):
        return None

    async def close(self) -> None:
        pass


async def spend(ledger: Ledger, transport: Paid, most_usd: float, calls: int = 200, **limits) -> list[str]:
    client = ProviderClient(lambda: transport, name="p", limits=CallLimits(**{"attempts": 1, **limits}), price=PRICE)

    async def one() -> str:
        with ledger.enforce_cap():
            try:
                return (await client.complete(request(most_usd))).text
            except CallError as fault:
                return fault.kind

    return await asyncio.gather(*(one() for _ in range(calls)))


@pytest.mark.parametrize("concurrency", AT_ONCE)
def test_calls_of_two_dollars_stop_below_a_cap_of_five(travel, answer, concurrency):
    ledger, transport = Ledger(5.0), Paid(answer, [2.0])
    kinds = travel(spend(ledger, transport, 2.0, calls=80, concurrency=concurrency))
    assert transport.spent == 4.0
    assert kinds.count("spend") == 78


@pytest.mark.parametrize("concurrency", AT_ONCE)
@pytest.mark.parametrize("bound", [0.001, 0.5, 1.9])
def test_prices_above_every_bound_pass_the_cap_by_one_error_at_most(travel, answer, concurrency, bound):
    """The first call shows by how much they are above it, before a second one is sent."""
    ledger, transport = Ledger(5.0), Paid(answer, [2.0])
    travel(spend(ledger, transport, bound, calls=80, concurrency=concurrency))
    assert transport.spent == 4.0


@pytest.mark.parametrize("concurrency", AT_ONCE)
def test_a_first_call_above_the_cap_is_the_last(travel, answer, concurrency):
    ledger, transport = Ledger(5.0), Paid(answer, [7.0])
    travel(spend(ledger, transport, 3.0, calls=80, concurrency=concurrency))
    assert (transport.calls, transport.spent) == (1, 7.0)  # 4 above its bound, and 2 above the cap


@pytest.mark.parametrize("concurrency", AT_ONCE)
@pytest.mark.parametrize("seed", range(5))
def test_prices_within_their_bounds_never_pass_the_cap_and_use_most_of_it(travel, answer, concurrency, seed):
    random = Random(seed)
    ledger, transport = Ledger(5.0), Paid(answer, [random.uniform(0.02, 0.2) for _ in range(97)])
    travel(spend(ledger, transport, 0.2, concurrency=concurrency))
    assert 4.7 <= transport.spent <= 5.0
    assert transport.most_at_once <= concurrency
    assert ledger.total_usd == pytest.approx(transport.spent)
    assert concurrency == 1 or transport.most_at_once > 4


def test_each_attempt_is_reserved_and_refused_calls_are_free(travel, answer):
    busy = CallError("rate_limit", "later")
    ledger, transport = Ledger(1.0), Paid(answer, [busy, busy, 0.4])
    assert travel(spend(ledger, transport, 0.4, calls=2, attempts=4, concurrency=1)) == ["yes", "yes"]
    assert (ledger.total_usd, ledger.uncertain_calls) == (pytest.approx(0.8), 0)


@pytest.mark.parametrize("kind", ["timeout", "server", "connection", "garbled"])
def test_a_failure_of_unknown_bill_counts_as_spent_in_full(travel, answer, kind):
    ledger, transport = Ledger(1.0), Paid(answer, [0.3, CallError(kind, "no")])
    kinds = travel(spend(ledger, transport, 0.3, calls=9, concurrency=1))
    # 0.3 are known, 0.3 reserved, 0.3 known: nothing is left for a fourth.
    assert kinds == ["yes", kind, "yes"] + ["spend"] * 6
    assert ledger.uncertain_calls == 1
    assert ledger.uncertain_usd == pytest.approx(0.3, rel=1e-3)
    assert ledger.total_usd == pytest.approx(0.6)
    with pytest.raises(CallError, match="with what calls of unknown bill may have cost"):
        ledger.check()


def test_a_call_that_did_not_reach_the_provider_is_free(travel, answer):
    ledger, transport = Ledger(1.0), Paid(answer, [CallError("connection", "refused", free=True)])
    travel(spend(ledger, transport, 0.9, calls=9, breaker_failures=100))
    assert (ledger.total_usd, ledger.left_usd, ledger.uncertain_calls) == (0.0, 1.0, 0)


def test_a_call_that_is_cancelled_may_have_been_billed_and_one_that_waits_was_not(travel, answer):
    ledger = Ledger(1.0)
    client = ProviderClient(lambda: Paid(answer, [0.5]), name="p", limits=CallLimits(), price=PRICE)

    async def main():
        with ledger.enforce_cap():
            calls = [asyncio.create_task(client.complete(request(0.5))) for _ in range(3)]
        await asyncio.sleep(0.1)  # The first is sent, and the others wait for what it shows.
        for call in calls:
            call.cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    assert all(isinstance(found, asyncio.CancelledError) for found in travel(main()))
    assert ledger.uncertain_calls == 1
    assert ledger.left_usd == pytest.approx(0.5, rel=1e-3)


def test_a_reply_that_does_not_say_what_it_took_counts_as_its_bound(travel, answer):
    ledger, transport = Ledger(1.0), Paid(answer, [0.3])
    transport._answer = lambda usage: answer(usage=None)
    assert travel(spend(ledger, transport, 0.3, calls=9)).count("yes") == 3
    assert ledger.total_usd is None and ledger.uncertain_calls == 3


def test_a_large_call_is_not_overtaken_for_ever(travel):
    """Of 20 dollars 9 are under way, in calls of one; one of 5 waits for them, and others of one wait behind it."""
    order: list[float] = []

    async def main():
        ledger = Ledger(20.0)
        (await ledger.reserve("p", CostBound(most=0.0, likely=0.0))).settle(Usage(calls=1, usd=0.0))

        async def one(usd: float) -> None:
            reservation = await ledger.reserve("p", CostBound(most=usd, likely=usd))
            order.append(usd)
            await asyncio.sleep(1.0)
            reservation.settle(Usage(calls=1, usd=0.0))

        await asyncio.gather(*(one(usd) for usd in [1.0] * 9 + [5.0] + [1.0] * 3))

    travel(main())
    assert order == [1.0] * 9 + [5.0] + [1.0] * 3


def test_work_without_a_bound_is_taken_for_the_dearest_before(travel):
    """Verdicts of a coach that calls its provider itself: 2 dollars each, which only they say."""

    async def main():
        ledger = Ledger(5.0)

        async def one() -> bool:
            try:
                reservation = await ledger.reserve("coach")
            except CallError:
                return False
            await asyncio.sleep(1.0)
            reservation.settle(Usage(calls=1, usd=2.0))
            return True

        return ledger, await asyncio.gather(*(one() for _ in range(64)))

    ledger, given = travel(main())
    assert (ledger.total_usd, sum(given)) == (4.0, 2)


def test_a_call_that_was_sent_before_is_held_whatever_is_left():
    ledger = Ledger(1.0)
    reservation = ledger.hold("p", CostBound(most=3.0, likely=1.0))
    reservation.settle(Usage(calls=1, usd=2.0))
    reservation.settle(Usage(calls=1, usd=2.0))  # Only once.
    assert ledger.total_usd == 2.0 and ledger.left_usd == -1.0


PRICES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30)


@pytest.mark.parametrize("concurrency", AT_ONCE)
@pytest.mark.parametrize("seed", range(20))
def test_prices_up_to_half_above_their_bounds_pass_the_cap_by_one_error_at_most(travel, answer, concurrency, seed):
    random = Random(seed)
    ledger, transport = Ledger(5.0), Paid(answer, [random.uniform(0.05, 0.15) for _ in range(97)])
    travel(spend(ledger, transport, 0.1, concurrency=concurrency))
    assert 4.7 <= transport.spent <= 5.0 + 0.05


@settings(deadline=None, max_examples=60)
@given(prices=PRICES, cap=st.floats(0.1, 8.0), concurrency=st.sampled_from(AT_ONCE), bound=st.floats(0.05, 1.0))
def test_no_price_passes_the_cap_by_more_than_one_error(travel, prices, cap, concurrency, bound):
    """Whatever the prices. Beside others, an error is what a call costs above twice its bound, raised as it is by then;
    alone, what it costs above its bound."""

    async def main():
        ledger, sent = Ledger(cap), asyncio.Semaphore(concurrency)
        errors, alone, worst = [0.0], [0.0], 1.0

        async def one(price: float) -> None:
            nonlocal worst
            async with sent:
                try:
                    reservation = await ledger.reserve("p", CostBound(most=bound, likely=bound))
                except CallError:
                    return
                held = worst
                await asyncio.sleep(price)
                errors.append(max(0.0, price - (1 if concurrency == 1 else 2) * held * bound))
                alone.append(max(0.0, price - held * bound))
                worst = max(worst, price / bound)
                reservation.settle(Usage(calls=1, usd=price))

        await asyncio.gather(*map(one, prices))
        return ledger.total_usd, max(alone) + (0.0 if concurrency == 1 else sum(errors))

    total, error = travel(main())
    assert total <= cap * (1 + 1e-6) + error
