"""Anthropic's Messages format: parse requests, encode actions.

A message is a list of blocks here: text, thinking and calls of the assistant; text and results of tools of the user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal

import msgspec

from mappa_core import Message, Step, ToolCall, ToolSpec
from mappa_gateway.errors import RequestFault
from mappa_gateway.wire.request import (
    ActionResponse,
    AgentRequest,
    ignored_settings,
    refuse_format,
    refuse_unsupported,
    stop_texts,
    to_form,
    to_response,
    token_counts,
)

_STOP_REASON: Mapping[str, str] = {"stop": "end_turn", "length": "max_tokens", "tool": "tool_use", "abort": "refusal"}
_BETWEEN_BLOCKS = "\n\n"
_BILLING_BLOCK = "x-anthropic-billing-header:"
"""How the text begins that Claude Code puts before its system prompt for the provider's accounts. It differs from
request to request, so that a resume would find another prompt than is recorded."""


class Block(msgspec.Struct):
    """A block of a message's content; its type determines which fields are used."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None


class Turn(msgspec.Struct):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class MessagesTool(msgspec.Struct):
    """A tool. One that is not `custom` is known to Anthropic's models by its type, and has no schema."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    """Whether and how tools may be called."""

    type: str
    disable_parallel_tool_use: bool | None = None


class OutputConfig(msgspec.Struct):
    """Options of the reply."""

    format: dict[str, Any] | None = None


class MessagesRequest(msgspec.Struct):
    """Body of a request; only the fields used here. A request to count tokens has no `max_tokens`."""

    model: str
    messages: list[Turn]
    max_tokens: int | None = None
    system: str | list[Block] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    container: str | dict[str, Any] | None = None
    thread: dict[str, Any] | None = None


def parse_messages_request(body: Any) -> AgentRequest:
    """Convert the JSON of a request.

    Raises:
        RequestFault: it cannot be read, or asks for something that the sampler or a stateless server does not support.
    """
    parsed = parse_count_request(body)
    if body.get("max_tokens") is None:
        raise RequestFault("invalid_request", "max_tokens: field required")
    return parsed


def parse_count_request(body: Any) -> AgentRequest:
    """Convert the JSON of a request whose tokens are to be counted, as `parse_messages_request`."""
    request = to_form(body, MessagesRequest)
    ignored = ignored_settings(body, MessagesRequest)
    if not request.messages:
        raise RequestFault("invalid_request", "messages: a request has at least one message")
    refuse_format(
        {
            "output_config.format": request.output_config is not None and request.output_config.format is not None,
            "output_format": request.output_format is not None,
        }
    )
    refuse_unsupported(
        {
            "tool_choice": request.tool_choice is not None and request.tool_choice.type not in ("auto", "none"),
            "mcp_servers": bool(request.mcp_servers),
            "container": request.container is not None,
            "thread": request.thread is not None,
            "messages that end with one of the assistant": request.messages[-1].role == "assistant",
        }
    )
    return AgentRequest(
        model=request.model,
        messages=(*_system(request), *_messages(request)),
        own_tools=_tools(request),
        stop=stop_texts(request.stop_sequences, "stop_sequences"),
        stream=bool(request.stream),
        ignored=ignored,
        to_json=partial(_message, request),
        to_events=partial(_events, request),
    )


def _system(request: MessagesRequest) -> Iterator[Message]:
    blocks = request.system
    if isinstance(blocks, list):
        blocks = [block for block in blocks if not (block.text or "").startswith(_BILLING_BLOCK)]
    if text := _text(blocks, "system"):
        yield Message(role="system", content=text)


def _messages(request: MessagesRequest) -> Iterator[Message]:
    for place, turn in enumerate(request.messages):
        where = f"messages.{place}.content"
        if turn.role == "assistant":
            yield _assistant(turn, where)
        elif isinstance(turn.content, str):
            yield Message(role=turn.role, content=turn.content)
        else:
            yield from _parts(turn.role, turn.content, where)


def _parts(role: Literal["user", "system"], blocks: Sequence[Block], where: str) -> Iterator[Message]:
    """Split a message into results of tools, one message each, and the text before, between and after them."""
    for are_results, group in groupby(blocks, lambda block: block.type == "tool_result"):
        if not are_results:
            yield Message(role=role, content=_text(list(group), where))
            continue
        for block in group:
            text = _text(block.content, f"{where}.tool_result")
            content = f"Error: {text}" if block.is_error else text
            yield Message(role="tool", content=content, tool_call_id=block.tool_use_id)


def _assistant(turn: Turn, where: str) -> Message:
    blocks = [Block(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content
    # The signature of a thinking block is not looked at: nothing depends on it.
    thoughts = [block.thinking for block in blocks if block.type == "thinking" and block.thinking is not None]
    calls = [_call(block, where) for block in blocks if block.type == "tool_use"]
    said = [block for block in blocks if block.type not in ("thinking", "tool_use")]
    return Message(
        role="assistant",
        content=_text(said, where),
        reasoning=_BETWEEN_BLOCKS.join(thoughts) if thoughts else None,
        tool_calls=tuple(calls),
    )


def _call(block: Block, where: str) -> ToolCall:
    if block.name is None:
        raise RequestFault("invalid_request", f"{where}: a tool_use without a name")
    return ToolCall(name=block.name, arguments=block.input or {}, id=block.id)


def _text(content: str | Sequence[Block] | None, where: str) -> str:
    """Join the text of blocks. Raises RequestFault for blocks that are no text."""
    if content is None or isinstance(content, str):
        return content or ""
    if other := sorted({block.type for block in content if block.type != "text"}):
        raise RequestFault(
            "unsupported", f"{where}: {', '.join(other)}: only text, thinking, calls and results of tools are read"
        )
    return _BETWEEN_BLOCKS.join(block.text or "" for block in content)


def _tools(request: MessagesRequest) -> tuple[ToolSpec, ...]:
    tools = request.tools or ()
    if others := sorted({tool.type for tool in tools if tool.type not in (None, "custom")}):
        raise RequestFault(
            "unsupported",
            f"tools: {', '.join(others)}: only Anthropic's models know it. Give the agent a tool with a name, a "
            "description and an input_schema.",
        )
    if request.tool_choice is not None and request.tool_choice.type == "none":
        return ()
    return tuple(
        ToolSpec(name=tool.name, description=tool.description or "", schema=tool.input_schema or {}) for tool in tools
    )


def _respond(request: MessagesRequest, step: Step) -> ActionResponse:
    choice = request.tool_choice
    return to_response(step, parallel=not (choice is not None and choice.disable_parallel_tool_use))


def _message(request: MessagesRequest, step: Step) -> dict[str, Any]:
    """Encode `step` as the response to `request`."""
    response = _respond(request, step)
    return {
        "id": f"msg_{step.id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": list(_blocks(response, step)),
        "stop_reason": _stop_reason(response, step),
        "stop_sequence": None if response.calls else step.completion.stop_text,
        "usage": _usage(step),
    }


def _blocks(response: ActionResponse, step: Step) -> Iterator[dict[str, Any]]:
    if response.reasoning is not None:
        yield {"type": "thinking", "thinking": response.reasoning, "signature": f"mappa-{step.id}"}
    if response.content or not response.calls:
        yield {"type": "text", "text": response.content}
    for call in response.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}


def _stop_reason(response: ActionResponse, step: Step) -> str:
    if response.calls:
        return "tool_use"
    return "stop_sequence" if step.completion.stop_text is not None else _STOP_REASON[step.completion.finish]


def _usage(step: Step) -> dict[str, Any]:
    """Token usage; null where the provider does not report it. Here cached tokens are not among the input's."""
    counts, usage = token_counts(step), step.completion.usage
    prompt, completion = (None, None) if counts is None else counts
    cached = None if usage is None else usage.cached_tokens
    return {
        "input_tokens": None if prompt is None else prompt - (cached or 0),
        "cache_creation_input_tokens": None,
        "cache_read_input_tokens": cached,
        "output_tokens": completion,
    }


def _events(request: MessagesRequest, step: Step) -> Iterator[bytes]:
    """Encode `step` as server-sent events. An action is known only when it is complete, so each block is one delta."""
    whole = _message(request, step)
    usage = whole["usage"]
    started = {
        **whole,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 0},
    }
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": started},
        {"type": "ping"},
        *(event for place, block in enumerate(whole["content"]) for event in _block_events(block, place)),
        {"type": "message_delta", "delta": end, "usage": usage},
        {"type": "message_stop"},
    ]
    for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _block_events(block: dict[str, Any], place: int) -> Iterable[dict[str, Any]]:
    empty, deltas = _deltas(block)
    yield {"type": "content_block_start", "index": place, "content_block": {**block, **empty}}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": place, "delta": delta}
    yield {"type": "content_block_stop", "index": place}


def _deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields with which a block begins in a stream, and the deltas that complete it."""
    if block["type"] == "thinking":
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {"thinking": "", "signature": ""}, [
            thought,
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    if block["type"] == "tool_use":
        return {"input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    return {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
