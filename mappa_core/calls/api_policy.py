"""Policies behind an API: agents played by a provider's model, without local weights."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mappa_core.calls.client import ProviderClient
from mappa_core.calls.options import ApiPolicyOptions
from mappa_core.calls.reply_text import split_reasoning
from mappa_core.errors import CallError, ConfigError, PromptTooLong
from mappa_core.protocols import Provider, Request
from mappa_core.records import Completion, Finish, Message, Sampling, ToolSpec

FENCED_TOOL = "python"
"""The tool that is called by a fenced code block, which any model can write."""
SEED_MODULUS = 2**31
"""Some providers refuse seeds of more than 31 bits."""

_FINISH: dict[Literal["end", "length", "blocked"], Finish] = {"end": "stop", "length": "length", "blocked": "abort"}


class ApiPolicy:
    """Samples actions from a provider's model. It is not trained: there are no tokens and no log-probabilities."""

    window = None

    def __init__(self, caller: ProviderClient, options: ApiPolicyOptions) -> None:
        self._caller = caller
        self._options = options

    @property
    def provider(self) -> Provider:
        return self._caller.provider

    def open_batches(self, folder: Path) -> None:
        self._caller.open_batches(folder)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> tuple[Message, ...]:
        """Convert `messages` to the form that every provider accepts: at most one `system` message, then `user` and
        `assistant` alternating. Tool results and calls become text under a line that says so; reasoning is dropped.
        Raises ConfigError for another tool than `python`, called by a fenced block: it would need native calls."""
        native = [tool.name for tool in tools if tool.name != FENCED_TOOL]
        if native:
            raise ConfigError(
                f"a policy behind an API calls only {FENCED_TOOL}, by a fenced block, and the workflow offers it "
                f"{', '.join(native)}: give that agent a policy of kind full or frozen"
            )
        turns: list[Message] = []
        for message in messages:
            turn = _as_turn(message, at_start=not turns or turns[-1].role == "system")
            # Some providers refuse an empty message.
            if not turn.content.strip():
                continue
            if turns and turns[-1].role == turn.role:
                turn = Message(role=turn.role, content=f"{turns.pop().content}\n\n{turn.content}")
            turns.append(turn)
        return tuple(turns)

    async def sample(self, prompt: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Sample one action; blocked by the provider, it has no text and the finish `abort`. Raises CallError if there
        is no reply, PromptTooLong if prompt and `max_tokens` exceed the model's context window, ConfigError if
        `sampling` truncates the distribution, which not every provider supports."""
        if sampling.top_p != 1.0 or sampling.top_k != 0:
            raise ConfigError(
                "a policy behind an API needs sampling.top_p=1 and sampling.top_k=0, as not every provider supports "
                f"others; here they are {sampling.top_p:g} and {sampling.top_k}"
            )
        request = Request(
            messages=prompt,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature if self._options.send_temperature else None,
            seed=sampling.seed % SEED_MODULUS,
            timeout_s=self._options.limits.timeout_s,
        )
        started = time.perf_counter()
        try:
            reply = await self._caller.complete(request)
        except CallError as fault:
            if fault.kind == "too_long":
                raise PromptTooLong(str(fault)) from fault
            raise
        text, stop_text = _cut_at_stop("" if reply.stop == "blocked" else reply.text, sampling.stop)
        # Providers that are sent no temperature sample at their default, which is 1.0.
        temperature = 1.0 if request.temperature is None else request.temperature
        return Completion(
            text=text,
            prompt_tokens=None,
            tokens=None,
            logprobs=None,
            finish=_FINISH[reply.stop] if stop_text is None else "stop",
            temperature=temperature,
            usage=reply.usage,
            seconds=time.perf_counter() - started,
            stop_text=stop_text,
        )

    def reply(self, completion: Completion) -> Message:
        """Return the completion as an assistant message with its reasoning text split off."""
        reasoning, content = split_reasoning(completion.text)
        return Message(role="assistant", content=content, reasoning=reasoning)

    def encode(self, text: str) -> None:
        """Return None: the provider's tokens are not known."""

    async def close(self) -> None:
        await self._caller.close()


def _cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """Cut a reply at the first text of `stop`, and say which. Providers differ in what they take as stop texts, and up
    to there they would have written the same."""
    found = [(text.index(wanted), wanted) for wanted in stop if wanted in text]
    if not found:
        return text, None
    at, wanted = min(found)
    return text[:at], wanted


def _as_turn(message: Message, *, at_start: bool) -> Message:
    """As a text-only message of role system, user or assistant. `at_start`: only system messages precede it."""
    if message.role == "tool":
        source = "a tool" if message.name is None else f"the tool {message.name}"
        return Message(role="user", content=f"Result of {source}:\n\n{message.content}")
    if message.role == "system" and not at_start:
        return Message(role="user", content=message.content)
    calls = (f"Call of the tool {call.name}:\n\n{json.dumps(dict(call.arguments))}" for call in message.tool_calls)
    return Message(role=message.role, content="\n\n".join(part for part in (message.content, *calls) if part.strip()))
