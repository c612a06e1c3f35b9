"""OpenAI's Chat Completions format: parse requests, encode actions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

import msgspec

from mappa_core import Message, Step, ToolSpec
from mappa_gateway.errors import RequestFault
from mappa_gateway.wire.request import (
    CREATED_AT,
    AgentRequest,
    ContentPart,
    ignored_settings,
    join_text,
    parse_call,
    refuse_format,
    refuse_unsupported,
    stop_texts,
    to_form,
    to_response,
    token_counts,
)

_FINISH: Mapping[str, str] = {"stop": "stop", "length": "length", "tool": "tool_calls", "abort": "content_filter"}


class FunctionCall(msgspec.Struct):
    """Name and arguments of a call; `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCallEntry(msgspec.Struct):
    """A tool call in an assistant's message."""

    function: FunctionCall
    id: str | None = None


class ChatMessage(msgspec.Struct):
    """A message. `developer` is the newer name of `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallEntry] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    function_call: dict[str, Any] | None = None


class FunctionSpec(msgspec.Struct):
    """A tool of the agent; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(msgspec.Struct):
    """An entry of `tools`."""

    type: Literal["function"]
    function: FunctionSpec


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct):
    """Required format of a reply."""

    type: str


class ChatRequest(msgspec.Struct):
    """Body of a request; only the fields used here."""

    model: str
    messages: list[ChatMessage]
    tools: list[ChatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    n: int | None = None
    parallel_tool_calls: bool | None = None
    stop: str | list[str] | None = None
    response_format: ResponseFormat | None = None
    logit_bias: dict[str, float] | None = None


def parse_chat_request(body: Any) -> AgentRequest:
    """Convert the JSON of a request.

    Raises:
        RequestFault: it cannot be read, or asks for something that the sampler does not support.
    """
    request = to_form(body, ChatRequest)
    ignored = ignored_settings(body, ChatRequest)
    if not request.messages:
        raise RequestFault("invalid_request", "a request has at least one message")
    if request.n not in (None, 1):
        raise RequestFault(
            "unsupported",
            "n: a request becomes one action, as only one reply is continued. Leave it out, and send the request again "
            "for each further reply: each is an action with a verdict of its own.",
        )
    form = request.response_format
    refuse_format({"response_format": form is not None and form.type != "text"})
    refuse_unsupported(
        {
            "tool_choice": request.tool_choice not in (None, "auto", "none"),
            "top_logprobs": bool(request.top_logprobs),
            "logit_bias": bool(request.logit_bias),
        }
    )
    return AgentRequest(
        model=request.model,
        messages=tuple(_message(message, f"messages.{place}") for place, message in enumerate(request.messages)),
        own_tools=_tools(request),
        stop=stop_texts(request.stop, "stop"),
        stream=bool(request.stream),
        ignored=ignored,
        to_json=partial(_completion, request),
        to_events=partial(_events, request),
    )


def _tools(request: ChatRequest) -> tuple[ToolSpec, ...]:
    """Tools of the agent, which it runs itself."""
    if request.tool_choice == "none" or request.tools is None:
        return ()
    functions = [tool.function for tool in request.tools]
    return tuple(
        ToolSpec(name=spec.name, description=spec.description or "", schema=spec.parameters or {}) for spec in functions
    )


def _message(message: ChatMessage, where: str) -> Message:
    refuse_unsupported({f"{where}.function_call": message.function_call is not None})
    calls = (
        parse_call(call.function.name, call.function.arguments, call.id, f"{where}.tool_calls")
        for call in message.tool_calls or ()
    )
    return Message(
        role="system" if message.role == "developer" else message.role,
        content=join_text(message.refusal if message.content is None else message.content, f"{where}.content"),
        name=message.name,
        tool_calls=tuple(calls),
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning_content,
    )


def _completion(request: ChatRequest, step: Step) -> dict[str, Any]:
    """Encode `step` as the response to `request`."""
    message = _message_json(step, request)
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "finish_reason": _finish_reason(step, message),
        "logprobs": _logprobs(step) if request.logprobs else None,
    }
    return {**_envelope(step, request, "chat.completion"), "choices": [choice], "usage": _usage(step)}


def _events(request: ChatRequest, step: Step) -> Iterator[bytes]:
    """Encode `step` as server-sent events. An action is known only when it is complete, so its text is one event."""
    head = _envelope(step, request, "chat.completion.chunk")
    message = _message_json(step, request)
    calls = [{"index": place, **call} for place, call in enumerate(message.pop("tool_calls", ()))]
    delta = {"role": "assistant", **message, **({"tool_calls": calls} if calls else {})}
    logprobs = _logprobs(step) if request.logprobs else None
    content = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": logprobs}
    end = {"index": 0, "delta": {}, "finish_reason": _finish_reason(step, {"tool_calls": calls}), "logprobs": None}
    yield _event({**head, "choices": [content]})
    yield _event({**head, "choices": [end]})
    if request.stream_options is not None and request.stream_options.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(step)})
    yield b"data: [DONE]\n\n"


def _envelope(step: Step, request: ChatRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{step.id}", "object": kind, "created": CREATED_AT, "model": request.model}


def _message_json(step: Step, request: ChatRequest) -> dict[str, Any]:
    response = to_response(step, parallel=request.parallel_tool_calls is not False)
    message: dict[str, Any] = {"content": response.content}
    if response.reasoning is not None:
        message["reasoning_content"] = response.reasoning
    if response.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in response.calls
        ]
    return message


def _finish_reason(step: Step, message: Mapping[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else _FINISH[step.completion.finish]


def _logprobs(step: Step) -> dict[str, Any] | None:
    """Sampled tokens as ids, as servers of open models give them, with their log-probabilities (nats); None for a
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
    prompt, completion = counts
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
