"""Calls of a provider that fails in every way, on a clock that nobody waits for."""

import asyncio
import itertools
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core import ConfigError
from mappa_core.calls.client import OUTAGES, RETRYABLE, THROTTLING, ProviderClient
from mappa_core.calls.options import CallLimits, Price
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.calls.work_deadline import work_deadline
from mappa_core.transport import CallError, CallFault, Provider, Reply

FAULTS: tuple[CallFault, ...] = get_args(CallFault)


class Longest(Random):
    """Draws the longest wait every time, so that it can be computed by hand."""

    def uniform(self, a, b):
        return b


def caller_of(transport, price=None, **limits) -> ProviderClient:
    return ProviderClient(lambda: transport, name="gemini", limits=CallLimits(**limits), price=price, random=Longest())


def about(*seconds: float):
    return pytest.approx(list(seconds), abs=1e-6)


async def outcome(call) -> str | CallError:
    try:
        return (await call).text
    except CallError as fault:
        return fault


def test_waiting_calls_are_not_sent_once_the_spending_cap_is_reached(travel, scripted, answer, ask):
    caller, ledger = (
        caller_of(scripted(answer(), latency=1.0), Price(input=100.0, output=100.0), concurrency=1),
        Ledger(0.05),
    )

    async def paid() -> str:
        try:
            with ledger.enforce_cap():
                reply = await caller.complete(ask(max_tokens=20))
        except CallError as fault:
            return fault.kind
        return reply.text  # for 0.012 dollars

    async def all_at_once():
        return await asyncio.gather(*(paid() for _ in range(50)))

    # A fifth one would end at 0.06.
    assert travel(all_at_once()) == ["yes"] * 4 + ["spend"] * 46
    assert ledger.total_usd == pytest.approx(0.048)


# Another try.


@pytest.mark.parametrize("kind", FAULTS)
def test_only_transient_faults_are_retried(travel, scripted, answer, ask, kind):
    transport = scripted(CallError(kind, "no"), answer())
    got = travel(outcome(caller_of(transport).complete(ask())))
    again = kind in ("rate_limit", "overloaded", "server", "timeout", "connection", "garbled")
    assert len(transport.times) == (2 if again else 1)
    assert got == "yes" if again else got.kind == kind


def test_kinds_of_faults_overlap_only_as_intended():
    assert RETRYABLE >= THROTTLING
    assert set(FAULTS) >= RETRYABLE | OUTAGES
    assert {"key", "quota", "model"} == OUTAGES - RETRYABLE


def test_waits_grow_fourfold_up_to_the_longest_and_tries_end(travel, scripted, ask):
    fault = CallError("server", "500")
    transport = scripted(fault)
    got = travel(outcome(caller_of(transport, attempts=6, max_wait_s=20.0).complete(ask())))
    assert got is fault
    # Waits of 0.25, 1, 4, 16 and, instead of 64, 20 s.
    assert transport.times == about(0.0, 0.25, 1.25, 5.25, 21.25, 41.25)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_waits_are_jittered_in_full(seed, tries):
    class Nobody:
        pass

    caller = ProviderClient(Nobody, name="x", limits=CallLimits(max_wait_s=10.0), random=Random(seed))
    assert 0.0 <= caller._backoff_s(tries) <= min(10.0, 0.25 * 4 ** (tries - 1))


def test_retry_after_of_zero_seconds_still_waits_between_attempts(travel, scripted, answer, ask):
    transport = scripted(*[CallError("overloaded", "529", retry_after_s=0.0)] * 2, answer())
    assert travel(caller_of(transport).complete(ask())).text == "yes"
    assert transport.times == about(0.0, 0.25, 1.25)


def test_retry_after_is_kept_to_the_moment(travel, scripted, answer, ask):
    transport = scripted(CallError("rate_limit", "429", retry_after_s=17.0), answer())
    assert travel(outcome(caller_of(transport).complete(ask()))) == "yes"
    assert transport.times[1] >= 17.0
    assert transport.times == about(0.0, 17.0)


@pytest.mark.parametrize("kind", sorted(RETRYABLE))
def test_retry_after_delays_all_calls_of_the_provider(travel, scripted, answer, ask, kind):
    transport = scripted(CallError(kind, "later", retry_after_s=5.0), answer())

    async def main():
        caller = caller_of(transport)

        async def after(seconds):
            await asyncio.sleep(seconds)
            return await outcome(caller.complete(ask()))

        return await asyncio.gather(*(after(seconds) for seconds in (0, 1, 4.5, 6)))

    assert travel(main()) == ["yes"] * 4
    assert sorted(transport.times) == about(0.0, 5.0, 5.0, 5.0, 6.0)


def test_later_retry_after_prolongs_the_wait_of_all_calls(travel, scripted, answer, ask):
    faults = [CallError("rate_limit", "a", retry_after_s=5.0), CallError("rate_limit", "b", retry_after_s=9.0)]
    transport = scripted(*faults, answer(), latency=1.0)

    async def main():
        caller = caller_of(transport)
        calls = [asyncio.create_task(outcome(caller.complete(ask()))) for _ in range(2)]
        await asyncio.sleep(2.0)
        return [await outcome(caller.complete(ask())), *await asyncio.gather(*calls)]

    assert travel(main()) == ["yes"] * 3
    assert transport.times == about(0.0, 0.0, 10.0, 10.0, 10.0)


def test_a_retry_after_beyond_the_longest_wait_fails_all_calls_until_it_is_near(travel, scripted, answer, ask):
    transport = scripted(CallError("rate_limit", "no more today", retry_after_s=100.0), answer())

    async def main():
        caller = caller_of(transport, max_wait_s=60.0)
        first = await outcome(caller.complete(ask()))
        await asyncio.sleep(30.0)
        second = await outcome(caller.complete(ask()))
        await asyncio.sleep(20.0)
        return first, second, await outcome(caller.complete(ask()))

    first, second, third = travel(main())
    for fault, left in ((first, 100.0), (second, 70.0)):
        assert fault.kind == "rate_limit"
        assert fault.retry_after_s == pytest.approx(left)
        assert str(fault) == (
            "rate_limit: gemini asked to be left alone for 100 s, and limits.max_wait_s=60. "
            "It said: rate_limit: no more today"
        )
    assert third == "yes"
    assert transport.times == about(0.0, 100.0)


# The deadline.


def test_a_server_that_accepts_and_never_answers_is_a_timeout(travel, scripted, answer, ask):
    transport = scripted(answer(), latency=1e9)
    got = travel(outcome(caller_of(transport, attempts=2, timeout_s=60.0).complete(ask(timeout_s=45.0))))
    assert str(got) == "timeout: no reply within 45 s"
    assert transport.times == about(0.0, 45.25)


def test_call_times_out_at_its_own_shorter_deadline(travel, scripted, answer, ask):
    got = travel(outcome(caller_of(scripted(answer(), latency=31.0), attempts=1, timeout_s=30.0).complete(ask())))
    assert str(got) == "timeout: no reply within 30 s"


def test_deadline_of_a_call_excludes_its_wait_for_a_slot(travel, scripted, answer, ask):
    transport = scripted(answer(), latency=50.0)

    async def main():
        caller = caller_of(transport, concurrency=1, timeout_s=60.0)
        return await asyncio.gather(*(outcome(caller.complete(ask())) for _ in range(3)))

    assert travel(main()) == ["yes"] * 3
    assert transport.times == about(0.0, 50.0, 100.0)


# Bugs and cancellation.


fates = st.sampled_from(["yes", *FAULTS, "bug"])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(fates, st.integers(0, 40)), min_size=1, max_size=30), st.integers(1, 4))
def test_whatever_happens_no_slot_is_lost_and_never_are_more_under_way(travel, scripted, answer, ask, plan, most):
    """Calls that meet every fault and bug and are given up after whole tenths of a second."""
    replies = {"yes": answer(), "bug": LookupError("bug"), **{kind: CallError(kind, kind) for kind in FAULTS}}
    ends = itertools.cycle([fate for fate, _ in plan])
    transport = scripted(lambda request: replies[next(ends)], latency=0.5)

    async def main():
        caller = caller_of(transport, concurrency=most, breaker_rest_s=1.0)
        calls = [asyncio.wait_for(caller.complete(ask()), patience / 10 + 0.05) for _, patience in plan]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(end) for end in ended} <= {Reply, CallError, TimeoutError}
        assert transport.most_at_once <= most
        assert caller._concurrency._in_use == 0
        return caller._concurrency

    slots = travel(main())
    assert 1 <= slots.limit <= most


# How many at once.


@pytest.mark.parametrize("kind", FAULTS)
def test_rate_limit_error_reduces_concurrency(travel, scripted, answer, ask, kind):
    transport = scripted(*[CallError(kind, "no")] * 8, answer(), latency=1.0)

    async def main():
        caller = caller_of(transport, concurrency=8)
        await asyncio.gather(*(outcome(caller.complete(ask())) for _ in range(8)))
        return caller._concurrency

    slots = travel(main())
    assert slots.generation == (1 if kind in ("rate_limit", "overloaded") else 0)
    # 8 are refused together: 4 slots, which 8 replies let grow again to 7 (one below 8), and 7.1, 7.3, 7.4, 7.6, 7.7.
    assert slots.limit == (7 if kind in ("rate_limit", "overloaded") else 8)


def test_concurrency_never_exceeds_the_configured_limit(travel, scripted, answer, ask):
    transport = scripted(answer(), latency=1.0)

    async def main():
        caller = caller_of(transport, concurrency=5)
        await asyncio.gather(*(caller.complete(ask()) for _ in range(23)))
        return asyncio.get_running_loop().time()

    assert travel(main()) == pytest.approx(5.0)
    assert transport.most_at_once == 5


def test_requests_and_tokens_per_minute_are_kept(travel, scripted, answer, ask):
    transport = scripted(answer())

    async def main(caller, count, characters):
        await asyncio.gather(*(caller.complete(ask(characters)) for _ in range(count)))

    travel(main(caller_of(transport, requests_per_minute=60), 63, 40))
    assert transport.times[59:] == about(0.0, 1.0, 2.0, 3.0)
    # 160 characters are taken for 40 tokens, and the replies took 120 each. 120 go at once: the first three. The fourth
    # waits for its own 40, at 2 a second. By then 3 x 80 are owed, of which the fifth pays all that the bucket holds.
    transport = scripted(answer(), latency=0.5)
    travel(main(caller_of(transport, tokens_per_minute=120), 5, 160))
    assert transport.times == about(0.0, 0.0, 0.0, 20.0, 80.0)


# Batches.


def test_calls_in_batches_have_no_limits_but_attempts(travel, scripted, answer, ask, tmp_path):
    """A day for a reply, a thousand at once, and a provider that fails a hundred of them."""

    class Batches(scripted):
        def open_batches(self, folder):
            self.opened = folder

        def is_submitted(self, request):
            return False

    transport = Batches(*[CallError("server", "no")] * 100, answer(), latency=86_400.0)
    caller = caller_of(transport, price=Price(input=1.0, output=10.0), concurrency=5, requests_per_minute=5)
    assert caller.provider.batched
    caller.open_batches(tmp_path)
    assert transport.opened == tmp_path

    async def main():
        async with work_deadline(60.0):  # it stands still
            return await asyncio.gather(*(caller.complete(ask()) for _ in range(1000)))

    replies = travel(main())
    assert transport.most_at_once == 1000
    assert sorted(reply.usage.calls for reply in replies) == [1] * 900 + [2] * 100


def test_other_transports_need_no_record_of_batches(scripted, answer, tmp_path):
    caller = caller_of(scripted(answer()))
    caller.open_batches(tmp_path)
    assert not caller.provider.batched


# The breaker.


@pytest.mark.parametrize("kind", FAULTS)
def test_only_faults_of_the_provider_open_the_breaker(travel, scripted, ask, kind):
    transport = scripted(CallError(kind, "no"))

    async def main():
        caller = caller_of(transport, breaker_failures=6, attempts=3)
        return [await outcome(caller.complete(ask())) for _ in range(12)]

    kinds = [fault.kind for fault in travel(main())]
    if kind in ("server", "overloaded", "timeout", "connection", "garbled"):
        # The first failure of a call counts only where it waited in vain: 2 or 3 of 3 tries.
        whole = 2 if kind == "timeout" else 3
        assert kinds == [kind] * whole + ["breaker"] * (12 - whole)
    elif kind in ("key", "quota", "model"):
        assert kinds == [kind] * 6 + ["breaker"] * 6
    else:
        assert kinds == [kind] * 12


def test_simultaneous_failures_do_not_open_the_breaker(travel, scripted, answer, ask):
    transport = scripted(*[CallError("connection", "reset")] * 64, answer(), latency=0.2)

    async def main():
        caller = caller_of(transport)
        return await asyncio.gather(*(outcome(caller.complete(ask())) for _ in range(200)))

    assert travel(main()) == ["yes"] * 200


def test_one_successful_call_after_the_pause_closes_the_breaker(travel, scripted, answer, ask):
    transport = scripted(*[CallError("key", "401")] * 3, answer(stop="blocked"), answer(), latency=1.0)

    async def main():
        caller = caller_of(transport, breaker_failures=2, breaker_rest_s=30.0)
        seen = []
        for seconds, together in ((0, 2), (10, 3), (20, 3), (32, 3), (0, 3)):
            await asyncio.sleep(seconds)
            ended = await asyncio.gather(*(outcome(caller.complete(ask())) for _ in range(together)))
            seen.append([end if isinstance(end, str) else end.kind for end in ended])
        return seen

    assert travel(main()) == [
        ["key", "key"],  # at 0 s; open from 1 s to 31 s
        ["breaker"] * 3,  # at 11 s
        ["key", "breaker", "breaker"],  # at 31 s: a probe, which fails at 32 s
        ["yes", "breaker", "breaker"],  # at 64 s: a probe; blocked is an answer
        ["yes"] * 3,
    ]


def test_waiting_calls_are_not_sent_once_the_breaker_opens(travel, scripted, ask):
    transport = scripted(CallError("key", "401"), latency=1.0)

    async def main():
        caller = caller_of(transport, concurrency=2, breaker_failures=4)
        return await asyncio.gather(*(outcome(caller.complete(ask())) for _ in range(50)))

    assert [fault.kind for fault in travel(main())] == ["key"] * 4 + ["breaker"] * 46
    assert len(transport.times) == 4


def test_calls_fail_at_once_while_the_breaker_is_open(travel, scripted, ask):
    transport = scripted(CallError("key", "401"))

    async def main():
        caller = caller_of(transport, requests_per_minute=2, breaker_failures=2)
        fates = [(await outcome(caller.complete(ask()))).kind for _ in range(4)]
        with pytest.raises(CallError, match="breaker"):
            await caller.count(ask().messages)
        return fates, asyncio.get_running_loop().time()

    fates, seconds = travel(main())
    assert fates == ["key", "key", "breaker", "breaker"]
    assert seconds == pytest.approx(0.0, abs=1e-6)


# What comes back.


def test_reply_reports_its_calls_and_cost(travel, scripted, answer, ask):
    transport = scripted(CallError("garbled", "<html>"), CallError("server", "502"), answer())
    caller = caller_of(transport, price=Price(input=3.0, output=15.0, cached=0.3))
    usage = travel(caller.complete(ask())).usage
    assert usage.calls == 3
    # (60 x 3 + 40 x 0.3 + 20 x 15) / 1e6
    assert usage.usd == pytest.approx(492e-6)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (100, 20, 40)


@pytest.mark.parametrize("priced", [True, False])
def test_unknown_fields_of_the_usage_stay_unknown(travel, scripted, answer, ask, priced):
    caller = caller_of(scripted(answer(usage=None)), price=Price(input=3.0, output=15.0) if priced else None)
    usage = travel(caller.complete(ask())).usage
    assert (usage.calls, usage.prompt_tokens, usage.usd) == (1, None, None)


def test_blocked_and_cut_off_replies_are_replies(travel, scripted, answer, ask):
    for stop in ("blocked", "length"):
        got = travel(caller_of(scripted(answer(stop=stop, detail="SAFETY"))).complete(ask()))
        assert (got.stop, got.detail, got.text) == (stop, "SAFETY", "yes")


def test_the_provider_is_named(scripted, answer):
    caller = caller_of(scripted(answer()), price=Price(input=1.0, output=1.0))
    assert caller.provider == Provider(name="gemini", model="m", host="example.org", priced=True, reserves=True)
    assert not caller_of(scripted(answer())).provider.priced


def test_token_count_is_one_call_within_slots_and_deadline(travel, scripted, answer, ask):
    messages = ask(40).messages

    async def thrice(caller):
        return [await caller.count(messages) for _ in range(3)]

    assert travel(thrice(caller_of(scripted(answer()), concurrency=1))) == [40, 40, 40]
    with pytest.raises(CallError, match=r"server: the counter is broken"):
        travel(caller_of(scripted(answer(), latency=1.0)).count(messages))
    with pytest.raises(CallError, match=r"timeout: no reply within 5 s"):
        travel(caller_of(scripted(answer(), latency=9.0), timeout_s=5.0).count(messages))


def test_close_closes_the_transport(travel, scripted, answer):
    transport = scripted(answer())
    travel(caller_of(transport).close())
    assert transport.closed


@pytest.mark.parametrize(
    ("limits", "price", "message"),
    [
        ({"concurrency": 0}, None, r"^concurrency: must be at least 1 and finite, not 0"),
        ({"requests_per_minute": 0.5}, None, r"^requests_per_minute: must be at least 1"),
        ({"attempts": 0}, None, r"^attempts"),
        ({"timeout_s": 0.0}, None, r"^timeout_s: must be above 0"),
        ({"max_wait_s": float("nan")}, None, r"^max_wait_s"),
        ({"breaker_rest_s": -1.0}, None, r"^breaker_rest_s"),
        ({}, Price(input=1.0, output=-1.0), r"^output: must be at least 0 and finite, not -1"),
        ({}, Price(input=1.0, output=1.0, cached=float("inf")), r"^cached"),
    ],
)
def test_limits_and_prices_that_make_no_sense_are_refused(limits, price, message):
    with pytest.raises(ConfigError, match=message):
        (price or CallLimits(**limits)).check()
