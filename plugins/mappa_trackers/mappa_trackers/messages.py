"""Converts messages to the JSON of the GenAI semantic conventions: a role and typed parts."""

from __future__ import annotations

from typing import Any

from mappa_core import Message, ToolCall


def to_genai_message(message: Message) -> dict[str, Any]:
    """Convert a message to the form of `gen_ai.input.messages` and `gen_ai.output.messages`."""
    if message.role == "tool":
        answer = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [answer]}
    parts: list[dict[str, Any]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": message.reasoning})
    if message.content:
        parts.append({"type": "text", "content": message.content})
    parts += [_to_tool_call_part(call) for call in message.tool_calls]
    named = {} if message.name is None else {"name": message.name}
    return {"role": message.role, "parts": parts, **named}


def _to_tool_call_part(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": dict(call.arguments)}
