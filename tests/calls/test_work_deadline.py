"""A verdict's deadline counts work, not the wait for a turn, on a clock that nobody waits for."""

import asyncio
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace

import pytest

from mappa.rollout.named_coach import NamedCoach
from mappa.session.coaches import build_coaches
from mappa_core.calls.client import ProviderClient
from mappa_core.calls.options import CallLimits
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.calls.work_deadline import waiting_for_turn, work_deadline
from mappa_core.config.schema import CoachSection, Use
from mappa_core.errors import ConfigError
from mappa_core.protocols import Coach
from mappa_core.records import Verdict

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
    return ProviderClient(transport, name="gemini", limits=CallLimits(**limits), random=Random(0))


@pytest.mark.parametrize("limits", [{"requests_per_minute": 60}, {"concurrency": 1}], ids=str)
def test_verdicts_that_wait_for_their_turn_do_not_fail(travel, scripted, answer, ask, limits):
    """100 verdicts of 10 ms, or of a second one after the other, with 2 seconds each."""
    client = client_of(scripted(answer(), latency=0.01 if "requests_per_minute" in limits else 1.0), **limits)
    assert travel(judged(Calling(client, ask()), 100, 2.0)) == ["scored"] * 100


def test_a_call_that_takes_too_long_fails_though_it_waited_before(travel, scripted, answer, ask):
    client = client_of(scripted(answer(), latency=3.0), concurrency=1)
    assert travel(judged(Calling(client, ask()), 3, 2.0)) == ["failed"] * 3


def test_the_clock_stands_still_as_long_as_any_of_its_calls_waits(travel, scripted, answer, ask):
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


def test_a_call_goes_on_for_others_when_the_work_that_began_it_is_over(travel):
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


def test_attempts_that_do_not_fit_into_a_verdict_are_refused():
    section = CoachSection(use="gemini", options=SimpleNamespace(limits=CallLimits()), timeout_s=120.0)
    workflow = SimpleNamespace(agents={"solver": None}, metric="correct")
    with pytest.raises(
        ConfigError, match=r"limits\.attempts=4 times limits\.timeout_s=60 does not fit; raise it to 240"
    ):
        build_coaches(SimpleNamespace(coach=section), None, workflow)


def test_attempts_of_a_member_have_to_fit_as_those_of_a_coach():
    @dataclass
    class Options:
        members: list[Use]

    slow = Use(use="gemini", options=SimpleNamespace(limits=CallLimits(timeout_s=600)))
    section = CoachSection(use="ensemble", options=Options([Use(use="rules"), slow]))
    workflow = SimpleNamespace(agents={"solver": None}, metric="correct")
    with pytest.raises(ConfigError, match=r"of gemini, limits\.attempts=4 times limits\.timeout_s=600 does not fit"):
        build_coaches(SimpleNamespace(coach=section), None, workflow)
