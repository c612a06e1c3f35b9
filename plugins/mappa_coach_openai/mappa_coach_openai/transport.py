"""One call of a server that speaks OpenAI's API, by the official SDK.

The SDK is kept from what it would do by itself: read the environment, try again, follow a redirect with the key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from aiohttp import ClientError
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, DefaultAioHttpClient, Omit

from mappa_coach_openai.asking import chat_arguments, conversation, response_arguments
from mappa_coach_openai.options import Options
from mappa_coach_openai.reading import explain, read_chat, read_count, read_response
from mappa_core import CallError, LoopBound, Message, Reply, Request, Secret, environment_without, one_line, retry_after

COUNT_TIMEOUT_S = 60.0
OWNER = "the coach or policy openai"
KEYLESS = "none"
"""What is sent to a server that asks for no key: the SDK wants one."""


class OpenAITransport:
    """Implements Transport. Its connections belong to the event loop of its first call, until it is closed."""

    def __init__(self, options: Options) -> None:
        options.check()
        self._options = options
        self._secret = Secret.from_env(options.api_key_env, OWNER) if options.api_key_env else None
        self._counts = options.api == "responses"
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
            call = client.responses.with_raw_response.create(**response_arguments(self._options, request))
            return read_response(await self._body(call), self.model)
        call = client.chat.completions.with_raw_response.create(**chat_arguments(self._options, request))
        return read_chat(await self._body(call), self.model)

    async def count(self, messages: Sequence[Message]) -> int | None:
        if not self._counts:
            return None
        counter = self._client.get().responses.input_tokens.with_raw_response
        call = counter.count(model=self.model, timeout=COUNT_TIMEOUT_S, **conversation(messages))
        try:
            return read_count(await self._body(call))
        except CallError as error:
            # Only OpenAI's own server has this counter; of the others, some have its path for something else.
            if error.kind not in ("model", "request"):
                raise
            self._counts = False
            return None

    async def close(self) -> None:
        await self._client.close()

    def _connect(self) -> AsyncOpenAI:
        with environment_without("OPENAI_CUSTOM_HEADERS"):
            return AsyncOpenAI(
                api_key=KEYLESS if self._secret is None else self._secret.reveal(),
                base_url=self._options.base_url,
                max_retries=0,
                default_headers={"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()},
                http_client=DefaultAioHttpClient(trust_env=False, follow_redirects=False),
            )

    async def _body(self, call: Awaitable[Any]) -> str:
        """What the server answers, without the key. Raises CallError where it does not."""
        try:
            answer = await call
        except APIStatusError as error:
            kind, words = explain(error.status_code, error.response.text)
            failed = CallError(kind, self._hide(words), retry_after_s=retry_after(error.response.headers))
        except APIConnectionError as error:
            failed = CallError(_lost(error), self._hide(str(error.__cause__ or error)))
        except ClientError:
            failed = CallError("garbled", f"{self.host} answers with something that is not HTTP")
        else:
            return answer.text if self._secret is None else self._secret.scrub(answer.text)
        # Not raised where it was caught: the SDK's error holds the headers of the request, and stays behind.
        raise failed

    def _hide(self, text: str) -> str:
        return one_line(text) if self._secret is None else self._secret.hide(text)


def _lost(error: APIConnectionError) -> Literal["timeout", "connection"]:
    """The SDK calls lost connections timeouts too; what is below it knows better."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return "timeout" if isinstance(cause, TimeoutError) else "connection"
