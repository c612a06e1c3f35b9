"""Reads what frameworks write as lists of messages, by turning it into messages of OpenAI's API: LangChain and
LangGraph, AutoGen's results, CrewAI's log, trajectories of Harbor (ATIF) and eval logs of inspect_ai."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from mappa.look.importing.chat_messages import NO_ACTION, read_conversation
from mappa.look.importing.documents import Document
from mappa.look.importing.log_mapping import (
    IMPORT_METRIC,
    LogFormatError,
    LoggedTrajectory,
    LogMapping,
    can_be_correct,
    lookup,
)
from mappa_core import InputError

Message = dict[str, Any]
_LANGCHAIN = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "system": "system", "tool": "tool"}
_AUTOGEN_TASK = "user"
_AUTOGEN_ECHOES = ("ToolCallSummaryMessage", "ThoughtEvent", "MemoryQueryEvent", "SelectSpeakerEvent")
"""Events that repeat a tool's answer, or accompany an action that has an event of its own."""
UNNAMED_TOOL = "unnamed"
"""The tool of a call that a model broke off before its name."""


def looks_like_langchain(row: Mapping[str, Any]) -> bool:
    """Whether an object is a message of LangChain, or a state of LangGraph that holds some."""
    messages = row.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else row
    if not isinstance(first, Mapping) or "role" in first:
        return False
    kind = first.get("type")
    return isinstance(kind, str) and kind in _LANGCHAIN and ("data" in first or "content" in first)


def looks_like_autogen(row: Mapping[str, Any]) -> bool:
    """Whether an object is a result of an AutoGen team, or one of its messages."""
    messages = row.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else row
    return isinstance(first, Mapping) and {"source", "type", "content"} <= set(first) and "role" not in first


def looks_like_crewai(row: Mapping[str, Any]) -> bool:
    """Whether an object is a line of CrewAI's `output_log_file`."""
    return {"timestamp", "task", "agent", "status"} <= set(row)


def looks_like_atif(row: Mapping[str, Any]) -> bool:
    """Whether an object is a trajectory of Harbor."""
    return str(row.get("schema_version", "")).startswith("ATIF") and isinstance(row.get("steps"), list)


def looks_like_inspect(row: Mapping[str, Any]) -> bool:
    """Whether an object is an eval log of inspect_ai, as JSON."""
    return isinstance(row.get("eval"), Mapping) and isinstance(row.get("samples"), list)


def read_langchain(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    """Read a rollout from each state, or from each file of messages. Raises InputError."""
    return [_read(one, messages, mapping) for one, messages in _conversations(documents, _langchain_messages)]


def read_autogen(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    """Read a rollout from each result, or from each file of messages. Raises InputError."""
    return [_read(one, messages, mapping) for one, messages in _conversations(documents, _autogen_messages)]


def read_crewai(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    """Read a rollout from each kickoff: the first task of a file begins one, and so does every repetition of it."""
    logs = []
    for _, group in groupby(documents, key=lambda one: one.file):
        rows = list(group)
        first = _task_of(rows[0])
        begins = [
            number for number, row in enumerate(rows) if _task_of(row) == first and row.row["status"] == "started"
        ]
        for start, end in zip(begins or [0], [*begins[1:], len(rows)], strict=True):
            messages = [message for row in rows[start:end] for message in _crewai_messages(row)]
            logs.append(_read(rows[start], messages, mapping))
    return logs


def read_atif(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    """Read a rollout from each trajectory. Raises InputError."""
    return [
        replace(
            _read(one, list(_guarded(one, _atif_messages)), mapping), run=str(one.row.get("session_id") or one.place)
        )
        for one in documents
    ]


def read_inspect(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    """Read a rollout from each sample; scores that are numbers or C and I are its outcomes, that of the first scorer is
    `correct`, too. Raises InputError."""
    logs = []
    for document in documents:
        samples = [_mapping(one) for one in document.row["samples"]]
        scores = _inspect_outcomes(samples, None if IMPORT_METRIC in mapping.outcomes else _first_scorer(samples))
        for number, (sample, (outcome, problems)) in enumerate(zip(samples, scores, strict=True)):
            inner = Document(row=sample, place=f"{document.place}: samples.{number}", file=document.file)
            log = _read_inspect_sample(inner, mapping)
            logs.append(replace(log, outcome={**outcome, **log.outcome}, problems=problems))
    return logs


# --- shared -----------------------------------------------------------------------------------------------------------


def _conversations(
    documents: Sequence[Document], convert: Callable[[Mapping[str, Any]], Iterator[Message]]
) -> Iterator[tuple[Document, list[Message]]]:
    """The messages of every object that holds some, or of every file whose objects are messages. Raises InputError."""
    for _, group in groupby(documents, key=lambda one: one.file):
        rows = list(group)
        if isinstance(rows[0].row.get("messages"), list):
            for document in rows:
                inner = [replace(document, row=_mapping(one)) for one in document.row.get("messages") or ()]
                yield document, [message for one in inner for message in _guarded(one, convert)]
        else:
            yield rows[0], [message for document in rows for message in _guarded(document, convert)]


def _read(document: Document, messages: list[Message], mapping: LogMapping) -> LoggedTrajectory:
    """Read the conversation; other keys of the object (outcomes, strata) are as they were."""
    try:
        log = read_conversation(
            {**document.row, "messages": messages}, replace(mapping, messages="messages"), needs_action=False
        )
    except LogFormatError as problem:
        raise InputError(f"{document.place}: {problem}") from None
    return replace(log, place=document.place)


def _guarded(document: Document, convert: Callable[[Mapping[str, Any]], Iterator[Message]]) -> Iterator[Message]:
    try:
        yield from convert(document.row)
    except LogFormatError as problem:
        raise InputError(f"{document.place}: {problem}") from None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _call(identity: Any, name: Any, arguments: Any) -> Message:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments if arguments is not None else {})
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": text}}


def _usage(prompt: Any, completion: Any) -> Message | None:
    return None if prompt is None and completion is None else {"prompt_tokens": prompt, "completion_tokens": completion}


# --- LangChain --------------------------------------------------------------------------------------------------------


def _langchain_messages(raw: Mapping[str, Any]) -> Iterator[Message]:
    data = _mapping(raw.get("data")) or raw
    kind = str(data.get("type") or raw.get("type"))
    told, usage = _mapping(data.get("response_metadata")), _mapping(data.get("usage_metadata"))
    calls = (one for key in ("tool_calls", "invalid_tool_calls") for one in map(_mapping, data.get(key) or ()))
    yield {
        "role": _LANGCHAIN.get(kind, kind),
        "content": data.get("content"),
        "name": data.get("name") if kind != "tool" else None,
        "tool_calls": [_call(one.get("id"), one.get("name") or UNNAMED_TOOL, one.get("args")) for one in calls],
        "tool_call_id": data.get("tool_call_id"),
        "status": data.get("status"),
        "model": told.get("model_name"),
        "finish_reason": told.get("finish_reason", told.get("stop_reason")),
        "usage": _usage(usage.get("input_tokens"), usage.get("output_tokens")),
    }


# --- AutoGen ----------------------------------------------------------------------------------------------------------


def _autogen_messages(raw: Mapping[str, Any]) -> Iterator[Message]:
    source, kind, content = raw.get("source"), raw.get("type"), raw.get("content")
    if not isinstance(source, str) or not isinstance(kind, str):
        raise LogFormatError(f"not a message of AutoGen: it has no source and type, but {', '.join(raw) or 'no keys'}")
    usage = _mapping(raw.get("models_usage"))
    said = {
        "role": "assistant",
        "name": source,
        "usage": _usage(usage.get("prompt_tokens"), usage.get("completion_tokens")),
    }
    if kind == "ToolCallRequestEvent":
        calls = [_mapping(one) for one in content or ()]
        yield {**said, "tool_calls": [_call(one.get("id"), one.get("name"), one.get("arguments")) for one in calls]}
    elif kind == "ToolCallExecutionEvent":
        for one in map(_mapping, content or ()):
            failed = one.get("is_error") is True
            yield {
                "role": "tool",
                "tool_call_id": one.get("call_id"),
                "content": one.get("content"),
                "is_error": failed,
            }
    elif kind in _AUTOGEN_ECHOES:
        yield {"role": "assistant", "name": source, "content": _autogen_text(content), NO_ACTION: f"{kind}s"}
    else:
        role = "user" if source == _AUTOGEN_TASK else "assistant"
        yield {**said, "role": role, "content": _autogen_text(content)}


def _autogen_text(content: Any) -> Any:
    """Text, or parts: a list may hold texts and images."""
    if isinstance(content, list):
        return [one if isinstance(one, Mapping) else {"type": "text", "text": str(one)} for one in content]
    return content if isinstance(content, str) or content is None else json.dumps(content)


# --- CrewAI -----------------------------------------------------------------------------------------------------------


def _task_of(document: Document) -> Any:
    return document.row.get("task"), document.row.get("agent")


def _crewai_messages(document: Document) -> Iterator[Message]:
    row = document.row
    if row["status"] == "completed":
        yield {"role": "assistant", "name": row["agent"], "content": row.get("output")}
    else:
        yield {"role": "user", "content": row["task"], NO_ACTION: f"tasks that {row['status']}"}


# --- Harbor -----------------------------------------------------------------------------------------------------------


def _atif_messages(row: Mapping[str, Any]) -> Iterator[Message]:
    agent = _mapping(row.get("agent"))
    for number, raw in enumerate(row["steps"]):
        step = _mapping(raw)
        source = step.get("source")
        if source not in ("user", "agent", "system"):
            raise LogFormatError(f"steps.{number}.source: {source!r} is none of user, agent, system")
        metrics = _mapping(step.get("metrics"))
        message: Message = {
            "role": "assistant" if source == "agent" else source,
            "content": step.get("message"),
            "reasoning": step.get("reasoning_content"),
            "model": step.get("model_name") or agent.get("model_name"),
        }
        if source == "agent":
            message |= {
                "name": lookup(step, "extra.agent_name") or agent.get("name"),
                "tool_calls": [
                    _call(one.get("tool_call_id"), one.get("function_name"), one.get("arguments"))
                    for one in map(_mapping, step.get("tool_calls") or ())
                ],
                "usage": _usage(metrics.get("prompt_tokens"), metrics.get("completion_tokens")),
            }
        yield message
        for result in map(_mapping, _mapping(step.get("observation")).get("results") or ()):
            yield {"role": "tool", "tool_call_id": result.get("source_call_id"), "content": result.get("content")}


# --- inspect_ai -------------------------------------------------------------------------------------------------------


def _inspect_messages(sample: Mapping[str, Any]) -> Iterator[Message]:
    messages = sample.get("messages")
    if not isinstance(messages, list) or not messages:
        raise LogFormatError("messages: no list of messages; a log that keeps them is written with log_samples")
    for raw in map(_mapping, messages):
        content = raw.get("content")
        thought = [one.get("reasoning") for one in map(_mapping, content if isinstance(content, list) else ())]
        if isinstance(content, list):
            content = [one for one in map(_mapping, content) if one.get("type") != "reasoning"]
        yield {
            "role": raw.get("role"),
            "content": content,
            "reasoning": "\n".join(one for one in thought if one) or None,
            "name": lookup(raw, "metadata.agent"),
            "model": raw.get("model"),
            "tool_calls": [
                _call(one.get("id"), one.get("function"), one.get("arguments"))
                for one in map(_mapping, raw.get("tool_calls") or ())
            ],
            "tool_call_id": raw.get("tool_call_id"),
            "is_error": raw.get("error") is not None,
        }


def _read_inspect_sample(document: Document, mapping: LogMapping) -> LoggedTrajectory:
    """Read a rollout without its scores."""
    sample = document.row
    log = _read(document, list(_guarded(document, _inspect_messages)), mapping)
    task = log.task
    if mapping.task_id is None and sample.get("id") is not None:
        task = replace(task, id=str(sample["id"]))
    if mapping.truth is None and isinstance(sample.get("target"), str):
        task = replace(task, reference=sample["target"] or None)
    run = "/".join(str(sample[key]) for key in ("id", "epoch") if key in sample)
    return replace(log, task=task, error=_mapping(sample.get("error")).get("message"), run=run)


def _first_scorer(samples: Sequence[Mapping[str, Any]]) -> str | None:
    """The scorer of a log whose scores are `correct`: one of this name, else the first of the first scored sample."""
    names = next((list(scores) for one in samples if (scores := _mapping(one.get("scores")))), [])
    return IMPORT_METRIC if IMPORT_METRIC in names else next(iter(names), None)


def _inspect_outcomes(
    samples: Sequence[Mapping[str, Any]], first: str | None
) -> list[tuple[dict[str, float], tuple[str, ...]]]:
    """The outcomes and the problems of each sample. `correct` is the number that the scorer `first` gave; where one of
    its numbers is not within 0..1 it does not score in shares, and no sample of the log has a `correct`."""
    scores = [_inspect_scores(one) for one in samples]
    known = {number: found[first] for number, found in enumerate(scores) if first is not None and first in found}
    odd = {number: value for number, value in known.items() if not can_be_correct(value)}
    outcomes = [{name: value for name, value in found.items() if name != IMPORT_METRIC} for found in scores]
    if not odd:
        for number, value in known.items():
            outcomes[number][IMPORT_METRIC] = value
        return [(outcome, ()) for outcome in outcomes]
    number, value = next(iter(odd.items()))
    more = f" (and in {len(odd) - 1:,} more)" if len(odd) > 1 else ""
    kept = f"kept as `{first}`" if first != IMPORT_METRIC else f"kept with --outcome NAME=scores.{first}.value"
    problem = (
        f"scores.{first}: {value:g} is not within 0..1{more}, so the scores of this log are no outcome "
        f"`{IMPORT_METRIC}`; they are {kept}"
    )
    return [(outcome, (problem,) if place == number else ()) for place, outcome in enumerate(outcomes)]


def _inspect_scores(sample: Mapping[str, Any]) -> dict[str, float]:
    """Scores that are numbers, or letters that stand for some, by the name of their scorer."""
    found: dict[str, float] = {}
    for name, score in _mapping(sample.get("scores")).items():
        value = _mapping(score).get("value")
        number = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}.get(value) if isinstance(value, str) else value
        if isinstance(number, int | float):
            found[str(name)] = float(number)
    return found
