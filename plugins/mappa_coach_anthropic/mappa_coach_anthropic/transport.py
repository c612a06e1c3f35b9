"""Transport for Anthropic's API on the official SDK.

Some defaults of the SDK are switched off: reading the environment, retrying, and following a redirect with the key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from aiohttp import ClientError
from anthropic import APIConnectionError, APIStatusError, APITimeoutError, AsyncAnthropic, DefaultAioHttpClient

from mappa_coach_anthropic.options import Options
from mappa_coach_anthropic.request import build_arguments, build_messages
from mappa_coach_anthropic.response import parse_error, parse_message, parse_token_count
from mappa_core import Message
from mappa_core.transport import CallError, Reply, Request, SdkTransport, Secret, bounded_hooks, hidden_environment


class AnthropicTransport(SdkTransport[AsyncAnthropic]):
    """Implements Transport. Its connections are bound to the event loop of the first call until it is closed."""

    def __init__(self, options: Options) -> None:
        options.check()
        self._options = options
        secret = Secret.from_env(options.api_key_env, "the coach or policy anthropic")
        super().__init__(model=options.model, url=options.base_url, secret=secret, parse_error=parse_error)

    async def complete(self, request: Request) -> Reply:
        call = self._client.get().messages.with_raw_response.create(**build_arguments(self._options, request))
        return parse_message(await self._receive(call, request.timeout_s), self.model)

    async def count(self, messages: Sequence[Message]) -> int | None:
        counter = self._client.get().messages.with_raw_response
        call = counter.count_tokens(timeout=self.COUNT_TIMEOUT_S, **build_messages(self._options, messages))
        return parse_token_count(await self._receive(call, self.COUNT_TIMEOUT_S))

    async def _receive(self, call: Awaitable[Any], seconds: float) -> str:
        """Send a call for a raw response, and return its body."""

        async def read() -> str:
            text: str = await (await call).text()
            return text

        return self._scrub(await self._send(read(), seconds))

    def _connect(self) -> AsyncAnthropic:
        with hidden_environment("ANTHROPIC_CUSTOM_HEADERS"):
            return AsyncAnthropic(
                api_key=self._reveal(),
                base_url=self._options.base_url,
                max_retries=0,
                open_telemetry=False,
                http_client=DefaultAioHttpClient(trust_env=False, follow_redirects=False, event_hooks=bounded_hooks()),
            )

    async def _disconnect(self, client: AsyncAnthropic) -> None:
        await client.close()

    def _fault(self, error: Exception) -> CallError | None:
        match error:
            case APIStatusError():
                return self._status_fault(error.status_code, error.response.headers, error.response.text)
            case APITimeoutError() | TimeoutError():
                return CallError("timeout", self._hide(str(error.__cause__ or "no reply in time")))
            case APIConnectionError(__cause__=ClientError()):
                # What the SDK's transport does not take for a broken connection.
                return CallError("garbled", f"{self.host} answers with something that is not HTTP")
            case APIConnectionError(__cause__=RuntimeError() | MemoryError()):
                # The SDK takes every exception for a broken connection, also that its own client is closed.
                return None
            case APIConnectionError():
                return CallError("connection", self._hide(str(error.__cause__)))
        return None
