"""Transport for servers with OpenAI's API on the official SDK.

Some defaults of the SDK are switched off: reading the environment, retrying, and following a redirect with the key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Literal

from aiohttp import ClientError
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, DefaultAioHttpClient, Omit

from mappa_coach_openai.options import Options
from mappa_coach_openai.request import build_chat_arguments, build_input, build_response_arguments
from mappa_coach_openai.response import parse_chat_completion, parse_error, parse_response, parse_token_count
from mappa_core import Message
from mappa_core.transport import CallError, Reply, Request, SdkTransport, Secret, bounded_hooks, hidden_environment

PLACEHOLDER_KEY = "none"
"""Key sent to servers that need none: the SDK requires one."""


class OpenAITransport(SdkTransport[AsyncOpenAI]):
    """Implements Transport. Its connections are bound to the event loop of the first call until it is closed."""

    def __init__(self, options: Options) -> None:
        options.check()
        self._options = options
        self._can_count = options.api == "responses"
        variable = options.api_key_env
        secret = Secret.from_env(variable, "the coach or policy openai") if variable else None
        super().__init__(model=options.model, url=options.base_url, secret=secret, parse_error=parse_error)

    async def complete(self, request: Request) -> Reply:
        client = self._client.get()
        if self._options.api == "responses":
            call = client.responses.with_raw_response.create(**build_response_arguments(self._options, request))
            return parse_response(await self._receive(call, request.timeout_s), self.model)
        call = client.chat.completions.with_raw_response.create(**build_chat_arguments(self._options, request))
        return parse_chat_completion(await self._receive(call, request.timeout_s), self.model)

    async def count(self, messages: Sequence[Message]) -> int | None:
        if not self._can_count:
            return None
        counter = self._client.get().responses.input_tokens.with_raw_response
        call = counter.count(model=self.model, timeout=self.COUNT_TIMEOUT_S, **build_input(messages))
        try:
            return parse_token_count(await self._receive(call, self.COUNT_TIMEOUT_S))
        except CallError as error:
            # Only OpenAI's own server has this counter; some other servers use its path for something else.
            if error.kind not in ("model", "request"):
                raise
            self._can_count = False
            return None

    async def _receive(self, call: Awaitable[Any], seconds: float) -> str:
        """Send a call for a raw response, and return its body."""
        return self._scrub((await self._send(call, seconds)).text)

    def _connect(self) -> AsyncOpenAI:
        with hidden_environment("OPENAI_CUSTOM_HEADERS"):
            return AsyncOpenAI(
                api_key=self._reveal(PLACEHOLDER_KEY),
                base_url=self._options.base_url,
                max_retries=0,
                # The SDK takes both from the environment where it is given none.
                default_headers={"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()},
                http_client=DefaultAioHttpClient(trust_env=False, follow_redirects=False, event_hooks=bounded_hooks()),
            )

    async def _disconnect(self, client: AsyncOpenAI) -> None:
        await client.close()

    def _fault(self, error: Exception) -> CallError | None:
        match error:
            case APIStatusError():
                return self._status_fault(error.status_code, error.response.headers, error.response.text)
            case APIConnectionError():
                return CallError(_connection_fault(error), self._hide(str(error.__cause__ or error)))
            case TimeoutError():
                return CallError("timeout", f"{self.host} does not answer in time")
            case ClientError():
                return CallError("garbled", f"{self.host} answers with something that is not HTTP")
        return None


def _connection_fault(error: APIConnectionError) -> Literal["timeout", "connection"]:
    """Tell timeouts from lost connections by the innermost cause: the SDK reports both as timeouts."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return "timeout" if isinstance(cause, TimeoutError) else "connection"
