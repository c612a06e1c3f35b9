"""The sampler of one policy, in the driver: text to tokens and back; tokens are sampled by the pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mappa_core.engine.checks import check_request
from mappa_core.engine.cluster.samplers.pool import SamplerPool
from mappa_core.engine.models import Reading
from mappa_core.records import Completion, Int32, Message, Sampling, ToolSpec


class ClusterSampler:
    """Many callers may await `sample` at once."""

    def __init__(
        self, policy: str, reading: Reading, pool: SamplerPool, *, window: int, template_kwargs: Mapping[str, Any]
    ) -> None:
        self._policy = policy
        self._reading = reading
        self._pool = pool
        self._window = window
        self._template_kwargs = template_kwargs

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Int32:
        """Prompt tokens (P,) by the model's own chat template."""
        return self._reading.chat.render(messages, tools, self._template_kwargs)

    def reply(self, completion: Completion) -> Message:
        """The completion as an assistant message: think text apart, native tool calls parsed."""
        return self._reading.chat.reply(completion)

    def encode(self, text: str) -> Int32 | None:
        """`text` as an action: its tokens and the one that ends it; None where it cannot be written to the letter."""
        return self._reading.chat.encode(text, self._reading.stops)

    async def sample(self, prompt: Int32, sampling: Sampling) -> Completion:
        """Sample one action. Raises PromptTooLong where prompt and max_tokens exceed the window.

        At temperature 0 the likeliest token is taken, and log-probabilities are those of temperature 1.
        """
        check_request(prompt, sampling, where=self._reading.where, window=self._window)
        stops = self._reading.stops
        drawn = await self._pool.sample(self._policy, prompt, sampling, stops)
        tokens = drawn.tokens.tolist()
        return Completion(
            text=self._reading.chat.decode(tokens[:-1] if drawn.finish == "stop" else tokens),
            prompt_tokens=prompt,
            tokens=drawn.tokens,
            logprobs=drawn.logprobs,
            finish=drawn.finish,
            temperature=sampling.temperature,
            versions=drawn.versions,
            seconds=drawn.seconds,
        )
