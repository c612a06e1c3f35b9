"""OpenAI's Responses: requests as they are sent, actions as they are answered.

A conversation comes as items here, of which one message of an assistant may be several: its think text, what it said,
and each of its calls. What belongs to one message is shown to the model as one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Literal

import msgspec

from mappa_core.gateway.faults import RequestFault
from mappa_core.gateway.wire.asked import (
    CREATED,
    Asked,
    Part,
    call_of,
    decoded,
    refuse,
    text_of,
    token_counts,
    told,
)
from mappa_core.records import Message, Step, ToolSpec

_LOGPROBS = "message.output_text.logprobs"
_INCOMPLETE = {"length": "max_output_tokens", "abort": "content_filter"}


class Item(msgspec.Struct):
    """A piece of a conversation: which fields count depends on its type."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    summary: list[Part] = []
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class Offered(msgspec.Struct):
    """A tool. One that is no function is for OpenAI to run, and has no name."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class TextFormat(msgspec.Struct):
    """The form that the text is to have."""

    type: str


class TextOptions(msgspec.Struct):
    """What is asked of the text."""

    format: TextFormat | None = None


class ResponseRequest(msgspec.Struct):
    """The body of a request, as far as it matters here."""

    model: str
    input: str | list[Item]
    instructions: str | None = None
    tools: list[Offered] | None = None
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None


def read(body: bytes) -> Asked:
    """The request of a body.

    Raises:
        RequestFault: it cannot be read, or asks for what only another sampler, or a server with a memory, could give.
    """
    request = decoded(body, ResponseRequest)
    form = request.text.format if request.text is not None else None
    refuse(
        {
            "tool_choice": request.tool_choice not in (None, "auto", "none"),
            "text.format": form is not None and form.type != "text",
            "top_logprobs": bool(request.top_logprobs),
            f"include {_LOGPROBS}": _LOGPROBS in (request.include or ()),
            "truncation": request.truncation not in (None, "disabled"),
            "background": bool(request.background),
        }
    )
    _refuse_memory(request)
    items = [Item(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    said = _joined(_message(item, f"input.{place}") for place, item in enumerate(items))
    if not said:
        raise RequestFault("invalid_request", "a request has at least one item of `input`")
    instructions = [Message(role="system", content=request.instructions)] if request.instructions else []
    return Asked(
        model=request.model,
        messages=(*instructions, *said),
        own_tools=_tools(request),
        stream=bool(request.stream),
        answer=partial(_response, request),
        events=partial(_events, request),
    )


def _joined(said: Iterable[Message]) -> tuple[Message, ...]:
    """The messages that pieces of them make: think text begins one of an assistant, calls go on with it."""
    messages: list[Message] = []
    for one in said:
        if messages and _goes_on(messages[-1], one):
            last = messages[-1]
            content, calls = last.content or one.content, (*last.tool_calls, *one.tool_calls)
            messages[-1] = replace(last, content=content, tool_calls=calls)
        else:
            messages.append(one)
    return tuple(messages)


def _goes_on(last: Message, one: Message) -> bool:
    if not last.role == one.role == "assistant" or one.reasoning is not None:
        return False
    only_thought = last.reasoning is not None and not last.content and not last.tool_calls
    return bool(one.tool_calls) or only_thought


def _refuse_memory(request: ResponseRequest) -> None:
    asked = {
        "previous_response_id": request.previous_response_id,
        "conversation": request.conversation,
        "prompt": request.prompt,
    }
    if named := [name for name, value in asked.items() if value is not None]:
        raise RequestFault(
            "unsupported",
            f"{', '.join(named)}: the gateway keeps nothing from one request to the next. Send the whole conversation "
            "as `input`.",
        )


def _tools(request: ResponseRequest) -> tuple[ToolSpec, ...]:
    offered = request.tools or ()
    if others := sorted({one.type for one in offered if one.type != "function"}):
        raise RequestFault(
            "unsupported",
            f"tools: {', '.join(others)}: nobody is here to run it. Give the agent a function of its own, or a tool of "
            "an MCP server that it calls itself.",
        )
    if request.tool_choice == "none":
        return ()
    return tuple(
        ToolSpec(name=one.name, description=one.description or "", schema=one.parameters or {}) for one in offered
    )


def _message(item: Item, where: str) -> Message:
    """The message that an item is, or a piece of one."""
    if item.type == "message" and item.role is not None:
        role = "system" if item.role == "developer" else item.role
        return Message(role=role, content=text_of(item.content, f"{where}.content"))
    if item.type == "reasoning":
        return Message(role="assistant", content="", reasoning=text_of(item.content or item.summary, where))
    if item.type == "function_call" and item.name is not None and item.arguments is not None:
        call = call_of(item.name, item.arguments, item.call_id, where)
        return Message(role="assistant", content="", tool_calls=(call,))
    if item.type == "function_call_output" and item.output is not None:
        return Message(role="tool", content=text_of(item.output, f"{where}.output"), tool_call_id=item.call_id)
    if item.type in ("message", "function_call", "function_call_output"):
        raise RequestFault("invalid_request", f"{where}: a {item.type} without what makes it one")
    raise RequestFault("unsupported", f"{where}: {item.type}: only text, calls of functions and think text are read")


def _response(request: ResponseRequest, step: Step) -> dict[str, Any]:
    """The answer to `request`, which became `step`."""
    cut_off = _INCOMPLETE.get(step.completion.finish)
    return {
        "id": f"resp_{step.id}",
        "object": "response",
        "created_at": CREATED,
        "status": "completed" if cut_off is None else "incomplete",
        "incomplete_details": None if cut_off is None else {"reason": cut_off},
        "error": None,
        "model": request.model,
        "instructions": request.instructions,
        "output": _output(step),
        "parallel_tool_calls": True,
        "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
        "tools": [msgspec.to_builtins(one) for one in request.tools or ()],
        "metadata": {},
        "usage": _usage(step),
    }


def _output(step: Step) -> list[dict[str, Any]]:
    heard = told(step)
    items: list[dict[str, Any]] = []
    if heard.reasoning is not None:
        thought = [{"type": "reasoning_text", "text": heard.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{step.id}", "summary": [], "content": thought})
    if heard.content or not heard.calls:
        text = {"type": "output_text", "text": heard.content, "annotations": []}
        items.append({"type": "message", "id": f"msg_{step.id}", "role": "assistant", "content": [text]})
    for call in heard.calls:
        named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", "id": f"fc_{step.id}_{call.id}", **named})
    return [{**item, "status": "completed"} for item in items]


def _usage(step: Step) -> dict[str, Any] | None:
    """The details are there where a provider gave them."""
    counts, usage = token_counts(step), step.completion.usage
    if counts is None:
        return None
    prompt, written = counts
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": None if usage is None else usage.cached_tokens},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": None if usage is None else usage.thinking_tokens},
        "total_tokens": prompt + written,
    }


def _events(request: ResponseRequest, step: Step) -> Iterator[bytes]:
    """The same as server-sent events. An action is known only when it is whole, so each text is one event."""
    whole = _response(request, step)
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *(event for place, item in enumerate(whole["output"]) for event in _item_events(item, place)),
        {"type": f"response.{whole['status']}", "response": whole},
    ]
    for number, event in zip(count(), events, strict=False):
        numbered = json.dumps({**event, "sequence_number": number})
        yield f"event: {event['type']}\ndata: {numbered}\n\n".encode()


def _item_events(item: dict[str, Any], place: int) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": place}
    calls = item["type"] == "function_call"
    empty: dict[str, Any] = {"arguments": ""} if calls else {"content": []}
    begun = {**item, **empty, "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": place, "item": begun}
    yield from _call_events(item, at) if calls else _text_events(item["content"], at)
    yield {"type": "response.output_item.done", "output_index": place, "item": item}


def _call_events(item: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind, arguments = "response.function_call_arguments", item["arguments"]
    yield {"type": f"{kind}.delta", **at, "delta": arguments}
    yield {"type": f"{kind}.done", **at, "name": item["name"], "arguments": arguments}


def _text_events(parts: Sequence[dict[str, Any]], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for place, part in enumerate(parts):
        where = {**at, "content_index": place}
        kind = f"response.{part['type']}"
        logprobs: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
        yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
        yield {"type": f"{kind}.delta", **where, "delta": part["text"], **logprobs}
        yield {"type": f"{kind}.done", **where, "text": part["text"], **logprobs}
        yield {"type": "response.content_part.done", **where, "part": part}
