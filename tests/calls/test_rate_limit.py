"""Never more at once than there are slots, none is lost, nobody is overtaken; buckets let through what they say."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core.calls.rate_limit import ConcurrencyLimiter, RateLimiter
from mappa_core.transport import CallError


@dataclass(frozen=True)
class Call:
    """Someone who comes after `pause` seconds, stays for `takes`, and is given up after `patience` in all."""

    pause: float
    takes: float
    patience: float
    end: str


tenths = st.integers(0, 30).map(lambda number: number / 10)
calls = st.builds(Call, tenths, tenths, tenths.map(lambda s: s + 0.05), st.sampled_from(["well", "too much", "raise"]))


@settings(deadline=None)
@given(st.lists(calls, max_size=40), st.integers(1, 6))
def test_calls_never_exceed_the_slots_and_no_slot_is_lost(travel, calls, most):
    slots = ConcurrencyLimiter(most)
    under_way: set[int] = set()
    came: list[int] = []
    began: list[int] = []
    given_up: set[int] = set()

    async def make(number: int, call: Call) -> None:
        await asyncio.sleep(call.pause)
        came.append(number)
        await slots.acquire()
        try:
            began.append(number)
            under_way.add(number)
            assert len(under_way) <= most
            generation = slots.generation
            await asyncio.sleep(call.takes)
            if call.end == "raise":
                raise LookupError
            if call.end == "too much":
                slots.record_overload(generation)
            else:
                slots.record_success()
        finally:
            under_way.discard(number)
            slots.release()

    async def all_calls() -> None:
        tasks = [asyncio.create_task(make(number, call)) for number, call in enumerate(calls)]
        loop = asyncio.get_running_loop()
        for number, (task, call) in enumerate(zip(tasks, calls, strict=True)):
            loop.call_later(call.pause + call.patience, lambda n=number, t=task: t.cancel() and given_up.add(n))
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ended} <= {type(None), LookupError, asyncio.CancelledError}
        for _ in range(slots.limit):
            await asyncio.wait_for(slots.acquire(), 1)  # every slot is back
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slots.acquire(), 1)  # and no slot more

    travel(all_calls())
    began_of_all = [number for number in came if number in set(began)]
    assert began == began_of_all  # first come, first served
    assert set(came) - set(began) <= given_up


def test_slot_handed_to_a_cancelled_call_goes_to_the_next_call(travel):
    async def main():
        slots = ConcurrencyLimiter(1)
        await slots.acquire()
        first, second = (asyncio.create_task(slots.acquire()) for _ in range(2))
        await asyncio.sleep(0)
        slots.release()
        first.cancel()
        await asyncio.wait_for(second, 1)
        with pytest.raises(asyncio.CancelledError):
            await first

    travel(main())


def test_slots_are_halved_once_for_all_calls_that_were_under_way_together():
    slots = ConcurrencyLimiter(64)
    for _ in range(64):
        slots.record_overload(0)
    assert slots.limit == 32
    slots.record_overload(slots.generation)
    assert slots.limit == 16
    for _ in range(10):
        slots.record_overload(slots.generation)
    assert slots.limit == 1


def test_no_call_begins_after_a_cut_until_enough_calls_have_ended(travel):
    async def main():
        slots = ConcurrencyLimiter(8)
        for _ in range(8):
            await slots.acquire()
        waiting = [asyncio.create_task(slots.acquire()) for _ in range(3)]
        slots.record_overload(0)
        begun = []
        for _ in range(7):
            slots.release()
            await asyncio.sleep(0)
            begun.append(sum(task.done() for task in waiting))
        return begun

    # 8 under way, 4 slots: the first begins when the fifth ends.
    assert travel(main()) == [0, 0, 0, 0, 1, 2, 3]


async def test_slots_grow_fast_up_to_the_last_overload_and_slowly_beyond():
    slots = ConcurrencyLimiter(100)
    slots.record_overload(0)
    limits = []
    for _ in range(60):
        slots._in_use += 1
        slots.record_success()
        slots.release()
        limits.append(slots.limit)
    # 50, one more with each call up to 95, then 1/95 + 1/95.01 + … a call.
    assert limits[:45] == list(range(51, 96))
    assert limits[45:] == [95] * 15
    for _ in range(600):
        slots.record_success()
    assert slots.limit == 100


def test_refusals_by_chance_cost_few_slots():
    slots, limits = ConcurrencyLimiter(64), []
    for number in range(1, 10_001):
        if number % 100:
            slots.record_success()
        else:
            slots.record_overload(slots.generation)
        limits.append(slots.limit)
    # Of 64 to 32, back to 60.8 in 29 calls, and to 64 in another 64: then comes the next one.
    assert sum(limits) / len(limits) > 0.85 * 64


async def passing(pace: RateLimiter, estimates: list[float]) -> list[float]:
    """When each of the calls, which all come at once, may go."""
    loop = asyncio.get_running_loop()

    async def one(estimate: float) -> float:
        await pace.acquire(estimate)
        return loop.time()

    return await asyncio.gather(*(one(estimate) for estimate in estimates))


def test_requests_of_one_minute_start_at_once_and_later_requests_evenly(travel):
    times = travel(passing(RateLimiter(30, None), [0] * 34))
    assert times == pytest.approx([0.0] * 30 + [2.0, 4.0, 6.0, 8.0], abs=1e-6)


def test_a_large_call_is_not_overtaken_by_small_ones(travel):
    # 600 a minute, 10 a second: 600 at once; 300 wait for 30 s, then 10 for 1 s.
    times = travel(passing(RateLimiter(None, 600), [600, 300, 10, 10]))
    assert times == pytest.approx([0.0, 30.0, 31.0, 32.0], abs=1e-6)


def test_call_larger_than_the_bucket_delays_the_calls_after_it(travel):
    # The second takes the full bucket when it is empty, at 60 s, and leaves 300 to the third: 30 s, and its own 1 s.
    times = travel(passing(RateLimiter(None, 600), [600, 900, 10]))
    assert times == pytest.approx([0.0, 60.0, 91.0], abs=1e-6)


def test_tokens_beyond_the_estimate_delay_later_calls(travel):
    async def main():
        pace = RateLimiter(None, 600)
        await pace.acquire(400)
        pace.correct_estimate(400, 500)
        await pace.acquire(100)  # 100 + 100 owed: full
        pace.correct_estimate(100, 90)
        await pace.acquire(110)  # 10 less
        return asyncio.get_running_loop().time()

    assert travel(main()) == pytest.approx(10.0)


def test_cancelled_call_takes_no_tokens_from_the_bucket(travel):
    async def main():
        pace = RateLimiter(60, 600)
        await passing(pace, [600])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pace.acquire(300), 10)
        await pace.acquire(200)
        return asyncio.get_running_loop().time()

    assert travel(main()) == pytest.approx(20.0)


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.integers(100, 1000))
def test_tokens_never_run_ahead_of_the_bucket(travel, estimates, per_minute):
    times = travel(passing(RateLimiter(None, per_minute), estimates))
    assert times == sorted(times)
    gone = 0.0
    for time, estimate in zip(times, estimates, strict=True):
        gone += min(estimate, per_minute)
        assert gone <= per_minute * (1 + time / 60) + 1e-6
    # Nor do they wait longer than they must: the last one goes when all of them fit.
    assert times[-1] <= max(0.0, sum(estimates) / per_minute - 1) * 60 + 1e-6


def test_the_longest_hold_counts():
    pace = RateLimiter(None, None)
    first, second = CallError("rate_limit", "a", retry_after_s=10.0), CallError("overloaded", "b", retry_after_s=3.0)
    pace.pause(first, 100.0)
    pace.pause(second, 101.0)
    assert (pace.pause_left_s(102.0), pace.paused_by) == (8.0, first)
    assert pace.pause_left_s(110.0) <= 0.0
