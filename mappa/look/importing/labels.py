"""Reads labels of a line of a log, or of a file of labels: the guilty agent and step, and the value of each step.

A label that makes no sense is left out and said with its key: a log is worth reading without it. A step that the
rollout does not have is an error, as it says that steps are counted otherwise, and then all labels are off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mappa.look.importing.log_mapping import LogFormatError, LoggedLabels, LogMapping, lookup
from mappa_core import NOBODY
from mappa_core.records import BLAME_BESIDE_AGENTS

VALUES = (1, 0, -1)
_NO_STEP = -1
"""A step that sets of labelled solutions give where nothing is wrong."""


def read_logged_labels(
    line: Mapping[str, Any], mapping: LogMapping, *, messages: int, agents: Mapping[int, str]
) -> LoggedLabels:
    """Read the labels of a line.

    Args:
        messages: how many messages the rollout has.
        agents: who acted, by the number of the message, of the messages that are actions.

    Raises:
        LogFormatError: a step is beyond the rollout; the message names its key.
    """
    steps = _StepCount(mapping=mapping, messages=messages, actions=sorted(agents))
    problems: list[str] = []
    agent = _read_agent(line, mapping, agents.values(), problems)
    reason, whole = _lookup(line, mapping.guilt_reason), _lookup(line, mapping.whole_value)
    if whole is not None and whole not in VALUES:
        problems.append(f"{mapping.whole_value}: {whole!r} is none of 1, 0, -1")
        whole = None
    raw = _lookup(line, mapping.guilty_step)
    is_faultless = agent is None and mapping.guilty_agent is None and _is_no_step(raw)
    category = _lookup(line, mapping.guilt_category)
    return LoggedLabels(
        agent=NOBODY if is_faultless else agent,
        step=None if is_faultless else _read_step(raw, mapping.guilty_step, steps, agent, problems),
        reason=reason if isinstance(reason, str) else "",
        category=category if isinstance(category, str) and category else None,
        values=_read_values(line, mapping.step_values, steps, problems),
        whole=None if whole is None else float(whole),
        problems=tuple(problems),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepCount:
    """What the number of a step means: a message, or one of the `actions`, which are numbers of messages in order."""

    mapping: LogMapping
    messages: int
    actions: Sequence[int]

    def find(self, value: Any, key: str) -> tuple[int | None, str]:
        """The number of the message, or why the value names no action. Raises LogFormatError beyond the rollout."""
        text = str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
        if isinstance(value, bool) or not text.isascii() or not text.isdigit():
            return None, f"{value!r} is not the number of a {self._unit}"
        first, number = self.mapping.steps_from, int(text)
        places = range(self.messages) if self.mapping.steps_of == "messages" else self.actions
        if not first <= number < first + len(places):
            last, other = first + len(places) - 1, 1 if first == 0 else 0
            raise LogFormatError(
                f"{key}: there is no {self._unit} {number}; the first one is {first} and the last one is {last}: if "
                f"steps are counted from {other}, say --steps-from {other}; if they count "
                + ("actions, say --steps-of actions" if self._unit == "message" else "messages, leave out --steps-of")
            )
        found = places[number - first]
        return (found, "") if found in self.actions else (None, f"message {number} is not an action of an agent")

    @property
    def _unit(self) -> str:
        return self.mapping.steps_of.removesuffix("s")


def _lookup(line: Mapping[str, Any], key: str | None) -> Any:
    return None if key is None else lookup(line, key)


def _is_no_step(value: Any) -> bool:
    return not isinstance(value, bool) and str(value).strip() == str(_NO_STEP)


def _read_agent(
    line: Mapping[str, Any], mapping: LogMapping, acted: Collection[str], problems: list[str]
) -> str | None:
    """Read the guilty agent, as the log writes its name: files of labels often write `Assistant` for `assistant`."""
    agent = _lookup(line, mapping.guilty_agent)
    if agent is not None and not isinstance(agent, str):
        problems.append(f"{mapping.guilty_agent}: not a name: {agent!r}")
        return None
    if not agent or agent in acted:
        return agent or None
    same = {name for name in (*acted, *BLAME_BESIDE_AGENTS) if name.casefold() == agent.casefold()}
    return same.pop() if len(same) == 1 else agent


def _read_step(value: Any, key: str | None, steps: _StepCount, agent: str | None, problems: list[str]) -> int | None:
    if key is None or value is None or value == "":
        return None
    number, problem = steps.find(value, key)
    # Whom a message of a user or an answer of a tool accuses has no action: the label is complete without a step.
    if problem and agent not in BLAME_BESIDE_AGENTS:
        problems.append(f"{key}: {problem}")
    return number


def _read_values(line: Mapping[str, Any], key: str | None, steps: _StepCount, problems: list[str]) -> dict[int, float]:
    raw = _lookup(line, key)
    if key is None or raw is None:
        return {}
    actions = steps.actions
    pairs: list[tuple[str, tuple[int | None, str], Any]]
    if isinstance(raw, list) and len(raw) == len(actions):
        pairs = [(str(action), (action, ""), value) for action, value in zip(actions, raw, strict=True)]
    elif isinstance(raw, Mapping):
        pairs = [(str(name), steps.find(name, f"{key}.{name}"), value) for name, value in raw.items()]
    else:
        problems.append(f"{key}: neither an object of steps nor a list with a value for each of {len(actions)} actions")
        return {}
    values: dict[int, float] = {}
    for name, (number, problem), value in pairs:
        if number is None:
            problems.append(f"{key}.{name}: {problem}")
        elif isinstance(value, bool) or value not in VALUES:
            if value is not None:
                problems.append(f"{key}.{name}: {value!r} is none of 1, 0, -1")
        else:
            values[number] = float(value)
    return values
