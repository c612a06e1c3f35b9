"""What is where in a log, and what comes out of it, whatever wrote it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mappa_core.records import Finish, Message, Task, ToolCall, ToolResult, Usage

Format = Literal["messages", "spans"]
METRIC = "correct"
"""The outcome that an imported run is measured by."""
UNNAMED = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Which keys of a log mean what; a dotted key looks into objects. Of spans they are attributes of the root span.

    `agents` maps names to what each is for: a message that carries such a name is an action whatever its role.
    `unnamed` is who acts where a message says nothing. `outcomes` maps the name of an outcome to the key of a number or
    a truth value.
    """

    agents: Mapping[str, str] = field(default_factory=dict)
    unnamed: str = UNNAMED
    messages: str = "messages"
    task_id: str | None = None
    prompt: str | None = None
    truth: str | None = None
    stratum: str | None = None
    cluster: str | None = None
    outcomes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One action of a log. `answered` are the calls that have a result, in order."""

    agent: str
    model: str | None
    messages: tuple[Message, ...]
    reply: Message
    finish: Finish
    answered: tuple[tuple[ToolCall, ToolResult], ...] = ()
    usage: Usage | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One trajectory of a log. `error` is what it says that went wrong."""

    task: Task
    acts: tuple[Act, ...]
    outcome: Mapping[str, float]
    seconds: float = 0.0
    error: str | None = None


class BadLog(Exception):
    """What is wrong with one line, beginning with the key; who reads the file adds where."""


def found(record: Mapping[str, Any], key: str) -> Any:
    """The value at a key: of exactly that name, or else through objects along its dots. None where there is none."""
    if key in record:
        return record[key]
    head, dot, rest = key.partition(".")
    inner = record.get(head)
    return found(inner, rest) if dot and isinstance(inner, Mapping) else None


def wanted(record: Mapping[str, Any], key: str, option: str) -> Any:
    """The value at a key that an option named. Raises BadLog where there is none."""
    value = found(record, key)
    if value is None:
        raise BadLog(f"{key}: is not there, and {option} names it; here are {', '.join(sorted(record)) or 'no keys'}")
    return value


def text_at(record: Mapping[str, Any], key: str, option: str) -> str:
    """The text, or the number as text, at a key that an option named."""
    value = wanted(record, key, option)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadLog(f"{key}: neither text nor a number: {value!r}")
    return str(value)


def outcome_of(record: Mapping[str, Any], outcomes: Mapping[str, str]) -> dict[str, float]:
    """The outcomes of a line, by name. One that the line does not know (null, or not there) is left out."""
    told: dict[str, float] = {}
    for name, key in outcomes.items():
        value = found(record, key)
        if value is None:
            continue
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            raise BadLog(f"{key}: neither a finite number nor true or false: {value!r}")
        told[name] = float(value)
    return told


def task_of(record: Mapping[str, Any], mapped: Mapped, *, prompt: str | None) -> Task:
    """The task of a line; `prompt` is what the team was asked, where no key says it. Without an id of its own it is
    named by its prompt, so that logs of one problem are samples of one task."""
    if mapped.prompt is not None:
        prompt = text_at(record, mapped.prompt, "--prompt")
    if prompt is None:
        raise BadLog("no message of a user says what the task was; name the key of its text with --prompt")
    return Task(
        id="" if mapped.task_id is None else text_at(record, mapped.task_id, "--task-id"),
        prompt=prompt,
        reference=None if mapped.truth is None else text_at(record, mapped.truth, "--truth"),
        stratum="all" if mapped.stratum is None else text_at(record, mapped.stratum, "--stratum"),
        cluster=None if mapped.cluster is None else text_at(record, mapped.cluster, "--cluster"),
    )
