"""Receives spans over OTLP/HTTP, as a collector does: protobuf or JSON, from this machine alone."""

from __future__ import annotations

import asyncio
import gzip
import io
import socket
import zlib
from base64 import b64decode
from collections.abc import Mapping
from contextlib import AbstractContextManager
from threading import Thread
from typing import Any

import msgspec
import uvicorn
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mappa.look.importing.log_mapping import LogFormatError
from mappa.look.tracers.received_traces import ReceivedTraces
from mappa_core import ConfigError, RunError
from mappa_core.safe_json import parse_untrusted_json

HOST = "127.0.0.1"
PATH = "/v1/traces"
MAX_BODY_BYTES = 1 << 26
"""Of a request, also unpacked: exporters send some hundred spans at once."""
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_SHUTDOWN_S = 2


class _Refusal(Exception):
    """A request that is not taken, with the status that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class OtlpReceiver(AbstractContextManager["OtlpReceiver"]):
    """Listens from `with` to its end, in a thread of its own, and adds what comes to `traces`. Only programs of this
    machine can connect; a page in a browser cannot, as it may send neither form without being asked first.

    Raises ConfigError if the port is taken.
    """

    def __init__(self, traces: ReceivedTraces, *, port: int) -> None:
        self._traces = traces
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port))
        except OSError as error:
            self._socket.close()
            raise ConfigError(f"--otlp {port}: {error.strerror}; choose another port, or 0 for any") from error
        self._socket.listen(128)
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        """OTEL_EXPORTER_OTLP_ENDPOINT of who sends."""
        application = Starlette(
            routes=[Route(PATH, self._receive, methods=["POST"])],
            # A name that leads here by a trick of a name server is not this machine's.
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])],
        )
        config = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._serve, name="otlp", daemon=True)

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    async def _receive(self, request: Request) -> Response:
        form = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if form not in (_PROTOBUF, _JSON):
                raise _Refusal(415, f"content-type is neither {_PROTOBUF} nor {_JSON}")
            body = _unpack(await _read_body(request), request.headers.get("content-encoding", ""))
            refused = self._traces.add(_decode(body, form))
        except _Refusal as refusal:
            return Response(str(refusal), status_code=refusal.status, media_type="text/plain")
        except LogFormatError as error:
            return Response(f"not spans: {error}", status_code=400, media_type="text/plain")
        except ClientDisconnect:
            return Response(status_code=400)
        except RunError as error:
            # The status that exporters try again after.
            return Response(str(error), status_code=503, media_type="text/plain")
        return _answer(refused, form)


def _answer(refused: Mapping[str, int], form: str) -> Response:
    """The answer of the protocol, which says how many spans were not taken."""
    if form == _JSON:
        said = {"rejectedSpans": str(sum(refused.values())), "errorMessage": "; ".join(refused)} if refused else None
        return _json({"partialSuccess": said} if said else {})
    answer = ExportTraceServiceResponse()
    if refused:
        answer.partial_success.CopyFrom(
            ExportTracePartialSuccess(rejected_spans=sum(refused.values()), error_message="; ".join(refused))
        )
    return Response(answer.SerializeToString(), media_type=_PROTOBUF)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=_JSON)


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise _Refusal(413, f"the request has more than {MAX_BODY_BYTES:,} bytes")
    return bytes(body)


def _unpack(body: bytes, encoding: str) -> bytes:
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() != "gzip":
        raise _Refusal(415, f"content-encoding {encoding} is not gzip")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            found = file.read(MAX_BODY_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _Refusal(400, f"not gzip: {error}") from None
    if len(found) > MAX_BODY_BYTES:
        raise _Refusal(413, f"the request unpacks to more than {MAX_BODY_BYTES:,} bytes")
    return found


def _decode(body: bytes, form: str) -> dict[str, Any]:
    """The request in its JSON form, with ids in hexadecimal digits."""
    if form == _JSON:
        try:
            found = parse_untrusted_json(body.decode(), max_characters=MAX_BODY_BYTES)
        except ValueError as error:
            raise _Refusal(400, f"not JSON: {error}") from None
        if not isinstance(found, dict):
            raise _Refusal(400, "not an object with resourceSpans")
        return {"resourceSpans": found.get("resourceSpans", [])}
    message = ExportTraceServiceRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise _Refusal(400, f"not an export of traces: {error}") from None
    document: dict[str, Any] = MessageToDict(message)
    for resource in document.setdefault("resourceSpans", []):
        for scope in resource.setdefault("scopeSpans", []):
            for span in scope.setdefault("spans", []):
                _write_ids_in_hex(span)
    return document


def _write_ids_in_hex(span: dict[str, Any]) -> None:
    # Protobuf's own JSON has bytes in base64; that of OTLP has ids in hexadecimal digits.
    for key in ("traceId", "spanId", "parentSpanId"):
        if key in span:
            span[key] = b64decode(span[key]).hex()
    for link in span.get("links", ()):
        _write_ids_in_hex(link)
