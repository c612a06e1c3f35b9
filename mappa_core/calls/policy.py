"""Policies behind an API: agents without weights here, played by a provider's model."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Literal

from mappa_core.calls.caller import Caller
from mappa_core.calls.options import ApiPolicyOptions, merged
from mappa_core.calls.thinking import split_thought
from mappa_core.errors import CallError, ConfigError, PromptTooLong
from mappa_core.hookspecs import Offer
from mappa_core.protocols import Provider, Request, Transport
from mappa_core.records import Completion, Finish, Message, Sampling, ToolSpec

FENCED = "python"
"""The tool that is called by writing a fenced block, which any model can."""
SEEDS = 2**31
"""Seeds are sent modulo this: more bits than 31 are an error for some providers."""

_FINISH: dict[Literal["end", "length", "blocked"], Finish] = {"end": "stop", "length": "length", "blocked": "abort"}


def policy_of(offer: Offer[Transport]) -> Offer[ApiPolicy]:
    """The policy behind an API that core makes of a transport, under its name."""

    def build(options: Any) -> ApiPolicy:
        caller = Caller(offer.build(options), name=offer.name, limits=options.limits, price=options.price)
        return ApiPolicy(caller, options)

    return Offer(offer.name, build, merged(ApiPolicyOptions, offer.options))


class ApiPolicy:
    """Samples actions of a provider's model. Nothing of it is trained: there are no tokens and no log-probabilities."""

    def __init__(self, caller: Caller, options: ApiPolicyOptions) -> None:
        self._caller = caller
        self._options = options

    @property
    def provider(self) -> Provider:
        """Who is asked."""
        return self._caller.provider

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> tuple[Message, ...]:
        """`messages` as every provider takes them: one of role `system` at most, then `user` and `assistant` in turn.

        What stands together of one role is joined, a later system message becomes the user's, what is empty is left
        out. Results of tools become text of the user, calls text of the assistant, under a line that says so; think
        text stays out. The tool `python` is called by a fenced block, of which the workflow's own prompt tells.

        Raises:
            ConfigError: another tool is offered, which would have to be called natively.
        """
        native = [tool.name for tool in tools if tool.name != FENCED]
        if native:
            raise ConfigError(
                f"a policy behind an API calls only {FENCED}, by a fenced block, and the workflow offers it "
                f"{', '.join(native)}: give that agent a policy of kind full or frozen"
            )
        turns: list[Message] = []
        for message in messages:
            turn = _as_turn(message, begins=not turns or turns[-1].role == "system")
            if not turn.content.strip():
                continue
            if turns and turns[-1].role == turn.role:
                turn = Message(role=turn.role, content=f"{turns.pop().content}\n\n{turn.content}")
            turns.append(turn)
        return tuple(turns)

    async def sample(self, prompt: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Sample one action. A reply that the provider blocked is an action without text, finished by `abort`.

        Raises:
            CallError: there is no reply.
            PromptTooLong: prompt and `max_tokens` exceed the model's window.
            ConfigError: `sampling` cuts the distribution, which not every provider can.
        """
        if sampling.top_p != 1.0 or sampling.top_k != 0:
            raise ConfigError(
                "a policy behind an API needs sampling.top_p=1 and sampling.top_k=0, "
                f"not {sampling.top_p:g} and {sampling.top_k}"
            )
        request = Request(
            messages=prompt,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature if self._options.send_temperature else None,
            seed=sampling.seed % SEEDS,
            timeout_s=self._options.limits.timeout_s,
        )
        started = time.perf_counter()
        try:
            reply = await self._caller.complete(request)
        except CallError as fault:
            if fault.kind == "too_long":
                raise PromptTooLong(str(fault)) from fault
            raise
        return Completion(
            text="" if reply.stop == "blocked" else reply.text,
            prompt_tokens=None,
            tokens=None,
            logprobs=None,
            finish=_FINISH[reply.stop],
            temperature=1.0 if request.temperature is None else request.temperature,  # 1.0 is the providers' own
            usage=reply.usage,
            seconds=time.perf_counter() - started,
        )

    def reply(self, completion: Completion) -> Message:
        """The completion as an assistant message, think text apart."""
        thought, said = split_thought(completion.text)
        return Message(role="assistant", content=said, reasoning=thought)

    def encode(self, text: str) -> None:
        """None: tokens are the provider's own affair."""
        return

    async def close(self) -> None:
        """Release connections."""
        await self._caller.close()


def _as_turn(message: Message, *, begins: bool) -> Message:
    """`message` as one of role system, user or assistant that has only text. `begins`: nothing but system messages
    stands before it."""
    if message.role == "tool":
        source = "a tool" if message.name is None else f"the tool {message.name}"
        return Message(role="user", content=f"Result of {source}:\n\n{message.content}")
    if message.role == "system" and not begins:
        return Message(role="user", content=message.content)
    calls = (f"Call of the tool {call.name}:\n\n{json.dumps(dict(call.arguments))}" for call in message.tool_calls)
    return Message(role=message.role, content="\n\n".join(part for part in (message.content, *calls) if part.strip()))
