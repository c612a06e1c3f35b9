"""The local server for clients of OpenAI and Anthropic. It listens on loopback only; an API key is one session's."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
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
from mappa_gateway.wire import chat_completions, messages, responses
from mappa_gateway.wire.request import CREATED_AT, AgentRequest, parse_body

RETRY_COUNT_HEADER = "x-stainless-retry-count"
"""Header in which both providers' clients send the number of earlier attempts."""
ANTHROPIC_VERSION_HEADER = "anthropic-version"
"""Header that all requests of Anthropic's clients have."""
BETA_HEADER = "anthropic-beta"
"""Header that names features of Anthropic's servers, none of which are here."""
API_PATH = "/v1"
MAX_BODY_BYTES = MAX_CHARACTERS
BACKLOG = 1024
KEEP_ALIVE_S = 600
SHUTDOWN_GRACE_S = 2
MAX_WARNED_SETTINGS = 100
"""Number of ignored settings after which no more are named in the log."""

_CREATED = "1970-01-01T00:00:00Z"
"""As `CREATED_AT`."""

log = structlog.get_logger()


class GatewayServer:
    """Listens from `open` to `close`, in the event loop that calls them."""

    def __init__(self) -> None:
        self._sessions: dict[str, AgentSession] = {}
        self._warned_settings: set[str] = set()
        self._server: _EmbeddedServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self.url = ""
        """Address of the server; empty until it listens. Clients of Anthropic append `API_PATH` to it themselves."""

    def open(self) -> None:
        """Start to listen, if not listening yet."""
        if self._serving is not None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((LOOPBACK, 0))
        listener.listen(BACKLOG)
        self.url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
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
        parse_chat, parse_response = chat_completions.parse_chat_request, responses.parse_responses_request
        answers: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/chat/completions": partial(self._act, parse_chat),
            "/responses": partial(self._act, parse_response),
            "/responses/input_tokens": partial(self._count, parse_response),
            "/messages": partial(self._act, messages.parse_messages_request),
            "/messages/count_tokens": partial(self._count, messages.parse_count_request),
        }
        routes = [Route(f"{API_PATH}{path}", answer, methods=["POST"]) for path, answer in answers.items()]
        routes.append(Route(f"{API_PATH}/models", self._models, methods=["GET"]))
        handlers: Any = {RequestFault: _refuse, 404: _refuse_unknown_url, 405: _refuse_unknown_url}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _session_for(self, request: Request) -> AgentSession:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        session = self._sessions.get(key)
        if session is None:
            raise RequestFault(
                "invalid_api_key",
                "no session has this API key, or it has ended: an agent is given a key for every task it plays",
            )
        return session

    async def _act(self, parse: Callable[[Any], AgentRequest], request: Request) -> Response:
        session = self._session_for(request)
        body = await _read_body(request)
        parsed = parse(parse_body(body))
        self._warn_ignored(parsed.ignored | ({BETA_HEADER} & set(request.headers)))
        is_retry = request.headers.get(RETRY_COUNT_HEADER, "0") != "0"
        step = await session.act(parsed, body=body, is_retry=is_retry)
        if parsed.stream:
            return Response(b"".join(parsed.to_events(step)), media_type="text/event-stream")
        return _json(parsed.to_json(step))

    async def _count(self, parse: Callable[[Any], AgentRequest], request: Request) -> Response:
        session = self._session_for(request)
        counted = session.count_tokens(parse(parse_body(await _read_body(request))))
        return _json({"object": "response.input_tokens", "input_tokens": counted})

    async def _models(self, request: Request) -> Response:
        names = self._session_for(request).models
        if _is_anthropic(request):
            found = [{"type": "model", "id": name, "display_name": name, "created_at": _CREATED} for name in names]
            return _json({"data": found, "has_more": False, "first_id": names[0], "last_id": names[-1]})
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


def _is_anthropic(request: Request) -> bool:
    return ANTHROPIC_VERSION_HEADER in request.headers or request.url.path.startswith(f"{API_PATH}/messages")


async def _refuse(request: Request, fault: RequestFault) -> Response:
    body = fault.anthropic_body if _is_anthropic(request) else fault.body
    return _json(body, fault.status, NO_RETRY_HEADERS)


async def _refuse_unknown_url(request: Request, error: Exception) -> Response:
    path = f"{request.method} {request.url.path}"
    answered = "POST /v1/chat/completions, POST /v1/responses, POST /v1/messages, GET /v1/models"
    return await _refuse(request, RequestFault("unknown_url", f"{path}: the gateway answers {answered}"))
