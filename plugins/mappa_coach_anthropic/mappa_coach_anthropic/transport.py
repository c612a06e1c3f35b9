"""Transport for Anthropic's API on the official SDK.

Some defaults of the SDK are switched off: reading the environment, retrying, and following a redirect with the key.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import ClientError
from anthropic import APIConnectionError, APIStatusError, APITimeoutError, AsyncAnthropic, DefaultAioHttpClient

from mappa_coach_anthropic.options import Options
from mappa_coach_anthropic.request import build_arguments, build_messages
from mappa_coach_anthropic.response import parse_error, parse_message, parse_token_count
from mappa_core import Message
from mappa_core.transport import CallError, Reply, Request, SdkTransport, Secret, hidden_environment


class AnthropicTransport(SdkTransport[AsyncAnthropic]):
    """Implements Transport. Its connections are bound to the event loop of the first call until it is closed."""

    def __init__(self, options: Options) -> None:
        options.check()
        self._options = options
        secret = Secret.from_env(options.api_key_env, "the coach or policy anthropic")
        super().__init__(model=options.model, url=options.base_url, secret=secret, parse_error=parse_error)

    async def complete(self, request: Request) -> Reply:
        call = self._client.get().messages.with_raw_response.create(**build_arguments(self._options, request))
        answer = await self._send(call)
        return parse_message(self._scrub(await answer.text()), self.model)

    async def count(self, messages: Sequence[Message]) -> int | None:
        counter = self._client.get().messages.with_raw_response
        call = counter.count_tokens(timeout=self.COUNT_TIMEOUT_S, **build_messages(self._options, messages))
        answer = await self._send(call)
        return parse_token_count(self._scrub(await answer.text()))

    def _connect(self) -> AsyncAnthropic:
        with hidden_environment("ANTHROPIC_CUSTOM_HEADERS"):
            return AsyncAnthropic(
                api_key=self._reveal(),
                base_url=self._options.base_url,
                max_retries=0,
                open_telemetry=False,
                http_client=DefaultAioHttpClient(trust_env=False, follow_redirects=False),
            )

    async def _disconnect(self, client: AsyncAnthropic) -> None:
        await client.close()

    def _fault(self, error: Exception) -> CallError | None:
        match error:
            case APIStatusError():
                return self._status_fault(error.status_code, error.response.headers, error.response.text)
            case APITimeoutError():
                return CallError("timeout", self._hide(str(error.__cause__)))
            case APIConnectionError(__cause__=ClientError()):
                # What the SDK's transport does not take for a broken connection.
                return CallError("garbled", f"{self.host} answers with something that is not HTTP")
            case APIConnectionError():
                return CallError("connection", self._hide(str(error.__cause__)))
        return None
