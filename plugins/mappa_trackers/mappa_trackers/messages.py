"""Messages in the JSON of the GenAI semantic conventions: a role, and parts of which each has a type."""

from __future__ import annotations

from typing import Any

from mappa_core import Message, ToolCall


def told(message: Message) -> dict[str, Any]:
    """A message as `gen_ai.input.messages` and `gen_ai.output.messages` hold it."""
    if message.role == "tool":
        answer = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [answer]}
    parts: list[dict[str, Any]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": message.reasoning})
    if message.content:
        parts.append({"type": "text", "content": message.content})
    parts += [_called(call) for call in message.tool_calls]
    named = {} if message.name is None else {"name": message.name}
    return {"role": message.role, "parts": parts, **named}


def _called(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": dict(call.arguments)}
