"""A local HTTP server that fakes a provider: sends given bytes or misbehaves, and records requests. Needs aiohttp."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

WireTrouble = Literal["hang", "drop", "cut", "drip", "endless", "headers", "noise"]
"""Misbehaviour: `hang` never answers; `drop` closes the connection; `cut` announces the whole body, sends half and
closes; `drip` sends one byte every `pace_s` seconds; `endless` sends the body again and again, and `headers` headers,
until the client hangs up; `noise` answers with bytes that are no HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireAnswer:
    """An HTTP response as sent. `headers` must include `content-type`; the length is filled in."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    body: bytes = b""
    trouble: WireTrouble | None = None
    pace_s: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """A request as received. Names of `headers` are lower case; `body` is None if it is not JSON."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


AnswerScript = Callable[[WireRequest], WireAnswer]

HTML = WireAnswer(headers={"content-type": "text/html"}, body=b"<html><body>Sign in to continue</body></html>")
GARBAGE = WireAnswer(body=b"\x80\xfe\x00{\xc3(]")  # Neither JSON nor UTF-8, declared as JSON.
OUT_OF_ANSWERS = WireAnswer(status=599, body=b'{"error": {"message": "the test has no answer left"}}')


def json_answer(value: Any, status: int = 200, **headers: str) -> WireAnswer:
    """Build an answer whose body is `value` as JSON. Underscores in the names of `headers` become dashes."""
    named = {"content-type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
    return WireAnswer(status=status, headers=named, body=json.dumps(value).encode())


def answer_from_capture(capture: Mapping[str, Any]) -> WireAnswer:
    """Build the answer of a captured exchange: its `response` has `status`, `headers` and `body` (JSON) or
    `raw_body`."""
    response = capture["response"]
    body = response["raw_body"] if "raw_body" in response else json.dumps(response["body"])
    return WireAnswer(status=response["status"], headers=response["headers"], body=body.encode())


class WireServer:
    """Sends `answers` in order, one per request, then status 599; or those of a function. `url` has no trailing slash;
    `requests` holds all. On leaving the context all connections are closed, including hanging ones."""

    def __init__(self, answers: Iterable[WireAnswer] | AnswerScript) -> None:
        self._script = answers if callable(answers) else _in_order(answers)
        self._closing = asyncio.Event()
        self.requests: list[WireRequest] = []
        self.url = ""

    async def __aenter__(self) -> WireServer:
        application = web.Application(client_max_size=64 * 2**20)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        try:
            body = json.loads(content)
        except ValueError:
            body = None
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = WireRequest(method=request.method, path=request.path_qs, headers=headers, body=body)
        self.requests.append(received)
        answer = self._script(received)
        if answer.trouble is None:
            return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
        return await self._misbehave(request, answer)

    async def _misbehave(self, request: web.Request, answer: WireAnswer) -> web.StreamResponse:
        connection = request.transport
        if answer.trouble == "hang":
            await self._closing.wait()
        elif answer.trouble == "noise" and connection is not None:
            connection.write(b"\x00\x01 this is no HTTP \xff\r\n\r\n")
        elif answer.trouble == "headers" and connection is not None:
            await self._send_without_end(connection, b"HTTP/1.1 200 OK\r\n", b"x-more: and more\r\n" * 1000)
        elif answer.trouble == "endless" and connection is not None:
            head = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
            start = f"HTTP/1.1 {answer.status} OK\r\ntransfer-encoding: chunked\r\n{head}\r\n"
            chunk = b"%x\r\n%s\r\n" % (len(answer.body), answer.body)
            await self._send_without_end(connection, start.encode(), chunk)
        elif answer.trouble in ("cut", "drip"):
            await self._send_slowly(request, answer)
        if connection is not None:
            connection.close()
        return web.Response()

    async def _send_without_end(self, connection: asyncio.Transport, start: bytes, more: bytes) -> None:
        connection.write(start)
        while not connection.is_closing() and not self._closing.is_set():
            # Only as fast as it is read, as the buffer is this process's memory.
            if connection.get_write_buffer_size() < 2**20:
                connection.write(more)
            await asyncio.sleep(0)

    async def _send_slowly(self, request: web.Request, answer: WireAnswer) -> None:
        length = len(answer.body)
        response = web.StreamResponse(status=answer.status, headers={**answer.headers, "content-length": str(length)})
        await response.prepare(request)
        if answer.trouble == "cut":
            await response.write(answer.body[: length // 2])
            return
        for index in range(length):
            if self._closing.is_set():
                return
            await response.write(answer.body[index : index + 1])
            await asyncio.sleep(answer.pace_s)


def _in_order(answers: Iterable[WireAnswer]) -> AnswerScript:
    rest = iter(answers)
    return lambda request: next(rest, OUT_OF_ANSWERS)
