"""Reads labels of a line of a log: the guilty agent and step, and the value of each step.

A label that makes no sense is left out and said with its key: a log is worth reading without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mappa.look.importing.log_mapping import LoggedLabels, LogMapping, lookup

VALUES = (1, 0, -1)


def read_logged_labels(
    line: Mapping[str, Any], mapping: LogMapping, *, messages: int, actions: Collection[int]
) -> LoggedLabels:
    """Read the labels of a line.

    Args:
        messages: how many messages the rollout has.
        actions: numbers of the messages that are actions.
    """
    problems: list[str] = []
    step = _read_step(line, mapping.guilty_step, problems, messages=messages, actions=actions)
    agent = _lookup(line, mapping.guilty_agent)
    if agent is not None and not isinstance(agent, str):
        problems.append(f"{mapping.guilty_agent}: not a name: {agent!r}")
        agent = None
    reason, whole = _lookup(line, mapping.guilt_reason), _lookup(line, mapping.whole_value)
    if whole is not None and whole not in VALUES:
        problems.append(f"{mapping.whole_value}: {whole!r} is none of 1, 0, -1")
        whole = None
    return LoggedLabels(
        agent=agent or None,
        step=step,
        reason=reason if isinstance(reason, str) else "",
        values=_read_values(line, mapping.step_values, problems, messages=messages, actions=actions),
        whole=None if whole is None else float(whole),
        problems=tuple(problems),
    )


def _lookup(line: Mapping[str, Any], key: str | None) -> Any:
    return None if key is None else lookup(line, key)


def _read_step(
    line: Mapping[str, Any], key: str | None, problems: list[str], *, messages: int, actions: Collection[int]
) -> int | None:
    value = _lookup(line, key)
    if value is None or value == "":
        return None
    number, problem = _message_number(value, messages=messages, actions=actions)
    if problem:
        problems.append(f"{key}: {problem}")
    return number


def _read_values(
    line: Mapping[str, Any], key: str | None, problems: list[str], *, messages: int, actions: Collection[int]
) -> dict[int, float]:
    raw = _lookup(line, key)
    if raw is None:
        return {}
    if isinstance(raw, list):
        raw = dict(zip(map(str, sorted(actions)), raw, strict=False)) if len(raw) == len(actions) else raw
    if not isinstance(raw, Mapping):
        problems.append(f"{key}: neither an object of steps nor a list with a value for each of {len(actions)} actions")
        return {}
    values: dict[int, float] = {}
    for name, value in raw.items():
        number, problem = _message_number(name, messages=messages, actions=actions)
        if number is None:
            problems.append(f"{key}.{name}: {problem}")
        elif isinstance(value, bool) or value not in VALUES:
            if value is not None:
                problems.append(f"{key}.{name}: {value!r} is none of 1, 0, -1")
        else:
            values[number] = float(value)
    return values


def _message_number(value: Any, *, messages: int, actions: Collection[int]) -> tuple[int | None, str]:
    """The number of a message, or why the value is none."""
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
    if isinstance(value, bool) or not text.isascii() or not text.isdigit():
        return None, f"{value!r} is not the number of a message"
    number = int(text)
    if number >= messages:
        return None, f"there is no message {number}; the last one is {messages - 1}"
    if number not in actions:
        return None, f"message {number} is not an action of an agent"
    return number, ""
