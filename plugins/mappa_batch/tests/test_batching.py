"""What is gathered, submitted, awaited and paid, against a provider in memory, on a clock that nobody waits for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mappa_batch import BatchingTransport, BatchOptions, BatchState, Outcome
from mappa_batch.record import RECORD_NAME, BatchRecord
from mappa_core import ConfigError, Message, RunError, Usage
from mappa_core.transport import CallError, Reply, Request

HOUR = 3600.0


Travel = Callable[[Coroutine[Any, Any, Any]], Any]


class Provider:
    """A provider in memory whose batches take `hours`. `outcome` decides what becomes of a call, by its question."""

    model, host = "m", "example.org"

    def __init__(self, *, hours: float = 2.0, max_requests: int = 1000, max_bytes: int = 10**9) -> None:
        self.hours = hours
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.outcome: Callable[[str, int], Outcome] = lambda question, asked: reply(f"{question}, {asked}")
        self.batches: list[list[str]] = []
        self.submitted_at: list[float] = []
        self.ids: list[list[str]] = []
        self.asked: Counter[str] = Counter()
        self.outcomes: list[dict[str, Outcome]] = []

    async def submit(self, token: str, requests: Mapping[str, Request]) -> str:
        self.batches.append([request.messages[-1].content for request in requests.values()])
        self.submitted_at.append(asyncio.get_running_loop().time())
        found: dict[str, Outcome] = {}
        for call_id, request in requests.items():
            question = request.messages[-1].content
            self.asked[question] += 1
            found[call_id] = self.outcome(question, self.asked[question])
        self.outcomes.append(found)
        return str(len(self.batches) - 1)

    async def find(self, token: str, count: int, since: datetime) -> str | None:
        return None

    async def poll(self, name: str) -> BatchState:
        since = asyncio.get_running_loop().time() - self.submitted_at[int(name)]
        ended = since >= self.hours * HOUR
        return BatchState(ended=ended, status="ended" if ended else "in_progress")

    async def results(self, name: str, ids: Sequence[str]) -> Mapping[str, Outcome]:
        return dict(reversed(self.outcomes[int(name)].items()))

    async def complete(self, request: Request) -> Reply:
        raise AssertionError("a call outside of a batch")

    async def count(self, messages: Sequence[Message]) -> int | None:
        return 7

    async def close(self) -> None: ...


def reply(text: str, tokens: int = 10) -> Reply:
    usage = Usage(calls=1, prompt_tokens=100, completion_tokens=tokens, cached_tokens=0)
    return Reply(text=text, stop="end", model="m", raw=text, usage=usage)


def ask(question: str, **changes: Any) -> Request:
    return replace(Request(messages=(Message(role="user", content=question),), max_tokens=100), **changes)


def batching(provider: Provider, folder: Path, **options: Any) -> Any:
    transport = BatchingTransport(provider, BatchOptions(**options), name="memory", settings="s")
    transport.open_batches(folder)
    return transport


async def outcome(call: Coroutine[Any, Any, Reply]) -> str:
    try:
        return (await call).text
    except CallError as fault:
        return fault.kind


async def ask_all(transport: Any, questions: Sequence[str]) -> list[str]:
    return list(await asyncio.gather(*(outcome(transport.complete(ask(question))) for question in questions)))


# Gathering


def test_calls_that_follow_each_other_share_a_batch_and_a_pause_ends_it(travel: Travel, tmp_path: Path) -> None:
    provider = Provider()

    async def later(transport: Any, seconds: float, question: str) -> str:
        await asyncio.sleep(seconds)
        return await outcome(transport.complete(ask(question)))

    async def main() -> list[str]:
        transport = batching(provider, tmp_path, quiet_s=20.0)
        waits = {"a": 0.0, "b": 19.0, "c": 38.0, "d": 58.5}
        texts = await asyncio.gather(*(later(transport, seconds, question) for question, seconds in waits.items()))
        await transport.close()
        return texts

    assert travel(main()) == ["a, 1", "b, 1", "c, 1", "d, 1"]
    assert provider.batches == [["a", "b", "c"], ["d"]]
    assert provider.submitted_at == pytest.approx([58.0, 78.5], abs=0.01)


def test_calls_that_never_pause_are_submitted_after_twenty_times_the_quiet(travel: Travel, tmp_path: Path) -> None:
    provider = Provider(hours=0.01)

    async def main() -> None:
        transport = batching(provider, tmp_path, quiet_s=10.0)
        calls = []
        for number in range(60):
            calls.append(asyncio.create_task(transport.complete(ask(str(number)))))
            await asyncio.sleep(5.0)
        await asyncio.gather(*calls)
        await transport.close()

    travel(main())
    # The call at 195 s starts the timer for the last time.
    assert provider.submitted_at[0] == pytest.approx(205.0, abs=0.1)


def test_a_batch_is_as_large_as_was_said_or_as_the_provider_takes(travel: Travel, tmp_path: Path) -> None:
    questions = [f"{number:02d}" for number in range(10)]
    for provider, options in ((Provider(), {"max_requests": 4}), (Provider(max_requests=4), {})):
        travel(ask_and_close(provider, tmp_path, questions, **options))
        assert [len(batch) for batch in provider.batches] == [4, 4, 2]


def test_no_batch_is_larger_than_the_provider_takes_unless_one_call_is(travel: Travel, tmp_path: Path) -> None:
    provider = Provider(max_bytes=3000)
    questions = ["x" * 1000, "y" * 1000, "z" * 5000, "a" * 10, "b" * 10]
    travel(ask_and_close(provider, tmp_path, questions))
    assert [[call[0] for call in batch] for batch in provider.batches] == [["x", "y"], ["z"], ["a", "b"]]


async def ask_and_close(provider: Provider, folder: Path, questions: Sequence[str], **options: Any) -> list[str]:
    """`options` are those of `batching`."""
    transport = batching(provider, folder, **options)
    texts = await ask_all(transport, questions)
    await transport.close()
    return texts


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 4 * HOUR)), min_size=1, max_size=20), st.integers(0, 3))
def test_every_caller_gets_one_reply_of_its_own_whenever_it_comes(
    travel: Travel, tmp_path: Path, calls: list[tuple[str, float]], failing: int
) -> None:
    """Equal questions get different replies: a repeat that is a copy would measure no noise."""
    provider = Provider(max_requests=3)
    provider.outcome = lambda question, asked: (
        CallError("server", "no") if asked == failing else reply(f"{question}{asked}")
    )

    async def one(transport: Any, question: str, at: float) -> str:
        await asyncio.sleep(at)
        return await outcome(transport.complete(ask(question)))

    async def main() -> list[str]:
        transport = batching(provider, tmp_path)
        texts = await asyncio.gather(*(one(transport, *call) for call in calls))
        await transport.close()
        return texts

    texts = travel(main())
    asked = Counter(question for question, _ in calls)
    expected = [
        "server" if number == failing else f"{question}{number}"
        for question, count in asked.items()
        for number in range(1, count + 1)
    ]
    assert sorted(texts) == sorted(expected)
    assert [text[0] for text in texts if text != "server"] == [
        question for (question, _), text in zip(calls, texts, strict=True) if text != "server"
    ]
    assert not (tmp_path / RECORD_NAME).exists()


def test_texts_that_are_no_unicode_are_asked_as_any(travel: Travel, tmp_path: Path) -> None:
    assert travel(ask_and_close(Provider(), tmp_path, ["\ud800"])) == ["\ud800, 1"]


# Taking up


def test_a_caller_that_goes_away_leaves_its_reply_to_the_next_process(travel: Travel, tmp_path: Path) -> None:
    """Ctrl-C, or a timeout above: the batch is paid for."""
    provider = Provider()

    async def leave() -> None:
        transport = batching(provider, tmp_path)
        calls = [asyncio.create_task(transport.complete(ask(question))) for question in ("a", "b", "b")]
        await asyncio.sleep(HOUR)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await transport.close()

    async def come_back() -> list[str]:
        transport = batching(provider, tmp_path)
        texts = await ask_all(transport, ["b", "new", "a", "b", "b"])
        await transport.close()
        return texts

    travel(leave())
    assert (tmp_path / RECORD_NAME).exists()
    provider.submitted_at[0] = -3 * HOUR  # the clock of the next process begins at 0 again
    texts = travel(come_back())
    assert texts[1:3] == ["new, 1", "a, 1"]
    assert sorted([texts[0], *texts[3:]]) == ["b, 1", "b, 2", "b, 3"]
    assert provider.batches == [["a", "b", "b"], ["new", "b"]]
    assert not (tmp_path / RECORD_NAME).exists()


def test_replies_handed_out_are_kept_while_others_are_awaited(travel: Travel, tmp_path: Path) -> None:
    """A verdict may need two calls: when the second is awaited and the process ends, the first is not paid again."""
    provider = Provider()

    async def leave() -> str:
        transport = batching(provider, tmp_path)
        first = await outcome(transport.complete(ask("first")))
        second = asyncio.create_task(transport.complete(ask("second")))
        await asyncio.sleep(HOUR)
        second.cancel()
        await transport.close()
        return first

    assert travel(leave()) == "first, 1"
    provider.submitted_at = [-5 * HOUR, -5 * HOUR]
    assert travel(ask_and_close(provider, tmp_path, ["first", "second"])) == ["first, 1", "second, 1"]
    assert len(provider.batches) == 2


def test_replies_handed_out_are_kept_when_a_caller_goes_away_before_its_call_is_in_a_batch(
    travel: Travel, tmp_path: Path
) -> None:
    provider = Provider()

    async def leave() -> None:
        transport = batching(provider, tmp_path, quiet_s=60.0)
        await outcome(transport.complete(ask("first")))
        second = asyncio.create_task(transport.complete(ask("second")))
        await asyncio.sleep(1.0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await transport.close()

    travel(leave())
    provider.submitted_at = [-5 * HOUR]
    assert travel(ask_and_close(provider, tmp_path, ["first", "second"])) == ["first, 1", "second, 1"]
    assert provider.batches == [["first"], ["second"]]


def test_a_question_is_the_same_whatever_the_marks_of_its_fences(travel: Travel, tmp_path: Path) -> None:
    provider = Provider()

    async def leave() -> None:
        transport = batching(provider, tmp_path)
        call = asyncio.create_task(transport.complete(ask("mark 1", address="x", cache_key="k", timeout_s=5.0)))
        await asyncio.sleep(HOUR)
        call.cancel()
        await transport.close()

    async def come_back() -> list[str]:
        transport = batching(provider, tmp_path)
        requests = [ask("mark 2", address="x"), ask("mark 2", address="y"), ask("mark 2", address="x", seed=1)]
        texts = await asyncio.gather(*(outcome(transport.complete(request)) for request in requests))
        await transport.close()
        return texts

    travel(leave())
    provider.submitted_at[0] = -3 * HOUR
    assert travel(come_back()) == ["mark 1, 1", "mark 2, 1", "mark 2, 2"]


def test_a_record_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    record = BatchRecord.open(tmp_path)
    BatchRecord._open.clear()  # as if it were another process's
    with pytest.raises(RunError, match=r"batches\.db is in use by another process"):
        BatchRecord.open(tmp_path)
    BatchRecord._open[record.path] = record
    record.close()


def test_a_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / RECORD_NAME).write_text("x" * 5000)
    with pytest.raises(RunError, match=r"batches\.db: file is not a database"):
        BatchRecord.open(tmp_path)


def test_transports_of_one_folder_share_the_record_and_keep_their_questions_apart(
    travel: Travel, tmp_path: Path
) -> None:
    coach, policy = Provider(), Provider()

    async def main() -> list[list[str]]:
        transport = batching(coach, tmp_path)
        other = BatchingTransport(policy, BatchOptions(), name="memory", settings="other")
        other.open_batches(tmp_path)
        texts = await asyncio.gather(ask_all(transport, ["a", "b"]), ask_all(other, ["b"]))
        await transport.close()
        assert (tmp_path / RECORD_NAME).exists()
        await other.close()
        return list(texts)

    assert travel(main()) == [["a, 1", "b, 1"], ["b, 1"]]
    assert (coach.batches, policy.batches) == ([["a", "b"]], [["b"]])
    assert not (tmp_path / RECORD_NAME).exists()


# Money


async def capped(
    under_cap: Callable[..., Any], provider: Provider, folder: Path, cap: float, max_tokens: int, calls: int
) -> tuple[list[str], float]:
    """Make calls under a cap in US dollars, each of 35 tokens at most and `max_tokens` of reply; a thousand tokens cost
    a dollar. Return their outcomes, and what they cost."""
    transport = batching(provider, folder)
    with under_cap(transport, cap, usd_per_million=1000.0) as client:
        asked = (client.complete(ask(f"{number:03d}", max_tokens=max_tokens)) for number in range(calls))
        texts = list(await asyncio.gather(*map(outcome, asked)))
    await transport.close()
    return texts, client.spent()


def test_the_cap_holds_before_a_batch_is_submitted(travel: Travel, tmp_path: Path, under_cap: Any) -> None:
    """A call may cost 12.5 cents. Of 1 dollar 8 may go. They really cost 11 cents, 100 tokens and 10, so that 12 cents
    are left, and another one will likely cost 12.3."""
    provider = Provider()
    texts, usd = travel(capped(under_cap, provider, tmp_path, 1.0, 90, 15))
    assert [len(batch) for batch in provider.batches] == [8]
    assert texts[8:] == ["spend"] * 7
    assert "spend" not in texts[:8]
    assert usd == pytest.approx(0.88)


def test_calls_beyond_the_cap_wait_for_the_real_cost_of_the_others(
    travel: Travel, tmp_path: Path, under_cap: Any
) -> None:
    """A call may cost a dollar, and costs 0.11. Of 3 dollars: 3 go and cost 0.33; of 2.67 left 2 go and cost 0.22; of
    2.45 left 2; of 2.23 left 2; of 2.01 left 1, the tenth."""
    provider = Provider()
    texts, _ = travel(capped(under_cap, provider, tmp_path, 3.0, 965, 10))
    assert "spend" not in texts
    assert [len(batch) for batch in provider.batches] == [3, 2, 2, 2, 1]


def test_what_was_held_for_a_batch_that_was_refused_is_free_again(
    travel: Travel, tmp_path: Path, under_cap: Any
) -> None:
    """A call may cost a dollar, which is all there is."""
    provider = Provider()
    submit = provider.submit

    async def refuse(token: str, requests: Mapping[str, Request]) -> str:
        provider.submit = submit  # type: ignore[method-assign]
        raise CallError("model", "no such model")

    provider.submit = refuse  # type: ignore[method-assign]
    assert travel(capped(under_cap, provider, tmp_path, 1.0, 965, 2))[0] == ["model", "001, 1"]


def test_a_call_that_an_earlier_process_submitted_needs_no_room_under_the_cap(
    travel: Travel, tmp_path: Path, under_cap: Any
) -> None:
    """It is paid for; the other one is under a cap that has no room for it."""
    provider = Provider()

    async def leave() -> None:
        transport = batching(provider, tmp_path)
        call = asyncio.create_task(transport.complete(ask("000", max_tokens=965)))
        await asyncio.sleep(HOUR)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await transport.close()

    travel(leave())
    provider.submitted_at = [-3 * HOUR]
    texts, usd = travel(capped(under_cap, provider, tmp_path, 0.5, 965, 2))
    assert texts == ["000, 1", "spend"]
    assert usd == pytest.approx(0.11)


# Faults


def test_an_outage_while_a_batch_is_awaited_is_waited_for(travel: Travel, tmp_path: Path) -> None:
    provider = Provider()
    polls, down = provider.poll, 30 * 60.0

    async def poll(name: str) -> BatchState:
        if HOUR < asyncio.get_running_loop().time() < HOUR + down:
            raise CallError("connection", "no route")
        return await polls(name)

    provider.poll = poll  # type: ignore[method-assign]
    assert travel(ask_and_close(provider, tmp_path, ["a"])) == ["a, 1"]


def test_a_provider_out_of_reach_for_long_fails_the_calls_and_loses_nothing(travel: Travel, tmp_path: Path) -> None:
    provider = Provider()
    polls = provider.poll

    async def poll(name: str) -> BatchState:
        raise CallError("connection", "no route")

    provider.poll = poll  # type: ignore[method-assign]
    assert travel(ask_and_close(provider, tmp_path, ["a"])) == ["connection"]
    provider.poll, provider.submitted_at = polls, [-3 * HOUR]  # type: ignore[method-assign]
    assert travel(ask_and_close(provider, tmp_path, ["a"])) == ["a, 1"]
    assert len(provider.batches) == 1


def test_a_bug_of_a_wire_is_raised_to_the_callers(travel: Travel, tmp_path: Path) -> None:
    provider = Provider()

    async def results(name: str, ids: Sequence[str]) -> Mapping[str, Outcome]:
        raise ZeroDivisionError("a bug")

    provider.results = results  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        travel(ask_and_close(provider, tmp_path, ["a"]))


@pytest.mark.parametrize(
    ("question", "arrived"), [("submit", False), ("submit", True), ("poll", True), ("results", True)]
)
def test_a_wire_that_breaks_connects_again_and_no_batch_is_submitted_twice(
    travel: Travel, tmp_path: Path, question: str, arrived: bool
) -> None:
    provider, closed = Provider(), []
    ask_provider = getattr(provider, question)
    broken = iter([RuntimeError("Session is closed"), MemoryError(), RuntimeError("Event loop is closed")])

    async def breaking(*arguments: Any) -> Any:
        if arrived and question == "submit" and not provider.batches:
            await ask_provider(*arguments)
        if (error := next(broken, None)) is not None:
            raise error
        return await ask_provider(*arguments)

    async def find(token: str, count: int, since: datetime) -> str | None:
        return "0" if provider.batches else None

    async def close() -> None:
        closed.append(len(provider.batches))

    provider.find, provider.close = find, close  # type: ignore[method-assign]
    setattr(provider, question, breaking)
    assert travel(ask_and_close(provider, tmp_path, ["a", "b"])) == ["a, 1", "b, 1"]
    assert provider.batches == [["a", "b"]]
    # What arrived is found by the second attempt; everything else breaks three times. And once it is closed at the end.
    assert len(closed) == (1 if question == "submit" and arrived else 3) + 1


@pytest.mark.parametrize(
    "wrong",
    [{"quiet_s": 0.0}, {"poll_s": float("inf")}, {"price_share": 0.0}, {"price_share": 1.5}, {"max_requests": 0}],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}: "):
        BatchOptions(**wrong).check()
