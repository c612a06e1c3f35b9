"""A contract for transports to subclass: what every provider's must do, whatever its wire. Needs aiohttp and pytest."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace

import pytest

from mappa_core.errors import CallError, CallFault, ConfigError
from mappa_core.protocols import Reply, Request, Transport
from mappa_core.records import Message
from mappa_core.testing.wire import GARBAGE, HTML, WireAnswer, WireServer, answering

KEY = "planted-7f3a91-key"
SHORT_S = 0.3
NOWHERE = "http://127.0.0.1:9"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
SAID = {"error": {"message": f"Not with {KEY}.", "type": "api_error"}}

TROUBLES: Mapping[str, tuple[WireAnswer, CallFault]] = {
    "never answers": (WireAnswer(trouble="hang"), "timeout"),
    "drops the connection": (WireAnswer(trouble="drop"), "connection"),
    "stops in the middle": (WireAnswer(body=b'{"so": "far"}', trouble="cut"), "connection"),
    "speaks no HTTP": (WireAnswer(trouble="noise"), "garbled"),
    "answers with a page": (HTML, "garbled"),
    "answers with bytes": (GARBAGE, "garbled"),
    "answers with nothing": (WireAnswer(), "garbled"),
    "answers with null": (answering(None), "garbled"),
    "answers with a list": (answering([1]), "garbled"),
    "answers with an empty object": (answering({}), "garbled"),
    "answers with another shape": (
        answering({"choices": 7, "content": 7, "candidates": 7, "output": 7}),
        "garbled",
    ),
    "sends elsewhere": (WireAnswer(status=307, headers={"location": f"{NOWHERE}/"}), "request"),
    "does not know the key": (answering(SAID, 401), "key"),
    "forbids": (answering(SAID, 403), "key"),
    "does not know the model": (answering(SAID, 404), "model"),
    "has had enough": (answering(SAID, 429, retry_after="7"), "rate_limit"),
    "has had enough, with a broken body": (WireAnswer(status=429, body=b'{"error"'), "rate_limit"),
    "is down": (WireAnswer(status=502, headers={"content-type": "text/html"}, body=b"<html>"), "server"),
    "is overloaded": (answering(SAID, 503), "overloaded"),
}


class TransportContract:
    """Subclass it; set `variable` (where the key lies), `answer` (a good one of this provider) and, where its SDK reads
    the environment, `nonsense`; write `transport`."""

    variable: str
    answer: WireAnswer
    nonsense: Mapping[str, str] = {}
    """Environment variables that must not matter, with values that would."""
    request = Request(
        messages=(Message(role="system", content="Judge."), Message(role="user", content="An action.")), timeout_s=30.0
    )

    def transport(self, url: str) -> Transport:
        """A fresh transport whose server is at `url`."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _planted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(self.variable, KEY)

    async def test_one_call_is_one_request_that_carries_the_key_in_a_header(self) -> None:
        """`complete` makes one request, with the key in a header. Turn the retries of an SDK off: core counts tries,
        and pays."""
        async with WireServer([self.answer]) as server:
            reply = await _ask(self.transport(server.url), self.request)
        assert isinstance(reply, Reply)
        (heard,) = server.heard
        assert any(KEY in value for value in heard.headers.values())
        assert KEY not in heard.path, "a key in an address is written into every log on its way"

    @pytest.mark.parametrize("what", TROUBLES)
    async def test_whatever_the_server_does_is_a_fault(self, what: str, caplog: pytest.LogCaptureFixture) -> None:
        """Whatever goes wrong is a `CallError` of the right kind, after one request, without the key in any text. See
        `TROUBLES`; map statuses by `fault_of_status`, and let no error of your client through, nor hang on to it
        (`__context__`). Clients try idempotent methods (GET, PUT) again by themselves: POST."""
        caplog.set_level(logging.DEBUG)
        answer, kind = TROUBLES[what]
        request = replace(self.request, timeout_s=SHORT_S) if answer.trouble == "hang" else self.request
        async with WireServer([answer]) as server:
            transport = self.transport(server.url)
            fault = await _ask(transport, request)
        assert isinstance(fault, CallError), f"a server that {what} gave a reply"
        assert fault.kind == kind
        assert fault.retry_after_s == (7.0 if "retry-after" in answer.headers else None)
        assert len(server.heard) == 1, "whoever calls decides on another try"
        assert KEY not in _shown(fault) + repr(transport) + caplog.text

    async def test_a_server_that_is_not_there_is_a_fault(self) -> None:
        """A refused connection is a `CallError` of kind `connection`."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        fault = await _ask(self.transport(f"http://127.0.0.1:{port}"), self.request)
        assert isinstance(fault, CallError)
        assert fault.kind == "connection"
        assert KEY not in _shown(fault)

    @pytest.mark.parametrize("status", [200, 400, 502])
    async def test_an_endless_error_is_told_in_short(self, status: int) -> None:
        """A page of error is told in less than a thousand characters. Use `one_line`, or `Secret.hide`."""
        said = {"error": {"message": "No. " * 9999, "type": "api_error"}}
        async with WireServer([answering(said, status)]) as server:
            fault = await _ask(self.transport(server.url), self.request)
        assert isinstance(fault, CallError)
        assert len(str(fault)) < 1000

    async def test_a_reply_that_holds_the_key_does_not_show_it(self) -> None:
        """A reply that quotes the key does not show it. Pass what came through `Secret.scrub`."""
        echo = replace(self.answer, body=self.answer.body.replace(b"{", f'{{"echo": "{KEY}", '.encode(), 1))
        async with WireServer([echo]) as server:
            reply = await _ask(self.transport(server.url), self.request)
        assert isinstance(reply, Reply)
        assert KEY not in repr(reply)

    async def test_the_environment_does_not_matter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only what the options name is read from the environment. Turn proxies and settings of the SDK off: a run must
        send the same from everywhere."""
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with WireServer([self.answer, self.answer]) as server:
            await _ask(self.transport(server.url), self.request)
            for name, value in {**dict.fromkeys(PROXIES, NOWHERE), **self.nonsense}.items():
                monkeypatch.setenv(name, value)
            reply = await _ask(self.transport(server.url), self.request)
        assert isinstance(reply, Reply)
        assert server.heard[1] == server.heard[0]

    @pytest.mark.parametrize("value", [None, "", " \n"])
    def test_a_missing_key_is_named_by_its_variable(self, value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a key building raises ConfigError that names the variable. Use `Secret.from_env`."""
        if value is None:
            monkeypatch.delenv(self.variable)
        else:
            monkeypatch.setenv(self.variable, value)
        with pytest.raises(ConfigError, match=self.variable):
            self.transport(NOWHERE)

    async def test_many_calls_go_at_once(self) -> None:
        """Calls do not wait for each other. Share one client; core limits concurrency."""
        async with WireServer(lambda request: self.answer) as server:
            transport = self.transport(server.url)
            replies = await asyncio.gather(*(transport.complete(self.request) for _ in range(32)))
            await transport.close()
        assert len(replies) == len(server.heard) == 32

    def test_event_loops_follow_each_other(self) -> None:
        """After `close` a transport works in another event loop. Keep the client in a `LoopBound`."""

        async def once() -> Reply | CallError:
            async with WireServer([self.answer]) as server:
                return await _ask(self.transport(server.url), self.request)

        assert [type(asyncio.run(once())) for _ in range(2)] == [Reply, Reply]

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
        assert [str(one.message) for one in warned if one.category is ResourceWarning] == []


async def _ask(transport: Transport, request: Request) -> Reply | CallError:
    try:
        return await transport.complete(request)
    except CallError as fault:
        return fault
    finally:
        await transport.close()


def _shown(error: BaseException | None) -> str:
    """All that a log, a traceback or a debugger would show of an error and of what it came from."""
    texts = traceback.format_exception(error)
    while error is not None:
        texts += [repr(error), str(error), repr(vars(error))]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)
