"""OpenAI's Responses format: parse requests, encode actions.

A conversation is a list of items here. One assistant message may be several items: its reasoning, its text, and each of
its calls. They are merged to one message for the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
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

_LOGPROBS = "message.output_text.logprobs"
_INCOMPLETE = {"length": "max_output_tokens", "abort": "content_filter"}


class Item(msgspec.Struct):
    """An item of a conversation; its type determines which fields are used."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None


class ResponseTool(msgspec.Struct):
    """A tool. One that is not a function would be run by OpenAI, and has no name."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class TextFormat(msgspec.Struct):
    """Required format of the text."""

    type: str


class TextOptions(msgspec.Struct):
    """Options of the text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponseRequest(msgspec.Struct):
    """Body of a request; only the fields used here."""

    model: str
    input: str | list[Item]
    instructions: str | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None


def parse_responses_request(body: Any) -> AgentRequest:
    """Convert the JSON of a request.

    Raises:
        RequestFault: it cannot be read, or asks for something that the sampler or a stateless server does not support.
    """
    request = to_form(body, ResponseRequest)
    ignored = ignored_settings(body, ResponseRequest)
    form = request.text.format if request.text is not None else None
    refuse_format({"text.format": form is not None and form.type != "text"})
    refuse_unsupported(
        {
            "tool_choice": request.tool_choice not in (None, "auto", "none"),
            "text.verbosity": request.text is not None and request.text.verbosity not in (None, "medium"),
            "top_logprobs": bool(request.top_logprobs),
            f"include {_LOGPROBS}": _LOGPROBS in (request.include or ()),
            "truncation": request.truncation not in (None, "disabled"),
            "background": bool(request.background),
        }
    )
    _refuse_memory(request)
    items = [Item(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    messages = _merge_pieces(_message(item, f"input.{place}") for place, item in enumerate(items))
    if not messages:
        raise RequestFault("invalid_request", "a request has at least one item of `input`")
    instructions = [Message(role="system", content=request.instructions)] if request.instructions else []
    return AgentRequest(
        model=request.model,
        messages=(*instructions, *messages),
        own_tools=_tools(request),
        stop=stop_texts(request.stop, "stop"),
        stream=bool(request.stream),
        ignored=ignored,
        to_json=partial(_response, request),
        to_events=partial(_events, request),
    )


def _merge_pieces(pieces: Iterable[Message]) -> tuple[Message, ...]:
    """Merge pieces to whole messages: reasoning begins an assistant message, text and calls continue it."""
    messages: list[Message] = []
    for piece in pieces:
        if messages and _continues_message(messages[-1], piece):
            last = messages[-1]
            content, calls = last.content or piece.content, (*last.tool_calls, *piece.tool_calls)
            messages[-1] = replace(last, content=content, tool_calls=calls)
        else:
            messages.append(piece)
    return tuple(messages)


def _continues_message(last: Message, piece: Message) -> bool:
    if not last.role == piece.role == "assistant" or piece.reasoning is not None:
        return False
    only_reasoning = last.reasoning is not None and not last.content and not last.tool_calls
    return bool(piece.tool_calls) or only_reasoning


def _refuse_memory(request: ResponseRequest) -> None:
    references = {
        "previous_response_id": request.previous_response_id,
        "conversation": request.conversation,
        "prompt": request.prompt,
    }
    if named := [name for name, value in references.items() if value is not None]:
        raise RequestFault(
            "unsupported",
            f"{', '.join(named)}: the gateway keeps nothing from one request to the next. Send the whole conversation "
            "as `input`.",
        )


def _tools(request: ResponseRequest) -> tuple[ToolSpec, ...]:
    tools = request.tools or ()
    if others := sorted({tool.type for tool in tools if tool.type != "function"}):
        raise RequestFault(
            "unsupported",
            f"tools: {', '.join(others)}: nobody is here to run it. Give the agent a function of its own, or a tool of "
            "an MCP server that it calls itself.",
        )
    if request.tool_choice == "none":
        return ()
    if any(tool.name is None for tool in tools):
        raise RequestFault("invalid_request", "tools: a function has a name")
    return tuple(
        ToolSpec(name=tool.name or "", description=tool.description or "", schema=tool.parameters or {})
        for tool in tools
    )


def _message(item: Item, where: str) -> Message:
    """Convert an item to a message, or to a piece of one."""
    kind = item.type or "message"
    if kind == "message" and item.role is not None:
        role = "system" if item.role == "developer" else item.role
        return Message(role=role, content=join_text(item.content, f"{where}.content"))
    if kind == "reasoning":
        return Message(role="assistant", content="", reasoning=join_text(item.content or item.summary, where))
    if kind == "function_call" and item.name is not None and item.arguments is not None:
        call = parse_call(item.name, item.arguments, item.call_id, where)
        return Message(role="assistant", content="", tool_calls=(call,))
    if kind == "function_call_output" and item.output is not None:
        return Message(role="tool", content=join_text(item.output, f"{where}.output"), tool_call_id=item.call_id)
    if kind in ("message", "function_call", "function_call_output"):
        raise RequestFault("invalid_request", f"{where}: a {kind} without what makes it one")
    raise RequestFault("unsupported", f"{where}: {kind}: only text, calls of functions and think text are read")


def _response(request: ResponseRequest, step: Step) -> dict[str, Any]:
    """Encode `step` as the response to `request`."""
    cut_off = _INCOMPLETE.get(step.completion.finish)
    parallel = request.parallel_tool_calls is not False
    return {
        "id": f"resp_{step.id}",
        "object": "response",
        "created_at": CREATED_AT,
        "status": "completed" if cut_off is None else "incomplete",
        "incomplete_details": None if cut_off is None else {"reason": cut_off},
        "error": None,
        "model": request.model,
        "instructions": request.instructions,
        "output": _output(step, parallel=parallel),
        "parallel_tool_calls": parallel,
        "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
        "tools": [msgspec.to_builtins(tool) for tool in request.tools or ()],
        "metadata": {},
        "usage": _usage(step),
    }


def _output(step: Step, *, parallel: bool) -> list[dict[str, Any]]:
    response = to_response(step, parallel=parallel)
    items: list[dict[str, Any]] = []
    if response.reasoning is not None:
        thought = [{"type": "reasoning_text", "text": response.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{step.id}", "summary": [], "content": thought})
    if response.content or not response.calls:
        text = {"type": "output_text", "text": response.content, "annotations": []}
        items.append({"type": "message", "id": f"msg_{step.id}", "role": "assistant", "content": [text]})
    for call in response.calls:
        fields = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", "id": f"fc_{step.id}_{call.id}", **fields})
    return [{**item, "status": "completed"} for item in items]


def _usage(step: Step) -> dict[str, Any] | None:
    """Token usage; the details are set if the provider reports them."""
    counts, usage = token_counts(step), step.completion.usage
    if counts is None:
        return None
    prompt, completion = counts
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": None if usage is None else usage.cached_tokens},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": None if usage is None else usage.thinking_tokens},
        "total_tokens": prompt + completion,
    }


def _events(request: ResponseRequest, step: Step) -> Iterator[bytes]:
    """Encode `step` as server-sent events. An action is known only when it is complete, so each text is one event."""
    whole = _response(request, step)
    started = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
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
    started = {**item, **empty, "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": place, "item": started}
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
