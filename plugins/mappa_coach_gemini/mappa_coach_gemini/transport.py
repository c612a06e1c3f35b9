"""Transport for Google's Gemini API on the official SDK.

Some defaults of the SDK are switched off: reading the environment, retrying, continuing a truncated reply, and
following a redirect with the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import aiohttp
import google.auth
from google import genai
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.genai import types
from google.genai.client import DebugConfig

from mappa_coach_gemini.options import Options
from mappa_coach_gemini.request import build_arguments, build_contents, build_http_options
from mappa_coach_gemini.response import parse_error, parse_response, parse_retry_delay
from mappa_core import ConfigError, Message
from mappa_core.transport import (
    UNCOMPRESSED,
    CallError,
    Reply,
    Request,
    SdkTransport,
    Secret,
    bound_response,
    hidden_environment,
)

SECRET_OWNER = "the coach or policy gemini"
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
SDK_ENVIRONMENT_VARIABLES = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_HTTP_CLIENT")
"""Environment variables that the SDK obeys or warns of, whatever its arguments."""

Connection = tuple[genai.Client, aiohttp.ClientSession]
"""The SDK's client and its HTTP session, which the client does not close."""


received_bodies: ContextVar[list[str] | None] = ContextVar("received_bodies", default=None)
"""Collects the bodies of responses as received where it holds a list: the SDK gives fewer fields of a batch."""


class _StatusError(Exception):
    """The server answered with a status other than 200."""

    def __init__(self, status: int, headers: Mapping[str, str], body: str) -> None:
        super().__init__(status)
        self.status, self.headers, self.body = status, headers, body


class GeminiTransport(SdkTransport[Connection]):
    """Implements Transport. Its connections are bound to the event loop of the first call until it is closed."""

    def __init__(self, options: Options) -> None:
        options.check()
        self._options = options
        self._credentials: Any = None
        self._project: str | None = None
        if options.vertex:
            self._credentials, self._project = _default_credentials(options)
        secret = None if options.vertex else _read_api_key(options)
        super().__init__(model=options.model, url=options.url, secret=secret, parse_error=parse_error)

    async def complete(self, request: Request) -> Reply:
        client, _ = self._client.get()
        call = client.aio.models.generate_content(**build_arguments(self._options, request))
        body = (await self._send(call, request.timeout_s)).sdk_http_response.body
        return parse_response(self._scrub(body), self.model)

    async def count(self, messages: Sequence[Message]) -> int | None:
        client, _ = self._client.get()
        config = types.CountTokensConfig(http_options=build_http_options(self.COUNT_TIMEOUT_S))
        call = client.aio.models.count_tokens(model=self.model, contents=build_contents(messages), config=config)
        try:
            tokens = (await self._send(call, self.COUNT_TIMEOUT_S)).total_tokens
        except (ValueError, TypeError, AttributeError):
            # The SDK parses this response itself, and fails like this on a malformed one.
            tokens = None
        if tokens is None:
            raise CallError("garbled", "the token counter answers without a number")
        return int(tokens)

    def _connect(self) -> Connection:
        options = self._options
        connector = aiohttp.TCPConnector(limit=0)  # the caller limits how many calls there are at once
        session = aiohttp.ClientSession(
            connector=connector, trust_env=False, middlewares=(_raise_for_status,), headers=UNCOMPRESSED
        )
        with hidden_environment(*SDK_ENVIRONMENT_VARIABLES):
            client = genai.Client(
                enterprise=options.vertex,
                api_key=None if options.vertex else self._reveal(),
                credentials=self._credentials,
                project=self._project,
                location=options.location if options.vertex else None,
                debug_config=DebugConfig(client_mode=None, replays_directory=None, replay_id=None),
                http_options=types.HttpOptions(
                    base_url=options.url,
                    api_version="v1beta1" if options.vertex else "v1",
                    retry_options=types.HttpRetryOptions(attempts=1),
                    aiohttp_client=session,
                ),
            )
        return client, session

    async def _disconnect(self, client: Connection) -> None:
        sdk_client, session = client
        await sdk_client.aio.aclose()
        sdk_client.close()
        await session.close()

    def _fault(self, error: Exception) -> CallError | None:
        match error:
            case _StatusError():
                fault = self._status_fault(error.status, error.headers, error.body)
                if fault.retry_after_s is None:
                    fault.retry_after_s = parse_retry_delay(error.body)
                return fault
            case TimeoutError():
                return CallError("timeout", f"{self.host} does not answer")
            case aiohttp.ClientResponseError() | UnicodeDecodeError():
                # The error's message is left out: it holds the headers of the request.
                return CallError("garbled", f"{self.host} answers with something that is not HTTP, or no text")
            case aiohttp.ClientError():
                return CallError("connection", self._hide(str(error)))
            case GoogleAuthError():
                passing = error.retryable or isinstance(error, TransportError)
                return CallError("connection" if passing else "key", self._hide(str(error)))
        return None

    @property
    def _secret(self) -> Secret | None:
        """The API key or the current access token."""
        token = None if self._credentials is None else self._credentials.token
        return super()._secret if token is None else Secret(token, "access token")


async def _raise_for_status(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Raise for every status but 200, with headers and body: the SDK would lose the status of an error that is not
    JSON, and a redirect would send the key elsewhere."""
    response = await send(request)
    bound_response(response)
    if response.status == 200:
        if (bodies := received_bodies.get()) is not None:
            bodies.append(await response.text(errors="replace"))
        return response
    async with response:
        raise _StatusError(response.status, response.headers, await response.text(errors="replace"))


def _read_api_key(options: Options) -> Secret:
    try:
        return Secret.from_env(options.api_key_env, SECRET_OWNER)
    except ConfigError as error:
        raise ConfigError(
            f"{error}. GOOGLE_API_KEY is read where api_key_env names it, and Vertex needs none"
        ) from None


def _default_credentials(options: Options) -> tuple[Any, str]:
    """Return credentials and project, looked up at construction so that a run without them does not start."""
    try:
        credentials, project = google.auth.default(scopes=SCOPES)
    except DefaultCredentialsError as error:
        raise ConfigError(f"{SECRET_OWNER} needs application-default credentials for Vertex AI: {error}") from None
    if options.project is None and project is None:
        raise ConfigError(f"{SECRET_OWNER} needs a project for Vertex AI: its credentials name none: set project")
    return credentials, options.project or project
