"""The sampler of one policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from mappa_core.engine.checks import check_request
from mappa_core.engine.local.decoder import Decoder, Request, Wave
from mappa_core.engine.local.models import Source
from mappa_core.engine.local.worker import Worker
from mappa_core.records import Completion, Int32, Message, Sampling, ToolSpec


class LocalSampler:
    """Collects the requests of one turn of the event loop into a wave, which is decoded together."""

    def __init__(self, source: Source, decoder: Decoder, worker: Worker, template_kwargs: Mapping[str, Any]) -> None:
        self._source = source
        self._decoder = decoder
        self._worker = worker
        self._template_kwargs = template_kwargs
        self._wave: Wave = []

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Int32:
        """Prompt tokens (P,) by the model's own chat template."""
        return self._source.chat.render(messages, tools, self._template_kwargs)

    def reply(self, completion: Completion) -> Message:
        """The completion as an assistant message: think text apart, native tool calls parsed."""
        return self._source.chat.reply(completion)

    def encode(self, text: str) -> Int32 | None:
        """`text` as an action: its tokens and the one that ends it; None where it cannot be written to the letter."""
        return self._source.chat.encode(text, self._source.stops)

    async def sample(self, tokens: Int32, sampling: Sampling) -> Completion:
        """Sample one action. Raises PromptTooLong where prompt and max_tokens exceed the window.

        At temperature 0 the likeliest token is taken, and log-probabilities are those of temperature 1.
        """
        check_request(tokens, sampling, where=self._source.where, window=self._source.window)
        loop = asyncio.get_running_loop()
        request = Request(prompt=tokens, sampling=sampling, answer=loop.create_future())
        if not self._wave:
            loop.call_soon(self._submit)
        self._wave.append(request)
        return await request.answer

    def _submit(self) -> None:
        wave, self._wave = self._wave, []
        self._worker.submit(self._decoder, wave)
