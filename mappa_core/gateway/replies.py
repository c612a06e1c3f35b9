"""Actions as chat completions: whole, or as the events of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mappa_core.gateway.requests import ChatRequest
from mappa_core.records import Finish, Step

_FINISH: Mapping[Finish, str] = {"stop": "stop", "length": "length", "tool": "tool_calls", "abort": "content_filter"}
CREATED = 0
"""Seconds since the epoch, the same in every replay: an agent may show to the model what it is told."""


def completion(step: Step, request: ChatRequest) -> dict[str, Any]:
    """The answer to `request`, which became `step`."""
    message = _message(step)
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "finish_reason": _finish(step, message),
        "logprobs": _logprobs(step) if request.logprobs else None,
    }
    return {**_head(step, request, "chat.completion"), "choices": [choice], "usage": _usage(step)}


def events(step: Step, request: ChatRequest) -> Iterator[bytes]:
    """The same as server-sent events. An action is known only when it is whole, so its text is one event."""
    head = _head(step, request, "chat.completion.chunk")
    message = _message(step)
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


def _message(step: Step) -> dict[str, Any]:
    """What the agent is told. Calls that it has no tools for, or that cannot be read, stay in the text as the model
    wrote it."""
    reply, calls = step.reply, step.reply.tool_calls
    if calls and (not step.own_tools or any(call.error is not None for call in calls)):
        return {"content": step.completion.text}
    message: dict[str, Any] = {"content": reply.content}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{step.position:03d}_{place}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for place, call in enumerate(calls)
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
    """Tokens of prompt and action; None where a provider does not say."""
    sampled = step.completion
    prompt = len(sampled.prompt_tokens) if sampled.prompt_tokens is not None else None
    written = len(sampled.tokens) if sampled.tokens is not None else None
    if sampled.usage is not None:
        prompt, written = sampled.usage.prompt_tokens, sampled.usage.completion_tokens
    if prompt is None or written is None:
        return None
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
