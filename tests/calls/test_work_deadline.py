"""A verdict's deadline counts work, not the wait for a turn, on a clock that nobody waits for."""

import asyncio
from random import Random
from types import SimpleNamespace

import pytest

from mappa.rollout.named_coach import NamedCoach
from mappa_core import Coach, Verdict
from mappa_core.calls.client import ProviderClient
from mappa_core.calls.options import CallLimits
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.calls.work_deadline import waiting_for_turn, work_deadline

SCENE = SimpleNamespace(step=SimpleNamespace(id="s"))


class Calling(Coach):
    """Scores after so many calls at once."""

    def __init__(self, client, request, calls=1):
        self._client, self._request, self._calls = client, request, calls

    async def score(self, scene):
        await asyncio.gather(*(self._client.complete(self._request) for _ in range(self._calls)))
        return Verdict.scored(5.0, "fine")


def judged(coach, count, timeout_s):
    judge = NamedCoach(name="calling", coach=coach)

    async def judge_all():
        one = [judge.judge([SCENE], review=False, ledger=Ledger(None), timeout_s=timeout_s) for _ in range(count)]
        return [verdict.status for (verdict,) in await asyncio.gather(*one)]

    return judge_all()


def client_of(transport, **limits):
    return ProviderClient(lambda: transport, name="gemini", limits=CallLimits(**limits), random=Random(0))


@pytest.mark.parametrize("limits", [{"requests_per_minute": 60}, {"concurrency": 1}], ids=str)
def test_verdicts_that_wait_for_a_slot_do_not_time_out(travel, scripted, answer, ask, limits):
    """100 verdicts of 10 ms, or of a second one after the other, with 2 seconds each."""
    client = client_of(scripted(answer(), latency=0.01 if "requests_per_minute" in limits else 1.0), **limits)
    assert travel(judged(Calling(client, ask()), 100, 2.0)) == ["scored"] * 100


def test_slow_call_times_out_after_its_wait_for_a_slot(travel, scripted, answer, ask):
    client = client_of(scripted(answer(), latency=3.0), concurrency=1)
    assert travel(judged(Calling(client, ask()), 3, 2.0)) == ["failed"] * 3


def test_deadline_stops_while_any_call_waits_for_a_slot(travel, scripted, answer, ask):
    client = client_of(scripted(answer(), latency=1.0), concurrency=1)
    assert travel(judged(Calling(client, ask(), calls=5), 1, 1.5)) == ["scored"]


def test_work_before_and_after_a_wait_adds_up(travel):
    async def work(before, after):
        async with work_deadline(2.0):
            await asyncio.sleep(before)
            with waiting_for_turn():
                await asyncio.sleep(100.0)
            await asyncio.sleep(after)

    travel(work(0.9, 1.0))
    with pytest.raises(TimeoutError):
        travel(work(1.1, 1.0))


def test_shared_call_continues_when_the_work_that_began_it_ends(travel):
    async def begin():
        async def call():
            with waiting_for_turn():
                await asyncio.sleep(5.0)
            return "late"

        async with work_deadline(2.0):
            task = asyncio.create_task(call())
            await asyncio.sleep(0.0)
        return await task

    assert travel(begin()) == "late"
