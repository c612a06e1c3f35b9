"""Reads traces of SDKs that have a form of their own by turning them into spans of the GenAI conventions: the OpenAI
Agents SDK (what its trace processors export), Langfuse (exported traces or observations) and AutoGen's event log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from mappa.look.importing.documents import Document, decode_embedded
from mappa.look.importing.log_mapping import LogFormatError, LoggedTrajectory, LogMapping
from mappa.look.importing.message_forms import find_role, is_item, unwrap
from mappa.look.importing.spans import AROUND, Span
from mappa.look.importing.traces import read_traces
from mappa_core import InputError

NO_TEXT = "replies whose text the log does not have"
BETWEEN_AGENTS = "messages between agents, which repeat what was written"


def looks_like_agents_sdk(row: Mapping[str, Any]) -> bool:
    """Whether a line is of a trace of the OpenAI Agents SDK."""
    return row.get("object") in ("trace", "trace.span")


def looks_like_langfuse(row: Mapping[str, Any]) -> bool:
    """Whether a line is a trace of Langfuse with its observations, or an observation."""
    return isinstance(row.get("observations"), list) or ("traceId" in row and "startTime" in row)


def looks_like_autogen_events(row: Mapping[str, Any]) -> bool:
    """Whether a line is of the event log of autogen-core."""
    return row.get("type") in ("LLMCall", "Message", "ToolCall", "LLMStreamStart") and (
        "agent_id" in row or "payload" in row or "tool_name" in row
    )


def read_agents_sdk(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    """Read a rollout from each trace. Raises InputError, naming line and key."""
    if other := next((one for one in documents if not looks_like_agents_sdk(one.row)), None):
        raise InputError(f"{other.place}: object: {other.row.get('object')!r} is neither trace nor trace.span")
    spans = [one for one in documents if one.row.get("object") == "trace.span"]
    return read_traces([_placed(document, _agents_sdk_span) for document in spans], mapping)


def read_langfuse(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    """Read a rollout from each trace. Raises InputError, naming line and key."""
    inner = [
        Document(row=_mapping(row), place=f"{one.place}: observations.{number}", file=one.file)
        for one in documents
        for number, row in enumerate(one.row.get("observations", [one.row]))
    ]
    return read_traces([_placed(document, _langfuse_span) for document in inner], mapping)


def read_autogen_events(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    """Read the file as one rollout, of which every call of a model is an action. Raises InputError."""
    spans = [_placed(document, _autogen_span, number) for number, document in enumerate(documents)]
    return read_traces(spans, mapping)


def _placed(document: Document, read: Any, *more: Any) -> Span:
    try:
        span: Span = read(document, *more)
    except LogFormatError as problem:
        raise InputError(f"{document.place}: {problem}") from None
    return span


def _agents_sdk_span(document: Document) -> Span:
    row, data = document.row, _mapping(document.row.get("span_data"))
    kind = data.get("type")
    known: dict[str, Any] = {}
    note = ""
    if kind == "agent":
        known, note = {"gen_ai.agent.name": data.get("name")}, AROUND
    elif kind == "generation":
        known = {"gen_ai.request.model": data.get("model"), **_call(data.get("input"), data.get("output"))}
    elif kind == "function":
        known = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": data.get("name"),
            "gen_ai.tool.call.arguments": data.get("input"),
            "gen_ai.tool.call.result": data.get("output"),
        }
    elif kind == "response":
        note = NO_TEXT
    usage = _mapping(data.get("usage"))
    known |= {f"gen_ai.usage.{name}": usage.get(name) for name in ("input_tokens", "output_tokens")}
    return Span(
        trace=_text(row, "trace_id"),
        id=_text(row, "id"),
        parent=row.get("parent_id"),
        name=str(data.get("name") or kind),
        start=_time(row, "started_at"),
        end=_time(row, "ended_at"),
        attributes={name: value for name, value in known.items() if value is not None},
        failed=row.get("error") is not None,
        error=_error_text(row.get("error")),
        place=document.place,
        note=note,
    )


def _langfuse_span(document: Document) -> Span:
    row = document.row
    kind, usage = row.get("type"), _mapping(row.get("usageDetails") or row.get("usage"))
    known: dict[str, Any] = dict(_mapping(row.get("metadata")))
    if kind == "AGENT":
        known["gen_ai.agent.name"] = row.get("name")
    elif kind == "GENERATION":
        known |= {
            **_call(row.get("input"), row.get("output")),
            "gen_ai.request.model": row.get("model"),
            "gen_ai.usage.input_tokens": usage.get("input"),
            "gen_ai.usage.output_tokens": usage.get("output"),
        }
    elif kind == "TOOL":
        known |= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": row.get("name"),
            "gen_ai.tool.call.arguments": row.get("input"),
            "gen_ai.tool.call.result": row.get("output"),
        }
    return Span(
        trace=_text(row, "traceId"),
        id=_text(row, "id"),
        parent=row.get("parentObservationId"),
        name=str(row.get("name") or kind),
        start=_time(row, "startTime"),
        end=_time(row, "endTime" if row.get("endTime") else "startTime"),
        attributes={name: value for name, value in known.items() if value is not None},
        failed=row.get("level") == "ERROR",
        error=_error_text(row.get("statusMessage")),
        place=document.place,
        note=AROUND if kind == "AGENT" else "",
    )


def _autogen_span(document: Document, number: int) -> Span:
    row, known, note = document.row, dict[str, Any](), ""
    if row["type"] == "LLMCall":
        response = _mapping(row.get("response"))
        name, _, key = str(row.get("agent_id") or "").partition("/")
        # AgentChat names the agents of a team by the team, whose id is their key; others keep their own names.
        agent = name.removesuffix(f"_{key}")
        known = {
            **_call(row.get("messages"), row.get("response")),
            "gen_ai.agent.name": agent or None,
            "gen_ai.request.model": response.get("model"),
            "gen_ai.usage.input_tokens": row.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": row.get("completion_tokens"),
        }
    elif row["type"] == "ToolCall":
        known = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": row.get("tool_name"),
            "gen_ai.tool.call.arguments": row.get("arguments"),
            "gen_ai.tool.call.result": row.get("result"),
        }
    elif row["type"] == "Message":
        note = BETWEEN_AGENTS
    return Span(
        trace=str(document.file),
        id=str(number),
        parent=None,
        name=str(row["type"]),
        start=float(number),
        end=float(number),
        attributes={name: value for name, value in known.items() if value is not None},
        failed=False,
        place=document.place,
        note=note,
    )


def _call(given: Any, written: Any) -> dict[str, Any]:
    """Input and output of a model as attributes; without an output the span is no action."""
    output = list(_messages(written, "assistant"))
    if not output:
        return {}
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": list(_messages(given, "user")),
        "gen_ai.output.messages": output,
    }


_AROUND_MESSAGES = ("messages", "choices", "candidates", "output", "contents", "input")
"""Keys of requests and responses of providers that hold messages."""


def _messages(raw: Any, role: str) -> Iterator[Mapping[str, Any]]:
    """Messages of a list, of one, of a request or a response that holds them, or of a text by `role`."""
    raw = decode_embedded(raw)
    if isinstance(raw, str) and raw:
        yield {"role": role, "content": raw}
    elif isinstance(raw, list):
        if raw and all(map(_is_loose_part, raw)):
            yield {"role": role, "content": raw}
            return
        for one in raw:
            yield from _messages(one, role)
    elif isinstance(raw, Mapping) and raw:
        yield from _messages_of_object(raw, role)


def _messages_of_object(raw: Mapping[str, Any], role: str) -> Iterator[Mapping[str, Any]]:
    inner = unwrap(raw)
    if is_item(inner) or find_role(inner) is not None:
        yield inner
        return
    around = next((key for key in _AROUND_MESSAGES if isinstance(inner.get(key), list)), None)
    if around is not None:
        if inner.get("system") is not None:
            yield {"role": "system", "content": inner["system"]}
        yield from _messages(inner[around], role)
    elif isinstance(inner.get("content"), Mapping) and "parts" in inner["content"]:  # a candidate of Gemini
        yield {"role": role, **inner["content"]}
    elif {"content", "tool_calls", "parts"} & set(inner):
        yield {"role": role, **inner}
    else:
        yield {"role": role, "content": json.dumps(inner, ensure_ascii=False)}


def _is_loose_part(value: Any) -> bool:
    """Whether an item of a list is a part of a message rather than a message."""
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str) or is_item(value):
        return False
    return find_role(value) is None and value["type"] != "message" and "lc" not in value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _error_text(error: Any) -> str:
    told = error.get("message") if isinstance(error, Mapping) else error
    data = error.get("data") if isinstance(error, Mapping) else None
    return ": ".join(str(one) for one in (told, data) if one)


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise LogFormatError(f"{key}: not an id: {value!r}")
    return value


def _time(row: Mapping[str, Any], key: str) -> float:
    try:
        return datetime.fromisoformat(row[key]).timestamp()
    except (KeyError, TypeError, ValueError):
        raise LogFormatError(f"{key}: not a time: {row.get(key)!r}") from None
