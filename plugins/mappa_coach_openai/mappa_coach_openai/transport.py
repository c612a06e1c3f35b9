"""Transport for servers with OpenAI's API on the official SDK.

Some defaults of the SDK are switched off: reading the environment, retrying, and following a redirect with the key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from aiohttp import ClientError
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, DefaultAioHttpClient, Omit

from mappa_coach_openai.options import Options
from mappa_coach_openai.request import build_chat_arguments, build_input, build_response_arguments
from mappa_coach_openai.response import parse_chat_completion, parse_error, parse_response, parse_token_count
from mappa_core import CallError, LoopBound, Message, Reply, Request, Secret, environment_without, one_line, retry_after

COUNT_TIMEOUT_S = 60.0
SECRET_OWNER = "the coach or policy openai"
PLACEHOLDER_KEY = "none"
"""Key sent to servers that need none: the SDK requires one."""


class OpenAITransport:
    """Implements Transport. Its connections are bound to the event loop of the first call until it is closed."""

    def __init__(self, options: Options) -> None:
        options.check()
        self._options = options
        self._secret = Secret.from_env(options.api_key_env, SECRET_OWNER) if options.api_key_env else None
        self._can_count = options.api == "responses"
        self._client = LoopBound(self._connect, AsyncOpenAI.close)

    @property
    def model(self) -> str:
        return self._options.model

    @property
    def host(self) -> str:
        return urlsplit(self._options.base_url).netloc

    async def complete(self, request: Request) -> Reply:
        client = self._client.get()
        if self._options.api == "responses":
            call = client.responses.with_raw_response.create(**build_response_arguments(self._options, request))
            return parse_response(await self._send(call), self.model)
        call = client.chat.completions.with_raw_response.create(**build_chat_arguments(self._options, request))
        return parse_chat_completion(await self._send(call), self.model)

    async def count(self, messages: Sequence[Message]) -> int | None:
        if not self._can_count:
            return None
        counter = self._client.get().responses.input_tokens.with_raw_response
        call = counter.count(model=self.model, timeout=COUNT_TIMEOUT_S, **build_input(messages))
        try:
            return parse_token_count(await self._send(call))
        except CallError as error:
            # Only OpenAI's own server has this counter; some other servers use its path for something else.
            if error.kind not in ("model", "request"):
                raise
            self._can_count = False
            return None

    async def close(self) -> None:
        await self._client.close()

    def _connect(self) -> AsyncOpenAI:
        with environment_without("OPENAI_CUSTOM_HEADERS"):
            return AsyncOpenAI(
                api_key=PLACEHOLDER_KEY if self._secret is None else self._secret.reveal(),
                base_url=self._options.base_url,
                max_retries=0,
                default_headers={"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()},
                http_client=DefaultAioHttpClient(trust_env=False, follow_redirects=False),
            )

    async def _send(self, call: Awaitable[Any]) -> str:
        """Await an SDK call and return the response body with the key redacted. Raises CallError where it fails."""
        try:
            answer = await call
        except APIStatusError as error:
            kind, words = parse_error(error.status_code, error.response.text)
            failure = CallError(kind, self._hide(words), retry_after_s=retry_after(error.response.headers))
        except APIConnectionError as error:
            failure = CallError(_connection_fault(error), self._hide(str(error.__cause__ or error)))
        except ClientError:
            failure = CallError("garbled", f"{self.host} answers with something that is not HTTP")
        else:
            return answer.text if self._secret is None else self._secret.scrub(answer.text)
        # Raised outside of the except blocks: the SDK's error holds the request's headers and must not be chained.
        raise failure

    def _hide(self, text: str) -> str:
        return one_line(text) if self._secret is None else self._secret.hide(text)


def _connection_fault(error: APIConnectionError) -> Literal["timeout", "connection"]:
    """Tell timeouts from lost connections by the innermost cause: the SDK reports both as timeouts."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return "timeout" if isinstance(cause, TimeoutError) else "connection"
