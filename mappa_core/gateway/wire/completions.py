"""OpenAI's chat completions: requests as they are sent, actions as they are answered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

import msgspec

from mappa_core.gateway.faults import RequestFault
from mappa_core.gateway.wire.asked import CREATED, Asked, Part, call_of, decoded, refuse, text_of, token_counts, told
from mappa_core.records import Finish, Message, Step, ToolSpec

_FINISH: Mapping[Finish, str] = {"stop": "stop", "length": "length", "tool": "tool_calls", "abort": "content_filter"}


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


def read(body: bytes) -> Asked:
    """The request of a body.

    Raises:
        RequestFault: it cannot be read, or asks for what only another sampler could give.
    """
    request = decoded(body, ChatRequest)
    if not request.messages:
        raise RequestFault("invalid_request", "a request has at least one message")
    refuse(
        {
            "n": request.n not in (None, 1),
            "stop": bool(request.stop),
            "tool_choice": request.tool_choice not in (None, "auto", "none"),
            "top_logprobs": bool(request.top_logprobs),
            "response_format": request.response_format is not None and request.response_format.type != "text",
            "logit_bias": bool(request.logit_bias),
        }
    )
    return Asked(
        model=request.model,
        messages=tuple(_message(one, f"messages.{place}") for place, one in enumerate(request.messages)),
        own_tools=_tools(request),
        stream=bool(request.stream),
        answer=partial(_completion, request),
        events=partial(_events, request),
    )


def _tools(request: ChatRequest) -> tuple[ToolSpec, ...]:
    """The tools of the agent, which it runs itself."""
    if request.tool_choice == "none" or request.tools is None:
        return ()
    functions = [one.function for one in request.tools]
    return tuple(ToolSpec(name=one.name, description=one.description, schema=one.parameters) for one in functions)


def _message(said: Said, where: str) -> Message:
    calls = (
        call_of(one.function.name, one.function.arguments, one.id, f"{where}.tool_calls")
        for one in said.tool_calls or ()
    )
    return Message(
        role="system" if said.role == "developer" else said.role,
        content=text_of(said.content, f"{where}.content"),
        name=said.name,
        tool_calls=tuple(calls),
        tool_call_id=said.tool_call_id,
        reasoning=said.reasoning_content,
    )


def _completion(request: ChatRequest, step: Step) -> dict[str, Any]:
    """The answer to `request`, which became `step`."""
    message = _said(step)
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "finish_reason": _finish(step, message),
        "logprobs": _logprobs(step) if request.logprobs else None,
    }
    return {**_head(step, request, "chat.completion"), "choices": [choice], "usage": _usage(step)}


def _events(request: ChatRequest, step: Step) -> Iterator[bytes]:
    """The same as server-sent events. An action is known only when it is whole, so its text is one event."""
    head = _head(step, request, "chat.completion.chunk")
    message = _said(step)
    calls = [{"index": place, **call} for place, call in enumerate(message.pop("tool_calls", ()))]
    delta = {"role": "assistant", **message, **({"tool_calls": calls} if calls else {})}
    logprobs = _logprobs(step) if request.logprobs else None
    said = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": logprobs}
    ended = {"index": 0, "delta": {}, "finish_reason": _finish(step, {"tool_calls": calls}), "logprobs": None}
    yield _event({**head, "choices": [said]})
    yield _event({**head, "choices": [ended]})
    if request.stream_options is not None and request.stream_options.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(step)})
    yield b"data: [DONE]\n\n"


def _head(step: Step, request: ChatRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{step.id}", "object": kind, "created": CREATED, "model": request.model}


def _said(step: Step) -> dict[str, Any]:
    heard = told(step)
    message: dict[str, Any] = {"content": heard.content}
    if heard.reasoning is not None:
        message["reasoning_content"] = heard.reasoning
    if heard.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in heard.calls
        ]
    return message


def _finish(step: Step, message: Mapping[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else _FINISH[step.completion.finish]


def _logprobs(step: Step) -> dict[str, Any] | None:
    """The sampled tokens by number, as servers of open models give them, with their log-probabilities (nats); None of a
    policy behind an API."""
    tokens, logprobs = step.completion.tokens, step.completion.logprobs
    if tokens is None or logprobs is None:
        return None
    pairs = zip(tokens.tolist(), logprobs.tolist(), strict=True)
    content = [
        {"token": f"token_id:{token}", "logprob": nats, "bytes": None, "top_logprobs": []} for token, nats in pairs
    ]
    return {"content": content, "refusal": None}


def _usage(step: Step) -> dict[str, int] | None:
    counts = token_counts(step)
    if counts is None:
        return None
    prompt, written = counts
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
