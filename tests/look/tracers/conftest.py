"""Servers of this machine that speak the wire of Phoenix and of Langfuse."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result

from mappa.cli.main import cli

PHOENIX_SPANS = json.loads((Path(__file__).parent / "phoenix_spans.json").read_text())
"""A trace of a LangGraph team, as the real Phoenix 20.26 gave it; long inputs and outputs of chains are left out."""


class Server:
    """What is asked is kept in `asked`; `answer` returns status, headers and body."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, list[str]], Any]] = []
        self.bodies: list[bytes] = []
        self.broken: Callable[[str], tuple[int, dict[str, str], bytes] | None] = lambda path: None
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._handle(None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.bodies.append(body)
                self._handle(json.loads(body) if body[:1] in (b"{", b"[") else body)

            def _handle(self, body: Any) -> None:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                server.asked.append((self.command, parts.path, query, body))
                server.headers = dict(self.headers)
                status, headers, content = server.broken(parts.path) or server.answer(parts.path, query, body)
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.place = f"127.0.0.1:{self._server.server_port}"

    def answer(self, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, dict[str, str], bytes]:
        raise NotImplementedError

    def count(self, path: str) -> int:
        return sum(asked.startswith(path) for _, asked, *_ in self.asked)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def reply(value: Any, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, {}, json.dumps(value).encode()


class Phoenix(Server):
    """A project `tickets`; lists of traces come in pages of one, those of spans in pages of eight."""

    def __init__(self) -> None:
        super().__init__()
        self.traces = {name: spans_of(name) for name in ("a" * 32, "b" * 32, "c" * 32)}
        self.annotations: list[dict[str, Any]] = []

    def answer(self, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, dict[str, str], bytes]:
        if path == "/arize_phoenix_version":
            return 200, {"Content-Type": "text/plain"}, b"20.26.1"
        if path == "/v1/projects/tickets/traces":
            entries = [
                {"trace_id": name, "end_time": max(span["end_time"] for span in spans), "token_count_total": len(spans)}
                for name, spans in self.traces.items()
            ]
            return reply(_page(entries, query, 1))
        if path == "/v1/projects/tickets/spans":
            return reply(_page(self.traces[query["trace_id"][0]], query, 8))
        if path in ("/v1/span_annotations", "/v1/trace_annotations"):
            self.annotations += body["data"]
            return reply({"data": [{"id": str(number)} for number, _ in enumerate(body["data"])]})
        return 404, {"Content-Type": "text/plain"}, b"Project with name nope not found"


def spans_of(trace: str) -> list[dict[str, Any]]:
    """The recorded trace under another id."""
    spans = deepcopy(PHOENIX_SPANS)
    for span in spans:
        span["context"]["trace_id"] = trace
    return spans


def _page(values: list[Any], query: dict[str, list[str]], size: int) -> dict[str, Any]:
    start = int(query.get("cursor", ["0"])[0])
    end = start + min(size, int(query["limit"][0]))
    return {"data": values[start:end], "next_cursor": str(end) if end < len(values) else None}


class Langfuse(Server):
    """Observations in pages of two, as the public API has them: inputs and outputs are texts."""

    def __init__(self) -> None:
        super().__init__()
        self.observations = [*observations_of("t1"), *observations_of("t2")]
        self.scores: list[dict[str, Any]] = []

    def answer(self, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, dict[str, str], bytes]:
        if path == "/api/public/v2/observations":
            if "filter" in query:
                found = [one for one in self.observations if one["parentObservationId"] is None]
            else:
                found = [one for one in self.observations if one["traceId"] == query["traceId"][0]]
            start = int(query.get("cursor", ["0"])[0])
            meta = {"cursor": str(start + 2)} if start + 2 < len(found) else {}
            return reply({"data": found[start : start + 2], "meta": meta})
        if path == "/api/public/scores":
            self.scores += body
            return reply({"message": "Accepted"}, 202)
        return reply({"message": "not found"}, 404)


def observations_of(trace: str) -> list[dict[str, Any]]:
    """A chain with two agents, in nodes of a LangGraph."""

    def observe(number: int, kind: str, name: str, parent: str | None, **more: Any) -> dict[str, Any]:
        return {
            "id": f"{trace}-{number}",
            "traceId": trace,
            "projectId": "p",
            "type": kind,
            "name": name,
            "parentObservationId": parent,
            "isRootObservation": parent is None,
            "startTime": f"2026-11-28T09:00:0{number}.000Z",
            "endTime": f"2026-11-28T09:00:0{9 if parent is None else number}.500Z",
            "level": "DEFAULT",
            "tags": ["prod"],
            "updatedAt": "2026-11-28T09:01:00.000Z",
            **more,
        }

    asked = {"role": "user", "content": "What do seven people pay?"}
    planned = {"role": "assistant", "content": "Multiply 7 by 48."}
    answered = {"role": "assistant", "content": "7 * 48 = 326, so they pay 326 euros."}
    return [
        observe(0, "CHAIN", "LangGraph", None, input=json.dumps(asked)),
        observe(1, "GENERATION", "ChatOpenAI", f"{trace}-0", model="m", usageDetails={"input": 5, "output": 7},
                metadata={"langgraph_node": "planner", "langgraph_checkpoint_ns": "planner:1"},
                input=json.dumps([asked]), output=json.dumps(planned)),
        observe(2, "GENERATION", "ChatOpenAI", f"{trace}-0", model="m", metadata={"langgraph_node": "writer"},
                input=json.dumps([asked, planned]), output=json.dumps(answered)),
    ]  # fmt: skip


class Collector(Server):
    """Takes everything."""

    def answer(self, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": "application/x-protobuf"}, b""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    yield server
    server.close()


@pytest.fixture(scope="session")
def phoenix_class() -> type[Phoenix]:
    return Phoenix


@pytest.fixture
def phoenix() -> Iterator[Phoenix]:
    server = Phoenix()
    yield server
    server.close()


@pytest.fixture
def langfuse(monkeypatch) -> Iterator[Langfuse]:
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-lf-1")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-lf-2")
    server = Langfuse()
    yield server
    server.close()


@pytest.fixture
def invoke(tmp_path, monkeypatch) -> Callable[..., Result]:
    """The command line, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return lambda *words: CliRunner().invoke(cli, list(words))
