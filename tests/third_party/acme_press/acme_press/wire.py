"""The transport: a provider that answers `POST /v9/judge`, and takes its key in its own header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mappa_core import (
    Message,
)
from mappa_core.transport import (
    UNCOMPRESSED,
    CallError,
    LoopBound,
    Reply,
    Request,
    Secret,
    Transport,
    bound_response,
    decode_answer,
    fault_from_status,
    retry_after,
)


@dataclass
class Options:
    model: str = "???"
    address: str = "https://judge.acme.example"
    key_in: str = "ACME_PRESS_KEY"


@dataclass
class Said:
    words: str
    enough: bool


def build(options: Options) -> Transport:
    """Build the transport; the HTTP client is imported only when a run uses it."""
    import aiohttp

    class Wire:
        def __init__(self) -> None:
            self._secret = Secret.from_env(options.key_in, "the coach press_wire")
            self._client = LoopBound(aiohttp.ClientSession, aiohttp.ClientSession.close)
            self.model = options.model
            self.host = urlsplit(options.address).netloc

        async def complete(self, request: Request) -> Reply:
            said_so_far = [message.content for message in request.messages]
            raw = await self._post({"who": self.model, "said": said_so_far}, request)
            said = decode_answer(raw, Said)
            return Reply(text=said.words, stop="end" if said.enough else "length", model=self.model, raw=raw)

        async def count(self, messages: Sequence[Message]) -> int | None:
            return None

        async def close(self) -> None:
            await self._client.close()

        async def _post(self, body: dict[str, Any], request: Request) -> str:
            try:
                async with self._client.get().post(
                    f"{options.address}/v9/judge",
                    json=body,
                    headers={"x-acme-key": self._secret.reveal(), **UNCOMPRESSED},
                    timeout=aiohttp.ClientTimeout(total=request.timeout_s),
                    allow_redirects=False,
                ) as answer:
                    bound_response(answer)
                    raw = self._secret.scrub((await answer.read()).decode(errors="replace"))
                if answer.status == 200:
                    return raw
                fault = CallError(
                    fault_from_status(answer.status), self._secret.hide(raw), retry_after_s=retry_after(answer.headers)
                )
            except TimeoutError:
                fault = CallError("timeout", "the judge takes too long")
            except aiohttp.ClientConnectorError:
                fault = CallError("connection", "the judge is not there", free=True)
            except aiohttp.ClientResponseError:
                fault = CallError("garbled", "the judge does not speak HTTP")
            except aiohttp.ClientError as error:
                fault = CallError("connection", self._secret.hide(str(error)))
            raise fault

    return Wire()
