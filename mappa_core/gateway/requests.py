"""Chat completions as they are asked for: OpenAI's JSON, read into records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from mappa_core.gateway.faults import RequestFault
from mappa_core.records import Message, ToolCall, ToolSpec

SAMPLING = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "seed", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "parallel_tool_calls", "reasoning_effort",
    }
)  # fmt: skip
"""Settings that are the recipe's to make: the policy is trained as it is sampled. They are accepted and not heeded."""


class Part(msgspec.Struct):
    """A piece of a message."""

    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct):
    """`arguments` is JSON text."""

    name: str
    arguments: str


class Called(msgspec.Struct):
    """A call in an assistant's message."""

    function: CalledFunction
    id: str | None = None


class Said(msgspec.Struct):
    """A message. `developer` is the newer word for `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[Called] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class Function(msgspec.Struct):
    """A tool of the agent; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class Offered(msgspec.Struct):
    """An entry of `tools`."""

    type: Literal["function"]
    function: Function


class StreamOptions(msgspec.Struct):
    """How a stream ends."""

    include_usage: bool = False


class ResponseFormat(msgspec.Struct):
    """The form that a reply is to have."""

    type: str


class ChatRequest(msgspec.Struct):
    """The body of a request, as far as it matters here."""

    model: str
    messages: list[Said]
    tools: list[Offered] | None = None
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    response_format: ResponseFormat | None = None
    logit_bias: dict[str, float] | None = None


def read(body: bytes) -> ChatRequest:
    """The request of a body.

    Raises:
        RequestFault: it cannot be read, or asks for what only another sampler could give.
    """
    try:
        request = msgspec.json.decode(body, type=ChatRequest)
    except msgspec.DecodeError as error:
        raise RequestFault("invalid_request", f"the request cannot be read: {error}") from error
    if not request.messages:
        raise RequestFault("invalid_request", "a request has at least one message")
    asked = {
        "n": request.n not in (None, 1),
        "stop": bool(request.stop),
        "tool_choice": request.tool_choice not in (None, "auto", "none"),
        "top_logprobs": bool(request.top_logprobs),
        "response_format": request.response_format is not None and request.response_format.type != "text",
        "logit_bias": bool(request.logit_bias),
    }
    if refused := [name for name, given in asked.items() if given]:
        raise RequestFault(
            "unsupported",
            f"{', '.join(refused)}: the gateway gives what the policy samples, whole and one reply a request, as that "
            "is what it is trained on. Leave this out of the request.",
        )
    return request


def unheeded(body: bytes) -> frozenset[str]:
    """The settings of sampling that a request makes, and that do not count."""
    return SAMPLING.intersection(key for key, value in msgspec.json.decode(body).items() if value is not None)


def messages_of(said: Sequence[Said]) -> tuple[Message, ...]:
    """The messages as they were sent. Raises RequestFault for what is no text."""
    return tuple(_message(one, place) for place, one in enumerate(said))


def tools_of(request: ChatRequest) -> tuple[ToolSpec, ...]:
    """The tools of the agent, which it runs itself."""
    if request.tool_choice == "none" or request.tools is None:
        return ()
    functions = [one.function for one in request.tools]
    return tuple(ToolSpec(name=one.name, description=one.description, schema=one.parameters) for one in functions)


def _message(said: Said, place: int) -> Message:
    role = "system" if said.role == "developer" else said.role
    return Message(
        role=role,
        content=_text(said.content, place),
        name=said.name,
        tool_calls=tuple(_call(one, place) for one in said.tool_calls or ()),
        tool_call_id=said.tool_call_id,
        reasoning=said.reasoning_content,
    )


def _text(content: str | list[Part] | None, place: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    other = sorted({part.type for part in content if part.text is None})
    if other:
        raise RequestFault("unsupported", f"messages.{place}.content: {', '.join(other)}: only text can be shown here")
    return "".join(part.text for part in content if part.text is not None)


def _call(called: Called, place: int) -> ToolCall:
    try:
        arguments = json.loads(called.function.arguments or "{}")
    except json.JSONDecodeError as error:
        raise RequestFault("invalid_request", f"messages.{place}.tool_calls: arguments are no JSON: {error}") from error
    if not isinstance(arguments, Mapping):
        raise RequestFault("invalid_request", f"messages.{place}.tool_calls: arguments are no JSON object")
    return ToolCall(name=called.function.name, arguments=arguments, id=called.id)
