"""Reads spans of OpenInference (Arize Phoenix; instrumentations of LangChain, OpenAI and others): their attributes are
translated to those of OpenTelemetry's GenAI conventions.

A list is either flat, as SDKs write it (`llm.input_messages.0.message.role`), or nested, as Phoenix exports it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mappa.look.importing.documents import decode_embedded
from mappa.look.importing.spans import AROUND, Span

KIND = "openinference.span.kind"
_OPERATIONS = {"LLM": "chat", "TOOL": "execute_tool"}
GRAPH_NODE = re.compile(r"([^:|]+):")
"""The outermost node of a LangGraph checkpoint namespace: `researcher:<id>|agent:<id>`."""


def translate(span: Span) -> Span:
    """The span with the attributes of the GenAI conventions; unchanged if it is none of OpenInference."""
    known = span.attributes
    kind = known.get(KIND)
    if not isinstance(kind, str) or span.operation is not None:
        return span
    found: dict[str, Any] = {"gen_ai.agent.name": _read_agent(span, kind)}
    if kind in _OPERATIONS:
        found["gen_ai.operation.name"] = _OPERATIONS[kind]
    if kind == "LLM":
        found |= _read_call(known)
    elif kind == "AGENT" and isinstance(known.get("output.value"), str):
        # It is an action where no call of a model is recorded inside.
        found |= {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.input.messages": [_said("user", known.get("input.value"))],
            "gen_ai.output.messages": [_said("assistant", known["output.value"])],
        }
    elif kind == "TOOL":
        found |= {
            "gen_ai.tool.name": known.get("tool.name"),
            "gen_ai.tool.call.id": known.get("tool_call.id"),
            "gen_ai.tool.call.arguments": known.get("input.value"),
            "gen_ai.tool.call.result": _read_tool_output(known.get("output.value")),
        }
    kept = {name: value for name, value in found.items() if value is not None}
    note = AROUND if kind == "AGENT" else span.note
    return replace(span, attributes={**known, **kept}, note=note)


def _read_agent(span: Span, kind: str) -> str | None:
    known = span.attributes
    for key in ("agent.name", "graph.node.id"):
        if isinstance(known.get(key), str):
            return str(known[key])
    if kind == "AGENT":
        return span.name
    metadata = decode_embedded(known.get("metadata"))
    if isinstance(metadata, Mapping):
        node = GRAPH_NODE.match(str(metadata.get("langgraph_checkpoint_ns", "")))
        if node:
            return node[1]
        if isinstance(metadata.get("langgraph_node"), str):
            return str(metadata["langgraph_node"])
    return None


def _read_call(known: Mapping[str, Any]) -> dict[str, Any]:
    tree = nest(known, "llm.")
    reason = known.get("llm.finish_reason")
    return {
        "gen_ai.request.model": known.get("llm.model_name"),
        "gen_ai.input.messages": [_to_parts(one) for one in _read_messages(tree, "input_messages")],
        "gen_ai.output.messages": [_to_parts(one) for one in _read_messages(tree, "output_messages")] or None,
        "gen_ai.response.finish_reasons": [reason] if isinstance(reason, str) else None,
        "gen_ai.usage.input_tokens": known.get("llm.token_count.prompt"),
        "gen_ai.usage.output_tokens": known.get("llm.token_count.completion"),
    }


def nest(known: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The attributes under a prefix as a tree; a node whose keys are numbers is a list."""
    tree: dict[str, Any] = {}
    for key, value in known.items():
        if not key.startswith(prefix):
            continue
        *path, last = key.removeprefix(prefix).split(".")
        node = tree
        for part in path:
            inner = node.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            node = inner
        else:
            node[last] = _nest_values(value)
    return {name: _to_lists(one) for name, one in tree.items()}


def _nest_values(value: Any) -> Any:
    """Nested values of an export, whose keys have dots: `{"message.role": "user"}`."""
    if isinstance(value, list):
        return [_nest_values(one) for one in value]
    if isinstance(value, Mapping) and any("." in key for key in value):
        return nest(value, "")
    return value


def _to_lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and all(key.isdigit() for key in node):
        return [_to_lists(node[key]) for key in sorted(node, key=int)]
    return {key: _to_lists(one) for key, one in node.items()}


def _read_messages(tree: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    raw = tree.get(name)
    found = raw if isinstance(raw, list) else []
    return [one["message"] for one in found if isinstance(one, Mapping) and isinstance(one.get("message"), Mapping)]


def _to_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message in the form of the GenAI conventions."""
    role, text = str(message.get("role", "user")), message.get("content")
    if text is None:
        text = _join_contents(message.get("contents"))
    if role == "tool":
        answer = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": text or ""}
        return {"role": "tool", "parts": [answer]}
    parts: list[dict[str, Any]] = [] if not text else [{"type": "text", "content": str(text)}]
    for call in message.get("tool_calls") or ():
        inner = call.get("tool_call", {}) if isinstance(call, Mapping) else {}
        function = inner.get("function", {})
        parts.append(
            {
                "type": "tool_call",
                "id": inner.get("id"),
                "name": function.get("name"),
                "arguments": function.get("arguments"),
            }
        )
    named = {"name": message["name"]} if isinstance(message.get("name"), str) else {}
    return {
        "role": {"human": "user", "ai": "assistant", "developer": "system"}.get(role, role),
        "parts": parts,
        **named,
    }


def _said(role: str, text: Any) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": "" if text is None else str(text)}]}


def _join_contents(contents: Any) -> str:
    inner = [one.get("message_content", {}) for one in contents or () if isinstance(one, Mapping)]
    return "\n".join(str(one["text"]) if "text" in one else f"[{one.get('type')}]" for one in inner)


def _read_tool_output(value: Any) -> Any:
    """The text of a tool's output; LangChain writes a whole message."""
    decoded = decode_embedded(value)
    inner = decoded.get("data") if isinstance(decoded, Mapping) else None
    return inner["content"] if isinstance(inner, Mapping) and isinstance(inner.get("content"), str) else value


def phoenix_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of Phoenix's data frame of spans as the span that an SDK prints."""
    prefix: Sequence[str] = ("attributes.", "context.")
    inside = {name: {key.removeprefix(name): row[key] for key in row if key.startswith(name)} for name in prefix}
    attributes = {key: value for key, value in inside["attributes."].items() if value is not None}
    if isinstance(row.get("span_kind"), str):
        attributes.setdefault(KIND, row["span_kind"])
    return {**row, "context": inside["context."], "attributes": attributes}
