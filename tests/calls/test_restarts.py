"""Transports that break, hang or end the process, and those that replace them."""

import asyncio
from random import Random

import pytest

from mappa_core import RunError
from mappa_core.calls.client import ProviderClient
from mappa_core.calls.options import CallLimits, Price
from mappa_core.calls.restarts import CANCEL_S, CLOSE_S, record_losses
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.calls.work_deadline import work_deadline
from mappa_core.transport import CallError

BREAKS = {
    "RuntimeError: Cannot send a request, as the client has been closed.": RuntimeError(
        "Cannot send a request, as the client has been closed."
    ),
    "MemoryError: ": MemoryError(),
    "TimeoutError: of the socket": TimeoutError("of the socket"),
    "CancelledError: by itself": asyncio.CancelledError(),
    "SystemExit: 3": SystemExit(3),
}


@pytest.fixture
def lost():
    """The reasons of all losses in a test."""
    reasons = []
    with record_losses(lambda provider, reason: reasons.append(reason.partition(" (")[0])):
        yield reasons


class Series:
    """Builds the transports of a test, one after the other, the last one again and again."""

    def __init__(self, *transports):
        self._coming = list(transports)
        self.built = []

    def __call__(self):
        self.built.append(self._coming.pop(0) if len(self._coming) > 1 else self._coming[0])
        return self.built[-1]


def client_of(*transports, price=None, **limits):
    build = Series(*transports)
    chosen = CallLimits(**{"max_wait_s": 0.0, **limits})
    return ProviderClient(build, name="gemini", limits=chosen, price=price, random=Random(0)), build


async def outcome(call):
    try:
        return (await call).text
    except CallError as fault:
        return str(fault).partition(" (")[0]


class Hanging:
    """A transport whose calls do not end, whatever is done to them, until it is closed."""

    model, host = "m", "example.org"

    def __init__(self):
        self.closed = None

    async def complete(self, request):
        self.closed = self.closed or asyncio.Event()
        while not self.closed.is_set():
            try:
                await self.closed.wait()
            except asyncio.CancelledError:
                continue

    async def close(self):
        self.closed.set()


@pytest.mark.parametrize("reason", BREAKS)
def test_a_transport_that_breaks_is_replaced_and_its_call_is_retried(travel, scripted, answer, ask, lost, reason):
    broken, sound, ledger = scripted(BREAKS[reason]), scripted(answer()), Ledger(1.0)
    client, build = client_of(broken, sound, price=Price(input=1.0, output=1.0))

    async def main():
        with ledger.enforce_cap():
            reply = await client.complete(ask())
        await client.close()
        return reply

    reply = travel(main())
    assert (reply.text, reply.usage.calls) == ("yes", 2)
    assert ledger.uncertain_calls == 1  # nobody knows whether the call was billed that broke
    assert lost == [reason]
    assert build.built == [broken, sound]
    assert broken.closed and sound.closed


def test_calls_under_way_end_on_the_transport_that_is_lost_which_is_lost_once(travel, scripted, answer, ask, lost):
    fates = iter([answer("long"), RuntimeError("closed"), RuntimeError("closed")])
    closed_at = []

    class Old(scripted):
        async def complete(self, request):
            fate = next(fates)
            await asyncio.sleep(5.0 if isinstance(fate, Exception) else 9.0)
            if isinstance(fate, Exception):
                raise fate
            return fate

        async def close(self):
            closed_at.append(asyncio.get_running_loop().time())

    client, build = client_of(Old(), scripted(answer("new"), latency=1.0))

    async def main():
        return await asyncio.gather(*(outcome(client.complete(ask())) for _ in range(3)))

    assert travel(main()) == ["long", "new", "new"]
    assert len(build.built) == 2 and len(lost) == 1
    assert closed_at == pytest.approx([9.0])


def test_a_transport_is_replaced_three_times_in_a_row_and_a_reply_begins_a_new_row(travel, scripted, answer, ask, lost):
    broken = scripted(KeyError("choices"))
    reviving = scripted(KeyError("choices"), answer(), KeyError("choices"))
    client, build = client_of(broken, broken, broken, reviving, broken, attempts=1)

    async def main():
        return [await outcome(client.complete(ask())) for _ in range(9)]

    failed = "connection: the client of gemini broke: KeyError: 'choices'"
    assert travel(main()) == [*[failed] * 4, "yes", *[failed] * 4]
    # The fourth loss stays without a restart; the fifth call gets a reply of the same transport.
    assert len(lost) == 6 and len(build.built) == 7


def test_an_error_of_the_run_is_raised_as_it_is_and_replaces_nothing(travel, scripted, ask, lost):
    client, build = client_of(scripted(RunError("the disk is full")))
    with pytest.raises(RunError, match="the disk is full"):
        travel(client.complete(ask()))
    assert not lost and len(build.built) == 1


@pytest.mark.parametrize("given_up_by", ["its deadline", "its caller"])
def test_a_call_that_does_not_end_is_left_and_frees_its_slot(travel, scripted, answer, ask, lost, given_up_by):
    hanging = Hanging()
    client, _ = client_of(hanging, scripted(answer()), concurrency=1, attempts=1, timeout_s=60.0)

    async def judge():
        async with work_deadline(20.0 if given_up_by == "its caller" else 300.0):
            await client.complete(ask())

    async def main():
        with pytest.raises(TimeoutError if given_up_by == "its caller" else CallError, match=r"^$|timeout: .* 60 s"):
            await judge()
        now = asyncio.get_running_loop().time()
        return now, await outcome(client.complete(ask()))

    assert travel(main()) == (pytest.approx(CANCEL_S + (20.0 if given_up_by == "its caller" else 60.0)), "yes")
    assert lost == ["it did not end a call within 5 s of its being cancelled"]
    assert hanging.closed.is_set()


def test_a_provider_that_does_not_answer_is_no_loss(travel, scripted, answer, ask, lost):
    client, build = client_of(scripted(answer(), latency=99.0), attempts=2)
    assert travel(outcome(client.complete(ask()))) == "timeout: no reply within 60 s"
    assert len(build.built) == 1 and lost == []


def test_the_probe_of_an_open_breaker_goes_through_a_new_transport(travel, scripted, answer, ask, lost):
    """A client whose pool hangs looks like a provider that does not answer."""
    client, build = client_of(scripted(answer(), latency=99.0), scripted(answer()), attempts=1, breaker_failures=3)

    async def main():
        first = [await outcome(client.complete(ask())) for _ in range(4)]
        await asyncio.sleep(30.0)
        return first, await outcome(client.complete(ask()))

    first, probe = travel(main())
    assert [text.partition(":")[0] for text in first] == ["timeout"] * 3 + ["breaker"]
    assert probe == "yes"
    assert lost == ["gemini failed 3 times in a row: timeout: no reply within 60 s"]
    assert len(build.built) == 2


@pytest.mark.parametrize("trouble", ["raises", "hangs"])
def test_a_transport_that_does_not_close_ends_nothing(travel, scripted, answer, ask, trouble):
    class Sticky(scripted):
        async def close(self):
            if trouble == "raises":
                raise RuntimeError("Event loop is closed")
            await asyncio.sleep(3600.0)

    client, _ = client_of(Sticky(answer()))

    async def main():
        text = await outcome(client.complete(ask()))
        await client.close()
        return text, asyncio.get_running_loop().time()

    assert travel(main()) == ("yes", pytest.approx(CLOSE_S if trouble == "hangs" else 0.0, abs=1e-6))


def test_a_token_counter_that_breaks_is_a_fault_of_the_call(travel, scripted, answer, ask, lost):
    class Miscounting(scripted):
        async def count(self, messages):
            raise RuntimeError("closed")

    client, _ = client_of(Miscounting(answer()), scripted(answer()))

    async def main():
        with pytest.raises(CallError, match="connection: the client of gemini broke: RuntimeError: closed"):
            await client.count(ask().messages)
        return await client.count(ask().messages)

    assert travel(main()) == 40
    assert lost == ["RuntimeError: closed"]
