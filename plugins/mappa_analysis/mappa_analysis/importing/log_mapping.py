"""Mapping from the keys of a log to the parts of a trajectory, independent of the log's format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mappa_core import Message, Task, ToolCall, ToolResult, Usage
from mappa_core.engine import Finish

Format = Literal["messages", "spans"]
IMPORT_METRIC = "correct"
"""The metric of an imported run."""
DEFAULT_AGENT = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMapping:
    """Keys of a log by their meaning; a dotted key looks into objects. For spans, keys are attributes of the root span.

    `agents` maps names of agents to their descriptions: a message with such a name is an action whatever its role.
    `default_agent` acts in messages without a name. `outcomes` maps names of outcomes to the keys of numbers or
    booleans.
    """

    agents: Mapping[str, str] = field(default_factory=dict)
    default_agent: str = DEFAULT_AGENT
    messages: str = "messages"
    task_id: str | None = None
    prompt: str | None = None
    truth: str | None = None
    stratum: str | None = None
    cluster: str | None = None
    outcomes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAction:
    """One action of a log. `results` are the tool calls that have a result, in order."""

    agent: str
    model: str | None
    messages: tuple[Message, ...]
    reply: Message
    finish: Finish
    results: tuple[tuple[ToolCall, ToolResult], ...] = ()
    usage: Usage | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTrajectory:
    """One trajectory of a log. `error` is the failure that the log reports."""

    task: Task
    acts: tuple[LoggedAction, ...]
    outcome: Mapping[str, float]
    seconds: float = 0.0
    error: str | None = None


class LogFormatError(Exception):
    """An invalid line of a log. The message begins with the key; the reader of the file adds the place."""


def lookup(record: Mapping[str, Any], key: str) -> Any:
    """The value at a key: an exact match, else the path along its dots. None if there is none."""
    if key in record:
        return record[key]
    head, dot, rest = key.partition(".")
    inner = record.get(head)
    return lookup(inner, rest) if dot and isinstance(inner, Mapping) else None


def require_value(record: Mapping[str, Any], key: str, option: str) -> Any:
    """The value at a key that an option named. Raises LogFormatError if there is none."""
    value = lookup(record, key)
    if value is None:
        raise LogFormatError(
            f"{key}: is not there, and {option} names it; here are {', '.join(sorted(record)) or 'no keys'}"
        )
    return value


def require_text(record: Mapping[str, Any], key: str, option: str) -> str:
    """The text at a key that an option named; a number is converted to text."""
    value = require_value(record, key, option)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise LogFormatError(f"{key}: neither text nor a number: {value!r}")
    return str(value)


def read_outcome(record: Mapping[str, Any], outcomes: Mapping[str, str]) -> dict[str, float]:
    """Read the outcomes of a line, by name. Missing ones and null are left out."""
    outcomes_by_name: dict[str, float] = {}
    for name, key in outcomes.items():
        value = lookup(record, key)
        if value is None:
            continue
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            raise LogFormatError(f"{key}: neither a finite number nor true or false: {value!r}")
        outcomes_by_name[name] = float(value)
    return outcomes_by_name


def read_task(record: Mapping[str, Any], mapping: LogMapping, *, prompt: str | None) -> Task:
    """Read the task of a line. `prompt` is used if the mapping names no key for it. A task without an id later gets one
    from its prompt, so that logs of one problem become samples of one task."""
    if mapping.prompt is not None:
        prompt = require_text(record, mapping.prompt, "--prompt")
    if prompt is None:
        raise LogFormatError("no message of a user says what the task was; name the key of its text with --prompt")
    return Task(
        id="" if mapping.task_id is None else require_text(record, mapping.task_id, "--task-id"),
        prompt=prompt,
        reference=None if mapping.truth is None else require_text(record, mapping.truth, "--truth"),
        stratum="all" if mapping.stratum is None else require_text(record, mapping.stratum, "--stratum"),
        cluster=None if mapping.cluster is None else require_text(record, mapping.cluster, "--cluster"),
    )
