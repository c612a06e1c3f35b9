"""Sampler of one policy in the driver: renders prompts, decodes completions, and samples through the pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mappa_core import Message, ToolSpec
from mappa_core.engine import Completion, Sampling
from mappa_engine.arrays import Int32
from mappa_engine.cluster.samplers.pool import SamplerPool
from mappa_engine.cluster.samplers.sampling_masks import check_sampling
from mappa_engine.model_info import ModelInfo
from mappa_engine.sampling_checks import check_request
from mappa_engine.stop_texts import find_stop


class ClusterSampler:
    """Samples actions of one policy; any number of concurrent `sample` calls is allowed."""

    def __init__(
        self, policy: str, model: ModelInfo, pool: SamplerPool, *, window: int, template_kwargs: Mapping[str, Any]
    ) -> None:
        self._policy = policy
        self._model = model
        self._pool = pool
        self.window = window
        self._template_kwargs = template_kwargs

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Int32:
        """Render prompt tokens (P,) with the model's chat template."""
        return self._model.chat.render(messages, tools, self._template_kwargs)

    def reply(self, completion: Completion) -> Message:
        """Convert a completion to an assistant message, with reasoning text separated and native tool calls parsed."""
        return self._model.chat.reply(completion)

    def encode(self, text: str) -> Int32 | None:
        """Encode `text` as an action, with its stop token; None where the tokens would not decode to exactly `text`."""
        return self._model.chat.encode(text, self._model.stops)

    async def sample(self, prompt: Int32, sampling: Sampling) -> Completion:
        """Sample one action. Raises PromptTooLong where prompt and max_tokens exceed the window, ConfigError where vLLM
        does not sample so.

        At temperature 0 the most likely token is taken, and log-probabilities are those of temperature 1.
        """
        check_request(prompt, sampling, model_name=self._model.model_name, window=self.window)
        check_sampling(sampling)
        stops = self._model.stops
        generation = await self._pool.sample(self._policy, prompt, sampling, stops)
        tokens = generation.tokens.tolist()
        decode = self._model.chat.decode
        written = tokens[:-1] if tokens[-1] in stops else tokens
        match = find_stop(decode, written, sampling.stop)
        return Completion(
            text=decode(written) if match is None else match.text,
            prompt_tokens=prompt,
            tokens=generation.tokens,
            logprobs=generation.logprobs,
            mask_tokens=generation.mask_tokens,
            mask_sizes=generation.mask_sizes,
            finish=generation.finish,
            temperature=sampling.temperature,
            versions=generation.versions,
            seconds=generation.seconds,
            stop_text=None if match is None else match.stop_text,
        )
