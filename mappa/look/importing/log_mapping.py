"""Mapping from the keys of a log to the parts of a trajectory, independent of the log's format."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from mappa_core import Message, Task, ToolCall, ToolResult, Usage
from mappa_core.engine import Finish

Format = Literal[
    "who-and-when", "agent-process-bench", "spans", "openai-agents", "langfuse", "atif", "inspect", "autogen",
    "autogen-events", "crewai", "langchain", "messages",
]  # fmt: skip
IMPORT_METRIC = "correct"
"""The metric of an imported run."""
DEFAULT_AGENT = "assistant"
LABEL_KEYS = (
    "guilty_agent", "guilty_step", "guilt_reason", "guilt_category", "step_values", "whole_value", "steps_of",
    "steps_from", "labels_of", "labelled_by",
)  # fmt: skip
"""What of a mapping is about labels."""
PERSONS = ("user", "human")
"""Names of people, unless an option says that they are agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMapping:
    """Keys of a log by their meaning; a dotted key looks into objects. For spans, keys are attributes of the root span.

    `agents` maps names of agents to their descriptions. A message with a name is an action whatever its role, unless
    the name is one of `persons`. `agent_from` is the key of that name in a message (of spans: an attribute), `text`
    that of its text. `default_agent` acts in messages of an assistant without a name. `outcomes` maps names of outcomes
    to the keys of numbers or booleans. Labels: `guilty_agent`, `guilty_step`, `guilt_reason` and `guilt_category`;
    `step_values` maps steps to 1, 0 or -1; `whole_value` is one of these for the rollout. Steps are numbers of messages
    or, with `steps_of`, of actions, and the first one is `steps_from`. In a file of labels alone `labels_of` is the key
    of the rollout's name and `labelled_by` that of the labeller's.
    """

    agents: Mapping[str, str] = field(default_factory=dict)
    default_agent: str = DEFAULT_AGENT
    persons: tuple[str, ...] = PERSONS
    agent_from: str | None = None
    messages: str = "messages"
    text: str = "content"
    task_id: str | None = None
    prompt: str | None = None
    truth: str | None = None
    stratum: str | None = None
    cluster: str | None = None
    outcomes: Mapping[str, str] = field(default_factory=dict)
    guilty_agent: str | None = None
    guilty_step: str | None = None
    guilt_reason: str | None = None
    guilt_category: str | None = None
    step_values: str | None = None
    whole_value: str | None = None
    steps_of: Literal["messages", "actions"] = "messages"
    steps_from: int = 0
    labels_of: str | None = None
    labelled_by: str | None = None

    def with_defaults(self, **defaults: Any) -> LogMapping:
        """The mapping with other defaults in place of this class's; what was chosen stays."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        plain = LogMapping()
        return replace(self, **{name: new for name, new in defaults.items() if own[name] == getattr(plain, name)})

    def without_labels(self) -> LogMapping:
        """The mapping of a log whose labels lie in another file, which the keys of labels are about."""
        plain = LogMapping()
        return replace(self, **{name: getattr(plain, name) for name in LABEL_KEYS})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedLabels:
    """Labels of a rollout, with messages by their number in the log. `problems` are labels that were not understood,
    each with its key."""

    agent: str | None = None
    step: int | None = None
    reason: str = ""
    category: str | None = None
    values: Mapping[int, float] = field(default_factory=dict)
    whole: float | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAction:
    """One action of a log. `results` are the tool calls that have a result, in order; `number` is that of its message
    (or span) in the log of the rollout, from 0, and `span` the id of the span that it was read of."""

    agent: str
    model: str | None
    messages: tuple[Message, ...]
    reply: Message
    finish: Finish
    results: tuple[tuple[ToolCall, ToolResult], ...] = ()
    usage: Usage | None = None
    seconds: float = 0.0
    number: int | None = None
    span: str | None = None
    strata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTrajectory:
    """One trajectory of a log, at `place` in `file`. `error` is the failure that the log reports, `run` its name in
    the log. Of its `entries` (messages or spans) those that are no action are counted in `left_out`, by reason;
    `unread` are keys that mean nothing to this format, `problems` what else was not taken as it stands, each with its
    key, and `notes` count by kind what is not in the run, or not as it was written. Without `has_text` only the labels
    of its actions are known."""

    task: Task
    acts: tuple[LoggedAction, ...]
    outcome: Mapping[str, float]
    seconds: float = 0.0
    error: str | None = None
    place: str = ""
    file: str = ""
    run: str | None = None
    labels: LoggedLabels = field(default_factory=LoggedLabels)
    entries: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)
    has_text: bool = True


class LogFormatError(Exception):
    """An invalid line of a log. The message begins with the key; the reader of the file adds the place."""


_ITEM = re.compile(
    r"(?P<list>[^.\[\]]+)\[(?:(?P<number>\d+)|(?P<inner>[^=\[\]]+)=(?P<outer>[^\[\]]+))\](?:\.(?P<rest>.+))?"
)
"""A key that goes through a list: `failures[0].step`, or `failures[id=cause.id].step`."""


def lookup(record: Mapping[str, Any], key: str) -> Any:
    """The value at a key: an exact match, else the path along its dots. None if there is none.

    `failures[0].step` takes an item of a list by its number, and `failures[id=cause.id].step` the first one whose `id`
    is what the record has at `cause.id`.
    """
    return _follow(record, key, record)


def _follow(value: Mapping[str, Any], key: str, record: Mapping[str, Any]) -> Any:
    if key in value:
        return value[key]
    if through := _ITEM.fullmatch(key):
        item, rest = _find_item(value.get(through["list"]), through, record), through["rest"]
        return _follow(item, rest, record) if rest and isinstance(item, Mapping) else None if rest else item
    head, dot, rest = key.partition(".")
    inner = value.get(head)
    return _follow(inner, rest, record) if dot and isinstance(inner, Mapping) else None


def _find_item(items: Any, through: re.Match[str], record: Mapping[str, Any]) -> Any:
    if not isinstance(items, list):
        return None
    if through["number"] is not None:
        return next(iter(items[int(through["number"]) :][:1]), None)
    wanted = lookup(record, through["outer"])
    found = (item for item in items if isinstance(item, Mapping) and lookup(item, through["inner"]) == wanted)
    return None if wanted is None else next(found, None)


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


def can_be_correct(value: float) -> bool:
    """Whether a number can be the outcome `correct`, which is shown as a share."""
    return 0.0 <= value <= 1.0


def read_finite(value: float) -> float | None:
    """A number as a float; None for one that is not finite, or that no float can be."""
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def read_outcome(record: Mapping[str, Any], outcomes: Mapping[str, str]) -> dict[str, float]:
    """Read the outcomes of a line, by name. Missing ones, null and numbers that are not finite are left out. Raises
    LogFormatError for what is no number, and for a `correct` that is not within 0..1."""
    outcomes_by_name: dict[str, float] = {}
    for name, key in outcomes.items():
        value = lookup(record, key)
        if value is None:
            continue
        if not isinstance(value, bool | int | float):
            raise LogFormatError(f"{key}: neither a number nor true or false: {value!r}")
        number = read_finite(value)
        if number is None:
            continue
        if name == IMPORT_METRIC and not can_be_correct(number):
            raise LogFormatError(
                f"{key}: {value!r} is not within 0..1, as an outcome `{IMPORT_METRIC}` must be; keep it under another "
                f"name: --outcome NAME={key}"
            )
        outcomes_by_name[name] = number
    return outcomes_by_name


def count_odd_scores(scores: Mapping[str, Any]) -> dict[str, int]:
    """A note for each score, by its name, that is a number and not finite."""
    odd = (name for name, value in scores.items() if isinstance(value, int | float) and read_finite(value) is None)
    return {f"scores {name} that are no finite number": 1 for name in odd}


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
