"""The local server for OpenAI clients. It listens on loopback only; each API key belongs to one session."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mappa_core.safe_json import MAX_CHARACTERS
from mappa_gateway.errors import NO_RETRY_HEADERS, RequestFault
from mappa_gateway.launchers import LOOPBACK
from mappa_gateway.session import AgentSession
from mappa_gateway.wire import chat_completions, responses
from mappa_gateway.wire.request import CREATED_AT, AgentRequest, parse_body

RETRY_COUNT_HEADER = "x-stainless-retry-count"
"""Header in which OpenAI's clients send the number of earlier attempts."""
MAX_BODY_BYTES = MAX_CHARACTERS
BACKLOG = 1024
KEEP_ALIVE_S = 600
SHUTDOWN_GRACE_S = 2
MAX_WARNED_SETTINGS = 100
"""Number of ignored settings after which no more are named in the log."""

log = structlog.get_logger()


class GatewayServer:
    """Listens from `open` to `close`, in the event loop that calls them."""

    def __init__(self) -> None:
        self._sessions: dict[str, AgentSession] = {}
        self._warned_settings: set[str] = set()
        self._server: _EmbeddedServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self.url = ""
        """`base_url` for clients; empty until the server listens."""

    def open(self) -> None:
        """Start to listen, if not listening yet."""
        if self._serving is not None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((LOOPBACK, 0))
        listener.listen(BACKLOG)
        self.url = f"http://{LOOPBACK}:{listener.getsockname()[1]}/v1"
        config = uvicorn.Config(
            self._application(),
            log_config=None,
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        )
        self._server = _EmbeddedServer(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._server = self._serving = None

    @contextmanager
    def serve_session(self, session: AgentSession) -> Iterator[None]:
        """Accept requests with the key of `session`."""
        self._sessions[session.key] = session
        try:
            yield
        finally:
            del self._sessions[session.key]

    def _application(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", partial(self._act, chat_completions.parse_chat_request), methods=["POST"]),
            Route("/v1/responses", partial(self._act, responses.parse_responses_request), methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
        ]
        handlers: Any = {RequestFault: _refuse, 404: _refuse_unknown_url, 405: _refuse_unknown_url}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _session_for(self, request: Request) -> AgentSession:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        session = self._sessions.get(key.strip())
        if scheme.lower() != "bearer" or session is None:
            raise RequestFault(
                "invalid_api_key",
                "no session has this API key, or it has ended: an agent is given a key for every task it plays",
            )
        return session

    async def _act(self, parse: Callable[[Any], AgentRequest], request: Request) -> Response:
        session = self._session_for(request)
        body = await _read_body(request)
        parsed = parse(parse_body(body))
        self._warn_ignored(parsed.ignored)
        step = await session.act(
            session.agent_for(parsed.model),
            parsed.messages,
            parsed.own_tools,
            body=body,
            is_retry=request.headers.get(RETRY_COUNT_HEADER, "0") != "0",
        )
        if parsed.stream:
            return Response(b"".join(parsed.to_events(step)), media_type="text/event-stream")
        return _json(parsed.to_json(step))

    async def _models(self, request: Request) -> Response:
        names = self._session_for(request).models
        listed = [{"id": name, "object": "model", "created": CREATED_AT, "owned_by": "mappa"} for name in names]
        return _json({"object": "list", "data": listed})

    def _warn_ignored(self, names: frozenset[str]) -> None:
        if (new := names - self._warned_settings) and len(self._warned_settings) < MAX_WARNED_SETTINGS:
            self._warned_settings |= new
            log.warning(
                "gateway.unheeded",
                settings=sorted(new),
                why="the recipe says how actions are sampled, and these change nothing",
            )


class _EmbeddedServer(uvicorn.Server):
    """A server in the event loop of a caller, which handles signals itself."""

    def capture_signals(self) -> Any:
        return nullcontext()


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(value).encode(), status, headers, media_type="application/json")


async def _read_body(request: Request) -> bytes:
    """Read the body as far as the limit: no memory is spent on what is refused. Raises RequestFault beyond it, and
    where the client hangs up meanwhile."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise RequestFault("too_large", f"the body has more than {MAX_BODY_BYTES} bytes")
    except ClientDisconnect as error:
        raise RequestFault("invalid_request", "the client hung up before its body ended") from error
    return bytes(body)


async def _refuse(request: Request, fault: RequestFault) -> Response:
    return _json(fault.body, fault.status, NO_RETRY_HEADERS)


async def _refuse_unknown_url(request: Request, error: Exception) -> Response:
    path = f"{request.method} {request.url.path}"
    answered = "POST /v1/chat/completions, POST /v1/responses, GET /v1/models"
    return await _refuse(request, RequestFault("unknown_url", f"{path}: the gateway answers {answered}"))
