"""One call of Google's Gemini API, by the official SDK.

The SDK is kept from what it would do by itself: read the environment, try again, go on with a reply that was cut off,
follow a redirect with the key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import google.auth
from google import genai
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.genai import types
from google.genai.client import DebugConfig

from mappa_coach_gemini.asking import arguments, deadline, turns
from mappa_coach_gemini.options import Options
from mappa_coach_gemini.reading import delay, explain, read_answer
from mappa_core import (
    CallError,
    ConfigError,
    LoopBound,
    Message,
    Reply,
    Request,
    Secret,
    environment_without,
    one_line,
    retry_after,
)

OWNER = "the coach or policy gemini"
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
COUNT_TIMEOUT_S = 60.0
OBEYED = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_HTTP_CLIENT")
"""Environment variables that the SDK obeys, or warns of, whatever it is told."""

Connected = tuple[genai.Client, aiohttp.ClientSession]
"""The SDK's client, and the session that it is given and does not close."""


class _Refused(Exception):
    """The server answered with a status that is no success."""

    def __init__(self, status: int, headers: Mapping[str, str], body: str) -> None:
        super().__init__(status)
        self.status, self.headers, self.body = status, headers, body


class GeminiTransport:
    """Implements Transport. Its connections belong to the event loop of its first call, until it is closed."""

    def __init__(self, options: Options) -> None:
        options.check()
        self._options = options
        self._key, self._credentials, self._project = None, None, None
        if options.vertex:
            self._credentials, self._project = _application_default(options)
        else:
            self._key = _key(options)
        self._client = LoopBound(self._connect, _disconnect)

    @property
    def model(self) -> str:
        return self._options.model

    @property
    def host(self) -> str:
        return urlsplit(self._options.url).netloc

    async def complete(self, request: Request) -> Reply:
        client, _ = self._client.get()
        call = client.aio.models.generate_content(**arguments(self._options, request))
        body = (await self._answer(call)).sdk_http_response.body
        return read_answer(body if self._secret is None else self._secret.scrub(body), self.model)

    async def count(self, messages: Sequence[Message]) -> int | None:
        client, _ = self._client.get()
        config = types.CountTokensConfig(http_options=deadline(COUNT_TIMEOUT_S))
        call = client.aio.models.count_tokens(model=self.model, contents=turns(messages), config=config)
        try:
            tokens = (await self._answer(call)).total_tokens
        except (ValueError, TypeError, AttributeError):
            # The SDK reads this answer itself, and trips over one that is none.
            tokens = None
        if tokens is None:
            raise CallError("garbled", "the token counter answers without a number")
        return int(tokens)

    async def close(self) -> None:
        await self._client.close()

    def _connect(self) -> Connected:
        options = self._options
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(connector=connector, trust_env=False, middlewares=(_refuse,))
        with environment_without(*OBEYED):
            client = genai.Client(
                enterprise=options.vertex,
                api_key=None if self._key is None else self._key.reveal(),
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

    async def _answer(self, call: Awaitable[Any]) -> Any:
        """What the SDK makes of the answer. Raises CallError where there is none."""
        try:
            return await call
        except _Refused as error:
            kind, words = explain(error.status, error.body)
            wait = retry_after(error.headers)
            failed = CallError(kind, self._hide(words), retry_after_s=delay(error.body) if wait is None else wait)
        except TimeoutError:
            failed = CallError("timeout", f"{self.host} does not answer")
        except (aiohttp.ClientResponseError, UnicodeDecodeError):
            # Its words are left out: they hold the headers of the request.
            failed = CallError("garbled", f"{self.host} answers with something that is not HTTP, or no text")
        except aiohttp.ClientError as error:
            failed = CallError("connection", self._hide(str(error)))
        except GoogleAuthError as error:
            passing = error.retryable or isinstance(error, TransportError)
            failed = CallError("connection" if passing else "key", self._hide(str(error)))
        # Not raised where it was caught: the errors above hold the headers of the request, and stay behind.
        raise failed

    @property
    def _secret(self) -> Secret | None:
        """What must not show: the key, or the token of the hour."""
        token = None if self._credentials is None else self._credentials.token
        return self._key if token is None else Secret(token, "access token")

    def _hide(self, text: str) -> str:
        return one_line(text) if self._secret is None else self._secret.hide(text)


async def _disconnect(connected: Connected) -> None:
    client, session = connected
    await client.aio.aclose()
    client.close()
    await session.close()


async def _refuse(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Stop at every status but 200, with what came with it: the SDK would lose the status of an error that is no JSON,
    and a redirect would take the key elsewhere."""
    response = await send(request)
    if response.status == 200:
        return response
    async with response:
        raise _Refused(response.status, response.headers, await response.text(errors="replace"))


def _key(options: Options) -> Secret:
    try:
        return Secret.from_env(options.api_key_env, OWNER)
    except ConfigError as error:
        raise ConfigError(
            f"{error}. GOOGLE_API_KEY is read where api_key_env names it, and Vertex needs none"
        ) from None


def _application_default(options: Options) -> tuple[Any, str]:
    """Credentials and project. Looked up now, so that a run without them does not start."""
    try:
        credentials, project = google.auth.default(scopes=SCOPES)
    except DefaultCredentialsError as error:
        raise ConfigError(f"{OWNER} needs application-default credentials for Vertex AI: {error}") from None
    if options.project is None and project is None:
        raise ConfigError(f"{OWNER} needs a project for Vertex AI: its credentials name none, so say project=…")
    return credentials, options.project or project
