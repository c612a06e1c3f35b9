"""The sampler of one policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from mappa_core import Message, ToolSpec
from mappa_core.engine import Completion, Sampling
from mappa_engine.arrays import Int32
from mappa_engine.local.continuous_batching import Decoder, DecodeRequest, DecodeWave
from mappa_engine.local.models import LoadedModel
from mappa_engine.local.worker import Worker
from mappa_engine.sampling_checks import check_request


class LocalSampler:
    """Collects the requests of one event-loop tick into a wave, which is decoded together."""

    def __init__(
        self, base: LoadedModel, decoder: Decoder, worker: Worker, template_kwargs: Mapping[str, Any], *, window: int
    ) -> None:
        self._worker = worker
        self._template_kwargs = template_kwargs
        self._wave: DecodeWave = []
        self.use(base, decoder, window=window)

    def use(self, base: LoadedModel, decoder: Decoder, *, window: int) -> None:
        """Sample from another module of the same model from now on."""
        self._base, self._decoder, self.window = base, decoder, window

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Int32:
        """Render the prompt tokens (P,) with the model's own chat template."""
        return self._base.chat.render(messages, tools, self._template_kwargs)

    def reply(self, completion: Completion) -> Message:
        """Parse a completion into an assistant message: reasoning text separated, native tool calls parsed."""
        return self._base.chat.reply(completion)

    def encode(self, text: str) -> Int32 | None:
        """Encode `text` as an action: its tokens and a stop token; None if it cannot be encoded losslessly."""
        return self._base.chat.encode(text, self._base.stops)

    async def sample(self, tokens: Int32, sampling: Sampling) -> Completion:
        """Sample one action. Raises PromptTooLong if prompt and max_tokens exceed the window.

        At temperature 0 sampling is greedy, and log-probabilities are those of temperature 1.
        """
        limited = " in engine.options.kv_cache_mb" if self.window < self._base.window else ""
        check_request(tokens, sampling, model_name=f"{self._base.model_name}{limited}", window=self.window)
        loop = asyncio.get_running_loop()
        request = DecodeRequest(prompt=tokens, sampling=sampling, future=loop.create_future())
        if not self._wave:
            loop.call_soon(self._submit)
        self._wave.append(request)
        return await request.future

    def _submit(self) -> None:
        wave, self._wave = self._wave, []
        self._worker.submit(self._decoder, wave)
