"""Contracts for transports, whatever the provider's wire format. Need aiohttp and pytest."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import socket
import traceback
import warnings
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from mappa.testing.wire_server import (
    GARBAGE,
    HTML,
    WireAnswer,
    WireRequest,
    WireServer,
    answer_from_capture,
    json_answer,
)
from mappa_core.errors import CallError, CallFault, ConfigError
from mappa_core.protocols import Reply, Request, Transport
from mappa_core.records import Message, Usage

PLANTED_KEY = "planted-7f3a91-key"
SHORT_S = 0.3
NOWHERE = "http://127.0.0.1:9"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
ERROR_BODY = {"error": {"message": f"Not with {PLANTED_KEY}.", "type": "api_error"}}


def _compressed(encoding: str, body: bytes) -> WireAnswer:
    return WireAnswer(headers={"content-type": "application/json", "content-encoding": encoding}, body=body)


WIRE_TROUBLES: Mapping[str, tuple[WireAnswer, CallFault]] = {
    "never answers": (WireAnswer(trouble="hang"), "timeout"),
    "drops the connection": (WireAnswer(trouble="drop"), "connection"),
    "stops in the middle": (WireAnswer(body=b'{"so": "far"}', trouble="cut"), "connection"),
    "speaks no HTTP": (WireAnswer(trouble="noise"), "garbled"),
    "answers with a page": (HTML, "garbled"),
    "answers with bytes": (GARBAGE, "garbled"),
    "answers with nothing": (WireAnswer(), "garbled"),
    "answers with null": (json_answer(None), "garbled"),
    "answers with a list": (json_answer([1]), "garbled"),
    "answers with an empty object": (json_answer({}), "garbled"),
    "answers with another shape": (json_answer({"choices": 7, "content": 7, "candidates": 7, "output": 7}), "garbled"),
    "sends without end": (WireAnswer(body=b'{"so": "far"}' * 5000, trouble="endless"), "garbled"),
    "sends headers without end": (WireAnswer(trouble="headers"), "garbled"),
    "sends byte by byte": (WireAnswer(body=b" " * 1000, trouble="drip", pace_s=0.02), "timeout"),
    "sends a little that becomes much": (_compressed("gzip", gzip.compress(bytes(2**26))), "garbled"),
    "compresses in another way": (_compressed("zstd", b"("), "garbled"),
    "fails without end": (WireAnswer(status=503, body=b"no" * 5000, trouble="endless"), "overloaded"),
    "sends elsewhere": (WireAnswer(status=307, headers={"location": f"{NOWHERE}/"}), "request"),
    "does not know the key": (json_answer(ERROR_BODY, 401), "key"),
    "forbids": (json_answer(ERROR_BODY, 403), "key"),
    "does not know the model": (json_answer(ERROR_BODY, 404), "model"),
    "has had enough": (json_answer(ERROR_BODY, 429, retry_after="7"), "rate_limit"),
    "has had enough, with a broken body": (WireAnswer(status=429, body=b'{"error"'), "rate_limit"),
    "is down": (WireAnswer(status=502, headers={"content-type": "text/html"}, body=b"<html>"), "server"),
    "is overloaded": (json_answer(ERROR_BODY, 503), "overloaded"),
}


class TransportContract:
    """Subclass it; set `variable` (the key's environment variable), `answer` (a valid one of this provider) and, if its
    SDK reads the environment, `nonsense` (variables to ignore); implement `transport`."""

    variable: str
    answer: WireAnswer
    nonsense: Mapping[str, str] = {}
    request = Request(
        messages=(Message(role="system", content="Judge."), Message(role="user", content="An action.")), timeout_s=30.0
    )

    def transport(self, url: str) -> Transport:
        """Create a transport whose server is at `url`."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _planted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(self.variable, PLANTED_KEY)

    async def _answered(self, answer: WireAnswer) -> tuple[Reply | CallError, Sequence[WireRequest]]:
        """Make one call that a server answers so; return what came of it, and the requests that the server got."""
        async with WireServer([answer]) as server:
            return await _ask(self.transport(server.url), self.request), server.requests

    async def test_one_call_is_one_request_that_carries_the_key_in_a_header(self) -> None:
        """`complete` makes one request, with the key in a header. Disable an SDK's retries: the caller retries."""
        reply, requests = await self._answered(self.answer)
        assert isinstance(reply, Reply)
        (received,) = requests
        assert any(PLANTED_KEY in value for value in received.headers.values())
        assert PLANTED_KEY not in received.path, "a key in an address is written into every log on its way"

    @pytest.mark.parametrize("what", WIRE_TROUBLES)
    async def test_every_server_fault_is_a_call_error(self, what: str, caplog: pytest.LogCaptureFixture) -> None:
        """Every failure is a `CallError` of the right kind (`WIRE_TROUBLES`), after one request, without the key. Map
        statuses by `fault_from_status`; neither raise an error of your client nor keep it as `__context__`. Clients
        retry idempotent methods (GET, PUT) by themselves: use POST. Bound the bytes of replies by `bounded_hooks` or
        `bound_response`, and their time by `_send`."""
        caplog.set_level(logging.DEBUG)
        answer, kind = WIRE_TROUBLES[what]
        request = replace(self.request, timeout_s=SHORT_S) if kind == "timeout" else self.request
        async with WireServer([answer]) as server:
            transport = self.transport(server.url)
            fault = await _ask(transport, request)
        assert isinstance(fault, CallError), f"a server that {what} gave a reply"
        assert fault.kind == kind
        assert fault.retry_after_s == (7.0 if "retry-after" in answer.headers else None)
        assert len(server.requests) == 1, "retries are up to the caller"
        assert PLANTED_KEY not in _shown(fault) + repr(transport) + caplog.text

    async def test_a_long_reply_is_read(self) -> None:
        """A reply of ten megabytes is a reply."""
        padding = b'{"padding": "' + b"x" * 10_000_000 + b'", '
        reply, _ = await self._answered(replace(self.answer, body=self.answer.body.replace(b"{", padding, 1)))
        assert isinstance(reply, Reply)
        assert len(reply.raw) > 10_000_000

    async def test_a_server_that_is_not_there_is_a_fault(self) -> None:
        """A refused connection is a `CallError` of kind `connection`, which costs nothing. Raise from what your client
        raised, or pass calls through `_send`."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            _, port = taken.getsockname()
        fault = await _ask(self.transport(f"http://127.0.0.1:{port}"), self.request)
        assert isinstance(fault, CallError)
        assert fault.kind == "connection"
        assert fault.free, "a call that was not sent would count as spent under a cap"
        assert PLANTED_KEY not in _shown(fault)

    @pytest.mark.parametrize("status", [200, 400, 502])
    async def test_a_long_error_is_shortened(self, status: int) -> None:
        """The message for an error page has fewer than a thousand characters. Use `one_line`, or `Secret.hide`."""
        body = {"error": {"message": "No. " * 9999, "type": "api_error"}}
        fault, _ = await self._answered(json_answer(body, status))
        assert isinstance(fault, CallError)
        assert len(str(fault)) < 1000

    @pytest.mark.parametrize("shown", [PLANTED_KEY, PLANTED_KEY[::-1], PLANTED_KEY.encode().hex()])
    async def test_a_reply_that_holds_the_key_does_not_show_it(self, shown: str) -> None:
        """A reply that quotes the key, or disguises it, does not show it. Pass responses through `Secret.scrub`."""
        echo = replace(self.answer, body=self.answer.body.replace(b"{", f'{{"echo": "{shown}", '.encode(), 1))
        reply, _ = await self._answered(echo)
        assert isinstance(reply, Reply)
        assert shown not in repr(reply)

    async def test_the_environment_does_not_matter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Read only the variables that the options name; disable proxies and settings of the SDK."""
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with WireServer([self.answer, self.answer]) as server:
            await _ask(self.transport(server.url), self.request)
            for name, value in {**dict.fromkeys(PROXIES, NOWHERE), **self.nonsense}.items():
                monkeypatch.setenv(name, value)
            reply = await _ask(self.transport(server.url), self.request)
        assert isinstance(reply, Reply)
        assert server.requests[1] == server.requests[0]

    @pytest.mark.parametrize("value", [None, "", " \n"])
    def test_a_missing_key_is_named_by_its_variable(self, value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a key, building the transport raises a ConfigError that names the variable. Use `Secret.from_env`."""
        if value is None:
            monkeypatch.delenv(self.variable)
        else:
            monkeypatch.setenv(self.variable, value)
        with pytest.raises(ConfigError, match=self.variable):
            self.transport(NOWHERE)

    async def test_many_calls_go_at_once(self) -> None:
        """Calls do not wait for each other. Share one client; the caller limits concurrency."""
        async with WireServer(lambda request: self.answer) as server:
            transport = self.transport(server.url)
            replies = await asyncio.gather(*(transport.complete(self.request) for _ in range(32)))
            await transport.close()
        assert len(replies) == len(server.requests) == 32

    def test_event_loops_follow_each_other(self) -> None:
        """After `close` a transport works in another event loop. Keep the client in a `LoopBound`."""
        assert [type(asyncio.run(self._answered(self.answer))[0]) for _ in range(2)] == [Reply, Reply]

    async def test_nothing_is_open_after_close(self) -> None:
        """`close` releases every connection, and may be called twice."""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", ResourceWarning)
            async with WireServer([self.answer]) as server:
                transport = self.transport(server.url)
                await transport.complete(self.request)
                await transport.close()
                await transport.close()
                del transport
                gc.collect()
        assert [str(warning.message) for warning in warned if warning.category is ResourceWarning] == []


class SdkTransportContract(TransportContract):
    """In place of TransportContract, for transports on `SdkTransport`. Set also `offer` (its name), `wrong_options`
    (options to refuse, with the one to blame) and `counter_faults` (answers of the token counter, with their kind);
    implement `build` in place of `transport`."""

    offer: str
    wrong_options: Sequence[tuple[Mapping[str, Any], str]]
    counter_faults: Sequence[tuple[WireAnswer, CallFault]]
    turns = (
        Message(role="system", content="Judge."),
        Message(role="user", content="An action."),
        Message(role="assistant", content="Ten."),
        Message(role="user", content="In JSON."),
    )
    """A conversation with every role."""

    def build(self, **options: Any) -> Transport:
        """Create a transport with `options`, for any model."""
        raise NotImplementedError

    def transport(self, url: str) -> Transport:
        return self.build(base_url=url)

    async def sent(self, request: Request, *, answer: WireAnswer | None = None, **options: Any) -> WireRequest:
        """Make one call with `options`, which gets `answer` (by default a valid one); return what the server got."""
        async with WireServer([answer or self.answer]) as server:
            outcome = await _ask(self.build(base_url=server.url, **options), request)
        if isinstance(outcome, CallError):
            raise outcome
        (received,) = server.requests
        return received

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of every row of `wrong_options` and `counter_faults`."""
        if "wrong" in metafunc.fixturenames:
            named = [", ".join(f"{name}={value}" for name, value in wrong.items()) for wrong, _ in self.wrong_options]
            metafunc.parametrize(("wrong", "blamed"), self.wrong_options, ids=named)
        if "counted" in metafunc.fixturenames:
            metafunc.parametrize(("counted", "kind"), self.counter_faults)

    def test_a_wrong_option_is_named(self, wrong: Mapping[str, Any], blamed: str) -> None:
        """Building the transport raises a ConfigError `OFFER: OPTION: …`, which shows no password."""
        with pytest.raises(ConfigError, match=f"^{self.offer}: {blamed}: ") as error:
            self.build(**wrong)
        assert "password@" not in str(error.value)

    async def test_a_token_counter_that_fails_is_a_call_error(self, counted: WireAnswer, kind: CallFault) -> None:
        """A counter that answers with an error, or without a number, raises a `CallError` of the right kind."""
        async with WireServer([counted]) as server:
            transport = self.transport(server.url)
            with pytest.raises(CallError) as error:
                await transport.count(self.turns)
            await transport.close()
        assert error.value.kind == kind

    async def test_a_broken_client_is_no_fault_of_the_provider(self) -> None:
        """What a client raises that is broken itself is no `CallError`, so that it is replaced; `close` mends it. Some
        SDKs call every exception a lost connection: look at its cause."""
        async with WireServer([self.answer]) as server:
            transport: Any = self.build(base_url=server.url)
            await transport._disconnect(transport._client.get())
            with pytest.raises(Exception) as broken:
                await transport.complete(self.request)
            assert not isinstance(broken.value, CallError)
            await transport.close()
            reply = await _ask(transport, self.request)
        assert isinstance(reply, Reply)

    def test_a_transport_stays_with_its_event_loop_until_it_is_closed(self) -> None:
        """Elsewhere it raises a RuntimeError. Keep the client in a `LoopBound`."""
        transport = self.transport(NOWHERE)

        async def ask() -> None:
            with pytest.raises(CallError, match="connection"):
                await transport.complete(self.request)

        asyncio.run(_then_close(ask, transport))
        with asyncio.Runner() as first:
            first.run(ask())
            with pytest.raises(RuntimeError, match="another event loop"):
                asyncio.run(ask())
            first.run(transport.close())


class CaptureContract:
    """Captured exchanges with a provider: requests are sent, and answers read, as they were then. Subclass it; set
    `variable` (of the key), `folder` (`NAME.json` with `request` and `response`), `model` (that answered), `replies`
    and `faults` by name, `others` (names that no test here reads) and `counts` (of the token counter, with their
    number); implement `transport`, `request` and `messages`, and `sent` where this transport writes another body."""

    variable: str
    folder: Path
    model: str
    headers: Sequence[str] = ("authorization",)
    """Headers that are as captured, but for the key."""
    replies: Mapping[str, tuple[str, Literal["end", "length", "blocked"], str, tuple[int, int, int, int]]]
    """Text, stop, detail, and tokens: of the prompt, of the completion, of these cached and of these for thinking."""
    faults: Mapping[str, tuple[CallFault, float | None]]
    """Kind, and seconds to wait."""
    counts: Mapping[str, int]
    others: Collection[str] = ()

    def transport(self, request: Mapping[str, Any], url: str) -> Transport:
        """Create a transport that asks the server at `url` as the captured request was asked."""
        raise NotImplementedError

    def request(self, body: Mapping[str, Any]) -> Request:
        """Return what was asked for by the captured body."""
        raise NotImplementedError

    def messages(self, body: Mapping[str, Any]) -> tuple[Message, ...]:
        """Return the messages of the captured body, which may be one for the token counter."""
        raise NotImplementedError

    def sent(self, body: Mapping[str, Any]) -> Any:
        """Return the captured body as this transport writes it."""
        return body

    def capture(self, name: str) -> Mapping[str, Any]:
        """Read a captured exchange."""
        exchange: Mapping[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return exchange

    def reply(self, name: str) -> Reply:
        """Return the reply that the capture `name` stands for."""
        text, stop, detail, (prompt, completion, cached, thinking) = self.replies[name]
        usage = Usage(
            calls=1, prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached, thinking_tokens=thinking
        )
        raw = answer_from_capture(self.capture(name)).body.decode()
        return Reply(text=text, stop=stop, detail=detail, model=self.model, usage=usage, raw=raw)

    @pytest.fixture(autouse=True)
    def _planted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(self.variable, PLANTED_KEY)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of every capture that a table names."""
        for argument, names in (
            ("captured_reply", self.replies),
            ("captured_fault", self.faults),
            ("captured_call", [*self.replies, *self.faults]),
            ("captured_count", self.counts),
        ):
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, list(names))

    def test_every_capture_is_read(self) -> None:
        """`replies`, `faults`, `counts` and `others` name the files of `folder`."""
        names = {path.stem for path in self.folder.glob("*.json")}
        assert names == {*self.replies, *self.faults, *self.counts, *self.others}

    async def test_a_captured_reply_is_read_as_it_was_meant(self, captured_reply: str) -> None:
        """Text, end, usage and the raw answer."""
        outcome, _ = await self._replayed(captured_reply)
        assert outcome == self.reply(captured_reply)

    async def test_a_captured_fault_is_a_call_error(self, captured_fault: str) -> None:
        """Of the right kind, with the seconds to wait where the provider says them."""
        outcome, _ = await self._replayed(captured_fault)
        assert isinstance(outcome, CallError)
        assert (outcome.kind, outcome.retry_after_s) == self.faults[captured_fault]

    async def test_a_call_is_sent_as_it_was_captured(self, captured_call: str) -> None:
        """Method, path, headers and body."""
        was = self.capture(captured_call)["request"]
        _, received = await self._replayed(captured_call)
        assert (received.method, received.path) == (was["method"], was["path"])
        for header in self.headers:
            assert received.headers[header] == was["headers"][header].replace("<API_KEY>", PLANTED_KEY)
        assert received.body == self.sent(was["body"])

    async def test_tokens_are_counted(self, captured_count: str) -> None:
        """The token counter is asked as it was, and its number read."""
        exchange = self.capture(captured_count)
        was = exchange["request"]
        async with WireServer([answer_from_capture(exchange)]) as server:
            transport = self.transport(was, server.url)
            assert await transport.count(self.messages(was["body"])) == self.counts[captured_count]
            await transport.close()
        (received,) = server.requests
        assert (received.method, received.path, received.body) == (was["method"], was["path"], self.sent(was["body"]))

    async def _replayed(self, name: str) -> tuple[Reply | CallError, WireRequest]:
        """Ask again as in the capture `name`, of a server that answers as it did."""
        exchange = self.capture(name)
        was = exchange["request"]
        async with WireServer([answer_from_capture(exchange)]) as server:
            outcome = await _ask(self.transport(was, server.url), self.request(was["body"]))
        (received,) = server.requests
        return outcome, received


async def _then_close(ask: Callable[[], Awaitable[None]], transport: Transport) -> None:
    await ask()
    await transport.close()


async def _ask(transport: Transport, request: Request) -> Reply | CallError:
    try:
        return await transport.complete(request)
    except CallError as fault:
        return fault
    finally:
        await transport.close()


def _shown(error: BaseException | None) -> str:
    """All that a log, a traceback or a debugger would show of an error and its causes."""
    texts = traceback.format_exception(error)
    while error is not None:
        texts += [repr(error), str(error), repr(vars(error))]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)
