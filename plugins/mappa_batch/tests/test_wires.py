"""The three SDKs against local servers that shuffle, fail, expire, lose answers and outlive the process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mappa_batch import BatchOptions
from mappa_batch.testing import AnthropicServer, BatchServer, GeminiServer, OpenAIServer
from mappa_core import Message, Usage
from mappa_core.transport import BatchTransport, CallError, Reply, Request

KEY = "planted-key-of-a-provider"
Outcome = Reply | CallError


@dataclass(frozen=True)
class Wire:
    """A provider: its server, its package, and how its options name the server."""

    server: type[BatchServer]
    package: str
    variable: str
    base: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    def transport(self, server: BatchServer, **changes: float) -> BatchTransport:
        """A transport as a process of its own would build it."""
        package: Any = __import__(self.package)
        (offer,) = package.mappa_transports()
        settings = {"quiet_s": 0.05, "poll_s": 0.02, "give_up_s": 5.0, **changes}
        batch_api = BatchOptions(**settings)  # type: ignore[arg-type]
        options = offer.options(
            model="model", base_url=server.url + self.base, batch_api=batch_api, **dict(self.options)
        )
        transport: BatchTransport = offer.build(options)
        return transport


WIRES = {
    "openai, chat": Wire(OpenAIServer, "mappa_coach_openai", "OPENAI_API_KEY", "/v1"),
    "openai, responses": Wire(OpenAIServer, "mappa_coach_openai", "OPENAI_API_KEY", "/v1", (("api", "responses"),)),
    "anthropic": Wire(AnthropicServer, "mappa_coach_anthropic", "ANTHROPIC_API_KEY"),
    "gemini": Wire(GeminiServer, "mappa_coach_gemini", "GEMINI_API_KEY"),
}


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Wire:
    provider = WIRES[request.param]
    monkeypatch.setenv(provider.variable, KEY)
    return provider


def ask(question: str) -> Request:
    messages = (Message(role="system", content="Answer."), Message(role="user", content=question))
    return Request(messages=messages, max_tokens=50, temperature=0.5, cache_key="k", timeout_s=30.0)


async def complete(transport: BatchTransport, question: str) -> Outcome:
    try:
        return await transport.complete(ask(question))
    except CallError as fault:
        return fault


async def complete_all(transport: BatchTransport, questions: list[str], folder: Path) -> list[Outcome]:
    open_in(transport, folder)
    return await asyncio.gather(*(complete(transport, question) for question in questions))


def open_in(transport: BatchTransport, folder: Path) -> None:
    transport.open_batches(folder)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that a background task brings about."""
    async with asyncio.timeout(20.0):
        while not condition():
            await asyncio.sleep(0.01)


ASKER = """
import asyncio, importlib, json, pathlib, sys
from mappa_batch import BatchOptions
from mappa_core import Message
from mappa_core.transport import Request

package, url, settings, folder, questions = json.loads(sys.argv[1])

def ask(question):
    messages = (Message(role="system", content="Answer."), Message(role="user", content=question))
    return Request(messages=messages, max_tokens=50, temperature=0.5)

async def main():
    (offer,) = importlib.import_module(package).mappa_transports()
    batch_api = BatchOptions(quiet_s=0.05, poll_s=0.02)
    transport = offer.build(offer.options(model="model", base_url=url, batch_api=batch_api, **settings))
    transport.open_batches(pathlib.Path(folder))
    await asyncio.gather(*(transport.complete(ask(question)) for question in questions))

asyncio.run(main())
"""
"""A process that asks in batches. It has another prompt cache and other deadlines, which are no part of a question."""

QUESTIONS = [f"question {number}" for number in range(12)]


async def test_every_caller_gets_the_reply_to_its_own_question(wire: Wire, tmp_path: Path) -> None:
    async with wire.server() as server:
        transport = wire.transport(server)
        outcomes = await complete_all(transport, QUESTIONS, tmp_path)
        await transport.close()
    assert [outcome.text for outcome in outcomes if isinstance(outcome, Reply)] == [
        f"reply to {question}" for question in QUESTIONS
    ]
    usage = Usage(calls=1, prompt_tokens=100, completion_tokens=10)
    for outcome in outcomes:
        assert isinstance(outcome, Reply)
        assert outcome.usage is not None
        assert (outcome.usage.prompt_tokens, outcome.usage.completion_tokens) == (
            usage.prompt_tokens,
            usage.completion_tokens,
        )
        assert json.loads(outcome.raw)
    assert len(server.batches) == 1
    assert not list(tmp_path.iterdir()), "a record of which nothing is under way is left"


async def test_calls_are_those_that_the_provider_gets_one_by_one(wire: Wire, tmp_path: Path) -> None:
    """Body for body, apart from the batch's own frame."""
    package: Any = __import__(wire.package)
    (offer,) = package.mappa_transports()
    single: list[Any] = []

    from aiohttp import web

    async def hear(request: web.Request) -> web.Response:
        single.append(await request.json())
        return web.json_response({}, status=500)

    application = web.Application()
    application.router.add_post("/{path:.*}", hear)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}{wire.base}"
    live = offer.build(offer.options(model="model", base_url=url, **dict(wire.options)))
    with pytest.raises(CallError):
        await live.complete(ask("question 0"))
    await live.close()
    await runner.cleanup()
    async with wire.server() as server:
        transport = wire.transport(server)
        await complete_all(transport, QUESTIONS[:1], tmp_path)
        await transport.close()
    (body,) = server.batches[0].calls.values()
    assert body == single[0]


@pytest.mark.parametrize(("fate", "kind"), [("errored", "server"), ("expired", None), ("cancelled", "request")])
async def test_a_call_that_failed_is_a_typed_fault_and_may_be_made_again(
    wire: Wire, fate: Any, kind: str | None, tmp_path: Path
) -> None:
    async with wire.server() as server:
        server.fates = lambda batch, call: fate if batch == 0 and call % 2 else "answered"
        transport = wire.transport(server)
        outcomes = await complete_all(transport, QUESTIONS, tmp_path)
        failed = [
            question for question, outcome in zip(QUESTIONS, outcomes, strict=True) if isinstance(outcome, CallError)
        ]
        assert failed == QUESTIONS[1::2]
        kinds = {outcome.kind for outcome in outcomes if isinstance(outcome, CallError)}
        assert kinds <= ({"timeout", "server"} if kind is None else {kind})
        again = await asyncio.gather(*(complete(transport, question) for question in failed))
        await transport.close()
    assert [outcome.text for outcome in again if isinstance(outcome, Reply)] == [
        f"reply to {question}" for question in failed
    ]
    assert Counter(server.calls) == Counter(QUESTIONS + failed)


async def test_a_call_without_any_result_is_a_fault(wire: Wire, tmp_path: Path) -> None:
    async with wire.server() as server:
        server.fates = lambda batch, call: "missing" if call == 3 else "answered"
        transport = wire.transport(server)
        outcomes = await complete_all(transport, QUESTIONS, tmp_path)
        await transport.close()
    (fault,) = [outcome for outcome in outcomes if isinstance(outcome, CallError)]
    assert fault.kind == "garbled"
    assert outcomes.index(fault) == 3


@pytest.mark.slow
async def test_the_next_process_takes_up_batches_of_a_killed_one(wire: Wire, tmp_path: Path) -> None:
    """`kill -9` while polling. Nothing is paid twice, and what failed is asked again."""
    async with wire.server(polls=3) as server:
        server.fates = lambda batch, call: "errored" if batch == 0 and call in (1, 5) else "answered"
        await ask_and_be_killed(wire, server, tmp_path)
        second = wire.transport(server)
        outcomes = await complete_all(second, QUESTIONS[::-1], tmp_path)
        failed = [
            question
            for question, outcome in zip(QUESTIONS[::-1], outcomes, strict=True)
            if isinstance(outcome, CallError)
        ]
        assert sorted(failed) == ["question 1", "question 5"]
        assert len(server.batches) == 1
        again = await asyncio.gather(*(complete(second, question) for question in failed))
        await second.close()
    assert all(isinstance(outcome, Reply) for outcome in again)
    assert Counter(server.calls) == Counter(QUESTIONS + failed)
    assert not list(tmp_path.iterdir())


async def ask_and_be_killed(wire: Wire, server: BatchServer, folder: Path) -> None:
    """Ask QUESTIONS in a process of its own, which is killed while it polls."""
    server.held = True
    arguments = [json.dumps([wire.package, server.url + wire.base, dict(wire.options), str(folder), QUESTIONS])]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ASKER, *arguments)
    try:
        await until(lambda: len([request for request in server.requests if request[0] == "GET"]) > 2)
    finally:
        process.kill()
        await process.wait()
    server.held = False


@pytest.mark.parametrize("after_restart", [False, True])
async def test_a_submission_whose_answer_is_lost_is_not_made_twice(
    wire: Wire, after_restart: bool, tmp_path: Path
) -> None:
    async with wire.server() as server:
        # Others' batches lie before and after it.
        other = wire.transport(server)
        await complete_all(other, ["another's"], tmp_path / "other")
        await other.close()
        server.lose_answers = 1
        transport = wire.transport(server, give_up_s=0.001 if after_restart else 5.0)
        outcomes = await complete_all(transport, QUESTIONS, tmp_path)
        await transport.close()
        if after_restart:
            assert {outcome.kind for outcome in outcomes if isinstance(outcome, CallError)} == {"connection"}
            third = wire.transport(server)
            await complete_all(third, ["yet another's"], tmp_path / "third")
            await third.close()
            transport = wire.transport(server)
            outcomes = await complete_all(transport, QUESTIONS, tmp_path)
            await transport.close()
    assert [outcome.text for outcome in outcomes if isinstance(outcome, Reply)] == [
        f"reply to {question}" for question in QUESTIONS
    ]
    assert Counter(server.calls)["question 0"] == 1


async def test_an_outage_at_submission_is_waited_for(wire: Wire, tmp_path: Path) -> None:
    async with wire.server() as server:
        server.refuse = 2
        transport = wire.transport(server)
        outcomes = await complete_all(transport, QUESTIONS, tmp_path)
        await transport.close()
    assert all(isinstance(outcome, Reply) for outcome in outcomes)
    assert len(server.batches) == 1


async def test_a_submission_that_is_refused_fails_its_calls_at_once(wire: Wire, tmp_path: Path) -> None:
    async with wire.server() as server:
        server.refuse, server.refusal = 1, 401
        transport = wire.transport(server)
        outcomes = await complete_all(transport, QUESTIONS, tmp_path)
        await transport.close()
    assert {outcome.kind for outcome in outcomes if isinstance(outcome, CallError)} == {"key"}
    assert len(outcomes) == len(QUESTIONS)
    assert not server.batches
    assert KEY not in str(outcomes[0])


@pytest.mark.slow
async def test_a_batch_that_the_provider_no_longer_has_is_made_again(wire: Wire, tmp_path: Path) -> None:
    async with wire.server(polls=3) as server:
        await ask_and_be_killed(wire, server, tmp_path)
        server.batches.clear()
        second = wire.transport(server)
        outcomes = await complete_all(second, QUESTIONS, tmp_path)
        await second.close()
    assert all(isinstance(outcome, Reply) for outcome in outcomes)
    assert len(server.batches) == 1


@pytest.mark.parametrize("provider", ["openai, chat", "gemini"])
async def test_a_batch_that_failed_as_a_whole_says_why(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = WIRES[provider]
    monkeypatch.setenv(wire.variable, KEY)
    async with wire.server() as server:
        server.status = lambda batch: "failed"
        transport = wire.transport(server)
        outcomes = await complete_all(transport, QUESTIONS[:2], tmp_path)
        await transport.close()
    expected = {"openai, chat": ("rate_limit", "Enqueued token limit"), "gemini": ("server", "Quota of batches")}
    kind, text = expected[provider]
    for fault in outcomes:
        assert isinstance(fault, CallError)
        assert fault.kind == kind
        assert text in str(fault)
