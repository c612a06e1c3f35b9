"""Transport for Anthropic's API on the official SDK.

Some defaults of the SDK are switched off: reading the environment, retrying, and following a redirect with the key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientError
from anthropic import APIConnectionError, APIStatusError, APITimeoutError, AsyncAnthropic, DefaultAioHttpClient

from mappa_coach_anthropic.options import Options
from mappa_coach_anthropic.request import build_arguments, build_messages
from mappa_coach_anthropic.response import parse_error, parse_message, parse_token_count
from mappa_core import CallError, LoopBound, Message, Reply, Request, Secret, environment_without, retry_after

COUNT_TIMEOUT_S = 60.0


class AnthropicTransport:
    """Implements Transport. Its connections are bound to the event loop of the first call until it is closed."""

    def __init__(self, options: Options) -> None:
        options.check()
        self._options = options
        self._secret = Secret.from_env(options.api_key_env, "the coach or policy anthropic")
        self._client = LoopBound(self._connect, AsyncAnthropic.close)

    @property
    def model(self) -> str:
        return self._options.model

    @property
    def host(self) -> str:
        return urlsplit(self._options.base_url).netloc

    async def complete(self, request: Request) -> Reply:
        call = self._client.get().messages.with_raw_response.create(**build_arguments(self._options, request))
        return parse_message(await self._send(call), self.model)

    async def count(self, messages: Sequence[Message]) -> int | None:
        counter = self._client.get().messages.with_raw_response
        call = counter.count_tokens(timeout=COUNT_TIMEOUT_S, **build_messages(self._options, messages))
        return parse_token_count(await self._send(call))

    async def close(self) -> None:
        await self._client.close()

    def _connect(self) -> AsyncAnthropic:
        with environment_without("ANTHROPIC_CUSTOM_HEADERS"):
            return AsyncAnthropic(
                api_key=self._secret.reveal(),
                base_url=self._options.base_url,
                max_retries=0,
                open_telemetry=False,
                http_client=DefaultAioHttpClient(trust_env=False, follow_redirects=False),
            )

    async def _send(self, call: Awaitable[Any]) -> str:
        """Await an SDK call and return the response body with the key redacted. Raises CallError where it fails."""
        try:
            answer = await call
        except APIStatusError as error:
            kind, words = parse_error(error.status_code, error.response.text)
            failure = CallError(kind, self._secret.hide(words), retry_after_s=retry_after(error.response.headers))
        except APITimeoutError as error:
            failure = CallError("timeout", self._secret.hide(str(error.__cause__)))
        except APIConnectionError as error:
            failure = CallError("connection", self._secret.hide(str(error.__cause__)))
            if isinstance(error.__cause__, ClientError):
                # What the SDK's transport does not take for a broken connection.
                failure = CallError("garbled", f"{self.host} answers with something that is not HTTP")
        else:
            return self._secret.scrub(await answer.text())
        # Raised outside of the except blocks: the SDK's error holds the request's headers and must not be chained.
        raise failure
