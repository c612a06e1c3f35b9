"""The server on this machine that OpenAI's clients speak to. It listens on loopback alone; a key opens one session."""

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
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mappa_core.gateway.agents import LOCAL
from mappa_core.gateway.conversation import Conversation
from mappa_core.gateway.faults import NOT_AGAIN, RequestFault
from mappa_core.gateway.wire import completions, responses
from mappa_core.gateway.wire.asked import CREATED, Asked, unheeded

RETRY_COUNT = "x-stainless-retry-count"
"""The header by which OpenAI's clients say how often they sent this before."""
BACKLOG = 1024
KEEP_ALIVE_S = 600
GRACE_S = 2

log = structlog.get_logger()


class Gateway:
    """Listens from `open` to `close`, in the event loop of both."""

    def __init__(self) -> None:
        self._conversations: dict[str, Conversation] = {}
        self._told: set[str] = set()
        self._server: _Embedded | None = None
        self._serving: asyncio.Task[None] | None = None
        self.url = ""
        """Where clients are pointed to (`base_url`); empty until it listens."""

    def open(self) -> None:
        """Listen, where it does not yet."""
        if self._serving is not None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((LOCAL, 0))
        listener.listen(BACKLOG)
        self.url = f"http://{LOCAL}:{listener.getsockname()[1]}/v1"
        config = uvicorn.Config(
            self._application(),
            log_config=None,
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
        self._server = _Embedded(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._server = self._serving = None

    @contextmanager
    def door(self, conversation: Conversation) -> Iterator[None]:
        """Let the key of `conversation` in."""
        self._conversations[conversation.key] = conversation
        try:
            yield
        finally:
            del self._conversations[conversation.key]

    def _application(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", partial(self._act, completions.read), methods=["POST"]),
            Route("/v1/responses", partial(self._act, responses.read), methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
        ]
        handlers: Any = {RequestFault: _refuse, 404: _unknown, 405: _unknown}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _conversation(self, request: Request) -> Conversation:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        conversation = self._conversations.get(key.strip())
        if scheme.lower() != "bearer" or conversation is None:
            raise RequestFault(
                "invalid_api_key",
                "no session has this API key, or it has ended: an agent is given a key for every task it plays",
            )
        return conversation

    async def _act(self, read: Callable[[bytes], Asked], request: Request) -> Response:
        conversation = self._conversation(request)
        body = await request.body()
        asked = read(body)
        self._tell_unheeded(unheeded(body))
        step = await conversation.act(
            conversation.agent(asked.model),
            asked.messages,
            asked.own_tools,
            body=body,
            again=request.headers.get(RETRY_COUNT, "0") != "0",
        )
        if asked.stream:
            return Response(b"".join(asked.events(step)), media_type="text/event-stream")
        return _json(asked.answer(step))

    async def _models(self, request: Request) -> Response:
        names = self._conversation(request).models
        listed = [{"id": name, "object": "model", "created": CREATED, "owned_by": "mappa"} for name in names]
        return _json({"object": "list", "data": listed})

    def _tell_unheeded(self, names: frozenset[str]) -> None:
        if new := names - self._told:
            self._told |= new
            log.warning("gateway.unheeded", settings=sorted(new), why="the recipe says how actions are sampled")


class _Embedded(uvicorn.Server):
    """A server in somebody else's event loop: signals are not its own."""

    def capture_signals(self) -> Any:
        return nullcontext()


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(value).encode(), status, headers, media_type="application/json")


async def _refuse(request: Request, fault: RequestFault) -> Response:
    return _json(fault.body, fault.status, NOT_AGAIN)


async def _unknown(request: Request, error: Exception) -> Response:
    path = f"{request.method} {request.url.path}"
    answered = "POST /v1/chat/completions, POST /v1/responses, GET /v1/models"
    return await _refuse(request, RequestFault("unknown_url", f"{path}: the gateway answers {answered}"))
