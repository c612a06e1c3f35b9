"""Reads spans of OpenInference (Arize Phoenix; instrumentations of LangChain, OpenAI and others): their attributes are
translated to those of OpenTelemetry's GenAI conventions, and their messages are left as they are.

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
            "gen_ai.input.messages": [{"role": "user", "content": _as_text(known.get("input.value"))}],
            "gen_ai.output.messages": [{"role": "assistant", "content": known["output.value"]}],
        }
    elif kind == "TOOL":
        found |= {
            "gen_ai.tool.name": known.get("tool.name"),
            "gen_ai.tool.call.id": known.get("tool_call.id"),
            "gen_ai.tool.call.arguments": known.get("input.value"),
            "gen_ai.tool.call.result": known.get("output.value"),
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
        "gen_ai.input.messages": _read_messages(tree, "input_messages"),
        "gen_ai.output.messages": _read_messages(tree, "output_messages") or None,
        "gen_ai.request.choice.count": _read_choices(known.get("llm.invocation_parameters")),
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
    inner = [one["message"] for one in found if isinstance(one, Mapping) and isinstance(one.get("message"), Mapping)]
    return [{"role": "user", **one, **_read_old_call(one)} for one in inner]


def _read_old_call(message: Mapping[str, Any]) -> Mapping[str, Any]:
    name = message.get("function_call_name")
    if name is None:
        return {}
    return {"function_call": {"name": name, "arguments": message.get("function_call_arguments_json")}}


def _read_choices(parameters: Any) -> Any:
    decoded = decode_embedded(parameters)
    return decoded.get("n") if isinstance(decoded, Mapping) else None


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)


def phoenix_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of Phoenix's data frame of spans as the span that an SDK prints."""
    prefix: Sequence[str] = ("attributes.", "context.")
    inside = {name: {key.removeprefix(name): row[key] for key in row if key.startswith(name)} for name in prefix}
    attributes = {key: value for key, value in inside["attributes."].items() if value is not None}
    if isinstance(row.get("span_kind"), str):
        attributes.setdefault(KIND, row["span_kind"])
    return {**row, "context": inside["context."], "attributes": attributes}
