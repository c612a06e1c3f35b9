"""The chat format that models are trained on: messages and tools as dictionaries, and calls in the text of a reply."""

from __future__ import annotations

import re
from typing import Any

from mappa_core.records import Message, ToolCall, ToolSpec
from mappa_core.safe_json import parse_untrusted_json

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)


def split_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Split a reply into (text without calls, calls in order). A call that cannot be parsed has an `error`."""
    calls = tuple(_parse_call(match.group(1), closed=bool(match.group(2))) for match in _CALL.finditer(text))
    return (_CALL.sub("", text).rstrip() if calls else text), calls


def _parse_call(body: str, *, closed: bool) -> ToolCall:
    if not closed:
        return ToolCall(name="", error="the call is cut off: <tool_call> is not closed")
    try:
        call = parse_untrusted_json(body)
    except ValueError as error:
        return ToolCall(name="", error=f"the call is not valid: {error}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall(name="", error='the call is not of the form {"name": …, "arguments": {…}}')
    if not isinstance(call.get("arguments"), dict):
        return ToolCall(name=call["name"], error='the call\'s "arguments" are not a JSON object')
    return ToolCall(name=call["name"], arguments=call["arguments"])


def message_dict(message: Message) -> dict[str, Any]:
    """The message as the dictionary that chat templates read."""
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    optional = {"name": message.name, "tool_call_id": message.tool_call_id, "reasoning_content": message.reasoning}
    entry |= {key: value for key, value in optional.items() if value is not None}
    if message.tool_calls:
        entry["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.tool_calls
        ]
    return entry


def tool_schema(tool: ToolSpec) -> dict[str, Any]:
    """The tool as the schema that chat templates read."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)}
    return {"type": "function", "function": function}
