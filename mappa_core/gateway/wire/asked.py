"""What a request comes to, in whichever form it was sent, and what an action tells of itself in either."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from mappa_core.gateway.faults import RequestFault
from mappa_core.records import Message, Step, ToolCall, ToolSpec

SAMPLING = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "max_output_tokens", "seed",
        "presence_penalty", "frequency_penalty", "repetition_penalty", "parallel_tool_calls", "reasoning_effort",
        "reasoning",
    }
)  # fmt: skip
"""Settings that are the recipe's to make: the policy is trained as it is sampled. They are accepted and not heeded."""
_Body = TypeVar("_Body")
CREATED = 0
"""Seconds since the epoch, the same in every replay: an agent may show to the model what it is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: what it asks of which agent, and how it is answered with the action that it became: whole, as JSON, or
    as the events of a stream where it asks for one."""

    model: str
    messages: tuple[Message, ...]
    own_tools: tuple[ToolSpec, ...]
    stream: bool
    answer: Callable[[Step], dict[str, Any]]
    events: Callable[[Step], Iterator[bytes]]


class Part(msgspec.Struct):
    """A piece of a message."""

    type: str
    text: str | None = None


def decoded(body: bytes, form: type[_Body]) -> _Body:
    """`body` as a request of this form. Raises RequestFault where it cannot be read."""
    try:
        return msgspec.json.decode(body, type=form)
    except msgspec.DecodeError as error:
        raise RequestFault("invalid_request", f"the request cannot be read: {error}") from error


def unheeded(body: bytes) -> frozenset[str]:
    """The settings of sampling that a request makes, and that do not count."""
    return SAMPLING.intersection(key for key, value in msgspec.json.decode(body).items() if value is not None)


def refuse(asked: Mapping[str, bool]) -> None:
    """Raises RequestFault for what only another sampler could give: the names in `asked` that are true."""
    if refused := [name for name, given in asked.items() if given]:
        raise RequestFault(
            "unsupported",
            f"{', '.join(refused)}: the gateway gives what the policy samples, whole and one reply a request, as that "
            "is what it is trained on. Leave this out of the request.",
        )


def text_of(content: str | Sequence[Part] | None, where: str) -> str:
    """The text of a message. Raises RequestFault for what is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    other = sorted({part.type for part in content if part.text is None})
    if other:
        raise RequestFault("unsupported", f"{where}: {', '.join(other)}: only text can be shown here")
    return "".join(part.text for part in content if part.text is not None)


def call_of(name: str, arguments: str, call_id: str | None, where: str) -> ToolCall:
    """A call that was made earlier; `arguments` is JSON text. Raises RequestFault where that is no JSON object."""
    try:
        values = json.loads(arguments or "{}")
    except json.JSONDecodeError as error:
        raise RequestFault("invalid_request", f"{where}: arguments are no JSON: {error}") from error
    if not isinstance(values, Mapping):
        raise RequestFault("invalid_request", f"{where}: arguments are no JSON object")
    return ToolCall(name=name, arguments=values, id=call_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldCall:
    """A call for the agent to run; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the agent is told of an action."""

    content: str
    reasoning: str | None = None
    calls: tuple[ToldCall, ...] = ()


def told(step: Step) -> Told:
    """Calls that the agent has no tools for, or that cannot be read, stay in the text as the model wrote it."""
    reply, calls = step.reply, step.reply.tool_calls
    if calls and (not step.own_tools or any(call.error is not None for call in calls)):
        return Told(content=step.completion.text)
    named = (
        ToldCall(id=f"call_{step.position:03d}_{place}", name=call.name, arguments=json.dumps(dict(call.arguments)))
        for place, call in enumerate(calls)
    )
    return Told(content=reply.content, reasoning=reply.reasoning, calls=tuple(named))


def token_counts(step: Step) -> tuple[int, int] | None:
    """Tokens of prompt and action; None where a provider does not say."""
    sampled = step.completion
    if sampled.usage is not None:
        prompt, written = sampled.usage.prompt_tokens, sampled.usage.completion_tokens
        return None if prompt is None or written is None else (prompt, written)
    if sampled.prompt_tokens is None or sampled.tokens is None:
        return None
    return len(sampled.prompt_tokens), len(sampled.tokens)
