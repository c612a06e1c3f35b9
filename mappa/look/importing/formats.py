"""The formats of logs that can be imported, and which of them a file is of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mappa.look.importing.chat_messages import read_request
from mappa.look.importing.documents import Document
from mappa.look.importing.frameworks import (
    looks_like_atif,
    looks_like_autogen,
    looks_like_crewai,
    looks_like_inspect,
    looks_like_langchain,
    read_atif,
    read_autogen,
    read_crewai,
    read_inspect,
    read_langchain,
)
from mappa.look.importing.labelled_logs import (
    looks_like_process_bench,
    looks_like_who_and_when,
    read_process_bench,
    read_who_and_when,
)
from mappa.look.importing.log_mapping import Format, LogFormatError, LoggedTrajectory, LogMapping
from mappa.look.importing.openinference import phoenix_row, translate
from mappa.look.importing.sdk_traces import (
    looks_like_agents_sdk,
    looks_like_autogen_events,
    looks_like_langfuse,
    read_agents_sdk,
    read_autogen_events,
    read_langfuse,
)
from mappa.look.importing.spans import Span, looks_like_spans, read_spans
from mappa.look.importing.traceloop import name_node
from mappa.look.importing.traces import read_traces
from mappa_core import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """A format of logs: whether a file whose first object is given is of it, and how its objects become rollouts.
    `entries` is what its rollouts consist of. A rollout is one object, unless this is one of several in a file
    that make a rollout (`is_part`), or is of the traces whose ids it names, which others may be of, too (`trace_ids`).
    """

    recognizes: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Sequence[Document], LogMapping], list[LoggedTrajectory]]
    entries: str = "messages"
    is_part: Callable[[Mapping[str, Any]], bool] = lambda row: False
    trace_ids: Callable[[Document], Collection[str]] | None = None


def _is_langchain_dump(row: Mapping[str, Any]) -> bool:
    messages = row.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else row
    return isinstance(first, Mapping) and "lc" in first


def _read_messages(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    logs = []
    for document in documents:
        if _is_langchain_dump(document.row):
            raise InputError(
                f"{document.place}: LangChain's dumps wrote this, which is for LangChain alone. Write the messages as "
                'json.dumps({"messages": messages_to_dict(state["messages"])}), with messages_to_dict of '
                "langchain_core.messages"
            )
        try:
            logs.append(replace(read_request(document.row, mapping), place=document.place))
        except LogFormatError as problem:
            raise InputError(f"{document.place}: {problem}") from None
    return logs


def _read_spans(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    return read_traces([name_node(translate(span)) for document in documents for span in _spans_of(document)], mapping)


def _spans_of(document: Document) -> list[Span]:
    try:
        row = phoenix_row(document.row) if "context.trace_id" in document.row else document.row
        return read_spans(row, document.place)
    except LogFormatError as problem:
        raise InputError(f"{document.place}: {problem}") from None


def _trace_ids_of_spans(document: Document) -> Collection[str]:
    return {span.trace for span in _spans_of(document)}


def _trace_ids_of_rows(*keys: str, inside: str = "") -> Callable[[Document], Collection[str]]:
    """Trace ids at the first of `keys` that an object has, or that the objects in its list `inside` have."""

    def find(document: Document) -> Collection[str]:
        inner = document.row.get(inside)
        rows = inner if isinstance(inner, list) else [document.row]
        found = (next((row[key] for key in keys if key in row), None) for row in rows if isinstance(row, Mapping))
        return {one for one in found if isinstance(one, str)}

    return find


def _holds_no_messages(row: Mapping[str, Any]) -> bool:
    return not isinstance(row.get("messages"), list)


FORMATS: Mapping[Format, LogFormat] = {
    "who-and-when": LogFormat(recognizes=looks_like_who_and_when, read=read_who_and_when),
    "agent-process-bench": LogFormat(recognizes=looks_like_process_bench, read=read_process_bench),
    "spans": LogFormat(recognizes=looks_like_spans, read=_read_spans, entries="spans", trace_ids=_trace_ids_of_spans),
    "openai-agents": LogFormat(
        recognizes=looks_like_agents_sdk,
        read=read_agents_sdk,
        entries="spans",
        trace_ids=_trace_ids_of_rows("trace_id", "id"),
    ),
    "langfuse": LogFormat(
        recognizes=looks_like_langfuse,
        read=read_langfuse,
        entries="observations",
        trace_ids=_trace_ids_of_rows("traceId", inside="observations"),
    ),
    "atif": LogFormat(recognizes=looks_like_atif, read=read_atif),
    "inspect": LogFormat(recognizes=looks_like_inspect, read=read_inspect),
    "autogen": LogFormat(recognizes=looks_like_autogen, read=read_autogen, is_part=_holds_no_messages),
    "autogen-events": LogFormat(
        recognizes=looks_like_autogen_events, read=read_autogen_events, entries="events", is_part=lambda row: True
    ),
    "crewai": LogFormat(recognizes=looks_like_crewai, read=read_crewai, entries="records", is_part=lambda row: True),
    "langchain": LogFormat(recognizes=looks_like_langchain, read=read_langchain, is_part=_holds_no_messages),
    "messages": LogFormat(recognizes=lambda row: True, read=_read_messages),
}
"""Formats by name; the first that recognizes a file reads it."""


def find_format(documents: Sequence[Document]) -> Format:
    """The format of logs, found from their first object.

    Raises:
        InputError: an object is clearly of another format, or a file begins with one that is.
    """
    first, files = _recognize(documents[0]), {documents[0].file}
    for document in documents:
        found = _recognize(document)
        if found != first and (found != "messages" or document.file not in files):
            raise InputError(
                f"{document.place} is of the format {found}, but {documents[0].place} of {first}: import them apart, "
                "or choose the format of all with --format"
            )
        files.add(document.file)
    return first


def _recognize(document: Document) -> Format:
    return next(name for name, one in FORMATS.items() if one.recognizes(document.row))
