"""Reads what frameworks write as lists of messages: LangChain and LangGraph, AutoGen's results, CrewAI's log,
trajectories of Harbor (ATIF) and eval logs of inspect_ai. What is particular to one (who speaks, what is no action) is
found here; what a message holds is read by `message_forms`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from mappa.look.importing.chat_messages import NO_ACTION, NOTES, read_conversation
from mappa.look.importing.content import RUN_CODE
from mappa.look.importing.documents import Document
from mappa.look.importing.log_mapping import (
    IMPORT_METRIC,
    LogFormatError,
    LoggedTrajectory,
    LogMapping,
    can_be_correct,
    count_odd_scores,
    lookup,
    read_finite,
)
from mappa.look.importing.message_forms import MESSAGE_KEYS, find_role, is_langchain, unwrap
from mappa_core import InputError

Message = dict[str, Any]
_AUTOGEN_TASK = "user"
_AUTOGEN_ECHO, _AUTOGEN_THOUGHT = "ToolCallSummaryMessage", "ThoughtEvent"


def looks_like_langchain(row: Mapping[str, Any]) -> bool:
    """Whether an object is a message of LangChain, or a state of LangGraph that holds some."""
    messages = row.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else row
    return isinstance(first, Mapping) and is_langchain(first)


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
    return [
        _read(one, _tidy_autogen(messages), mapping) for one, messages in _conversations(documents, _autogen_messages)
    ]


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
            odd = count_odd_scores(
                {name: _mapping(score).get("value") for name, score in _mapping(sample.get("scores")).items()}
            )
            notes = {**log.notes, **odd}
            logs.append(replace(log, outcome={**outcome, **log.outcome}, problems=problems, notes=notes))
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


def _usage(prompt: Any, completion: Any) -> Message | None:
    return None if prompt is None and completion is None else {"prompt_tokens": prompt, "completion_tokens": completion}


# --- LangChain --------------------------------------------------------------------------------------------------------


def _langchain_messages(raw: Mapping[str, Any]) -> Iterator[Message]:
    data = unwrap(raw)
    role = find_role(data)
    told, usage = _mapping(data.get("response_metadata")), _mapping(data.get("usage_metadata"))
    # The name of a tool's message is that of the tool, and nobody's who acts.
    named = {"name": None, "tool_name": data.get("name")} if role in ("tool", "function") else {}
    yield {
        **{key: value for key, value in data.items() if key in MESSAGE_KEYS or key == "artifact"},
        **named,
        "role": data.get("type") if role is None else role,
        "model": told.get("model_name", told.get("model")),
        "finish_reason": told.get("finish_reason", told.get("stop_reason")),
        "usage": _usage(usage.get("input_tokens"), usage.get("output_tokens")),
    }


# --- AutoGen ----------------------------------------------------------------------------------------------------------


def _autogen_messages(raw: Mapping[str, Any]) -> Iterator[Message]:
    """The messages of an entry. Messages of a chat and requests of calls or code are acts; other events are none."""
    source, kind, content = raw.get("source"), raw.get("type"), raw.get("content")
    if not isinstance(source, str) or not isinstance(kind, str):
        raise LogFormatError(f"not a message of AutoGen: it has no source and type, but {', '.join(raw) or 'no keys'}")
    usage = _mapping(raw.get("models_usage"))
    said = {
        "role": "assistant",
        "name": source,
        "usage": _usage(usage.get("prompt_tokens"), usage.get("completion_tokens")),
    }
    text = _autogen_content(content)
    if kind == "ToolCallRequestEvent":
        yield {**said, "tool_calls": list(content or ())}
    elif kind == "ToolCallExecutionEvent":
        yield from map(_autogen_answer, content or ())
    elif kind == "CodeGenerationEvent":
        call = {"name": RUN_CODE, "arguments": {"code_blocks": raw.get("code_blocks") or []}}
        yield {**said, "content": text, "tool_calls": [call]}
    elif kind == "CodeExecutionEvent":
        result = _mapping(raw.get("result"))
        failed = result.get("exit_code") not in (0, None)
        yield {"role": "tool", "tool_name": RUN_CODE, "content": result.get("output"), "is_error": failed}
    elif kind == _AUTOGEN_ECHO:
        yield {**said, "content": text, "tool_calls": list(raw.get("tool_calls") or ()), NO_ACTION: f"{kind}s"}
        yield from map(_autogen_answer, raw.get("results") or ())
    elif kind.partition("[")[0].endswith("Message"):
        yield {**said, "role": "user" if source == _AUTOGEN_TASK else "assistant", "content": text}
    else:
        yield {"role": "assistant", "name": source, "content": text, NO_ACTION: f"{kind}s"}


def _autogen_answer(raw: Any) -> Message:
    one = _mapping(raw)
    return {
        "role": "tool",
        "tool_name": one.get("name"),
        "tool_call_id": one.get("call_id"),
        "content": one.get("content"),
        "is_error": one.get("is_error") is True,
    }


def _autogen_content(content: Any) -> Any:
    """Text, or parts: a list may hold texts, images and what a memory holds."""
    if not isinstance(content, list):
        return content if isinstance(content, str) or content is None else json.dumps(content, ensure_ascii=False)
    return [_autogen_part(one) for one in content]


def _autogen_part(one: Any) -> Any:
    if not isinstance(one, Mapping) or isinstance(one.get("type"), str):
        return one if isinstance(one, str | Mapping) else json.dumps(one, ensure_ascii=False)
    if set(one) == {"data"}:
        return {"type": "image"}
    held = one.get("content")
    return held if isinstance(held, str) else json.dumps(one, ensure_ascii=False)


def _tidy_autogen(messages: Sequence[Message]) -> list[Message]:
    """The messages, where a thought is that of the action behind it, and a summary of calls repeats nothing: it stands
    for them where their own events are not in the log."""
    tidy: list[Message] = []
    called: set[Any] = set()
    thoughts: dict[Any, Message] = {}
    repeated: set[Any] = set()
    for message in messages:
        why, source = message.get(NO_ACTION), message.get("name")
        calls = [_mapping(one).get("id") for one in message.get("tool_calls") or ()]
        if why == f"{_AUTOGEN_THOUGHT}s":
            tidy += [thoughts.pop(source)] if source in thoughts else []
            thoughts[source] = message
            continue
        if why == f"{_AUTOGEN_ECHO}s":
            repeated = {one for one in calls if one in called}
            if calls and not repeated:
                message = {key: value for key, value in message.items() if key != NO_ACTION}
            else:
                message = {**message, "tool_calls": []}
        elif why is None and source in thoughts and message["role"] == "assistant":
            message = {**message, "reasoning": thoughts.pop(source)["content"]}
        elif message.get("tool_call_id") in repeated:
            continue
        else:
            repeated = set()
        called.update(calls)
        tidy.append(message)
    return [*tidy, *thoughts.values()]


# --- CrewAI -----------------------------------------------------------------------------------------------------------


def _task_of(document: Document) -> Any:
    return document.row.get("task"), document.row.get("agent")


def _crewai_messages(document: Document) -> Iterator[Message]:
    row = document.row
    if row["status"] == "completed":
        output = row.get("output")
        text = output if isinstance(output, str) or output is None else json.dumps(output, ensure_ascii=False)
        yield {"role": "assistant", "name": row["agent"], "content": text}
    else:
        yield {"role": "user", "content": row["task"], NO_ACTION: f"tasks that {row['status']}"}


# --- Harbor -----------------------------------------------------------------------------------------------------------


_NO_MODEL = "steps that no model made"
_ELSEWHERE = "trajectories of other agents, which results refer to"


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
                "tool_calls": step.get("tool_calls"),
                "usage": _usage(metrics.get("prompt_tokens"), metrics.get("completion_tokens")),
            }
            if step.get("llm_call_count") == 0:
                message[NO_ACTION] = _NO_MODEL
        yield message
        for result in map(_mapping, _mapping(step.get("observation")).get("results") or ()):
            others = len(result.get("subagent_trajectory_ref") or ())
            yield {
                "role": "tool",
                "tool_call_id": result.get("source_call_id"),
                "content": result.get("content"),
                NOTES: {_ELSEWHERE: others} if others else {},
            }


# --- inspect_ai -------------------------------------------------------------------------------------------------------


_ATTACHED = "attachment://"


def _inspect_messages(sample: Mapping[str, Any]) -> Iterator[Message]:
    messages = sample.get("messages")
    if not isinstance(messages, list) or not messages:
        raise LogFormatError("messages: no list of messages; a log that keeps them is written with log_samples")
    attached = _mapping(sample.get("attachments"))
    for raw in map(_mapping, messages):
        known = {key: value for key, value in raw.items() if key in MESSAGE_KEYS}
        yield {
            **_attach(known, attached),
            "name": lookup(raw, "metadata.agent"),
            "tool_name": raw.get("function"),
            "model": raw.get("model"),
        }


def _attach(value: Any, attached: Mapping[str, Any]) -> Any:
    """A value with the texts that a log keeps apart because they are long."""
    if isinstance(value, str):
        return attached.get(value.removeprefix(_ATTACHED), value) if value.startswith(_ATTACHED) else value
    if isinstance(value, Mapping):
        return {key: _attach(inner, attached) for key, inner in value.items()}
    return [_attach(inner, attached) for inner in value] if isinstance(value, list) else value


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
        if isinstance(number, int | float) and (known := read_finite(number)) is not None:
            found[str(name)] = known
    return found
