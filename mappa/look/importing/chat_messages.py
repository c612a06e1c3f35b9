"""Reads logs of messages as chat APIs have them, one conversation per line.

    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "name": "solver", "content": "4"}]}

A message of an assistant is an action, and so is every message with the name of an agent, whatever its role. What
messages hold is read by `message_forms`; beside that one may have `model`, `finish_reason`, `usage` and `seconds`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal, get_args

from mappa.look.importing.content import Answer, join_content, read_content
from mappa.look.importing.documents import decode_embedded
from mappa.look.importing.labels import read_logged_labels
from mappa.look.importing.log_mapping import (
    LogFormatError,
    LoggedAction,
    LoggedTrajectory,
    LogMapping,
    count_odd_scores,
    lookup,
    read_outcome,
    read_task,
)
from mappa.look.importing.message_forms import (
    MESSAGE_KEYS,
    ROLES,
    MessageRole,
    NormalMessage,
    find_role,
    group_items,
    is_item,
    merge_messages,
    optional_text,
    pair_answers,
    read_message,
    unwrap,
)
from mappa_core import Message, ToolCall, ToolResult, Usage
from mappa_core.coach import find_error_text
from mappa_core.engine import Finish

NO_ACTION = "mappa.no_action"
NOTES = "mappa.notes"
"""Keys that a reader of another format adds to a message: why it is no action, and what was left out, by kind."""
_KNOWN_KEYS = {
    *MESSAGE_KEYS,
    "type",
    "id",
    "model",
    "finish_reason",
    "stop_reason",
    "usage",
    "seconds",
    NO_ACTION,
    NOTES,
}
_REMARK = re.compile(r"(?P<agent>.+?) \((?P<remark>.+)\)")
"""A name with a remark, as in `Orchestrator (thought)`."""
_SYSTEM_KEYS = ("system", "system_instruction", "systemInstruction", "instructions")
"""Where requests of providers have the system prompt."""
SYSTEM, ANSWER, UNNAMED = "system prompts", "answers of tools", "messages of a user"
"""Why messages are no actions."""
BEHIND = "messages behind the last action"
"""What no action of a rollout was shown."""
FINISH_REASONS: Mapping[str, Finish] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool",
    "tool_call": "tool",
    "tool_use": "tool",
    "tool": "tool",
    "function_call": "tool",
    "pause_turn": "tool",
    "content_filter": "abort",
    "safety": "abort",
    "refusal": "abort",
    "abort": "abort",
    "error": "abort",
}
"""Finish reasons in small letters, as OpenAI, Anthropic and Gemini name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoggedMessage:
    """A message, the object that it was read from, and the object's number and place in the log. It is an action of
    `agent`, or none because of `why`; `remark` is what the log adds to the agent's name."""

    message: NormalMessage
    raw: Mapping[str, Any]
    number: int
    place: str
    agent: str | None = None
    why: str = ""
    remark: str = ""


def read_request(line: Mapping[str, Any], mapping: LogMapping) -> LoggedTrajectory:
    """Read the trajectory of a line of messages, which may have its system prompt beside them, as requests of
    Anthropic, Gemini and OpenAI's responses do. Raises LogFormatError as `read_conversation` does."""
    held = {key: line.get(key) for key in _SYSTEM_KEYS}
    prompts = {key: value.get("parts") if isinstance(value, Mapping) else value for key, value in held.items()}
    texts = (read_content(value, key).text for key, value in prompts.items() if isinstance(value, str | list))
    return read_conversation(
        line, mapping, before=tuple(Message(role="system", content=text) for text in texts if text)
    )


def read_conversation(
    line: Mapping[str, Any], mapping: LogMapping, *, needs_action: bool = True, before: tuple[Message, ...] = ()
) -> LoggedTrajectory:
    """Read the trajectory of a conversation.

    Args:
        before: what every agent was shown before the first message.
        needs_action: whether a conversation without an action is an error, or a trajectory without one.

    Raises:
        LogFormatError: a value is invalid; the message names its key.
    """
    raw = decode_embedded(lookup(line, mapping.messages))
    if not isinstance(raw, list) or not raw:
        there = ", ".join(sorted(line)) or "no keys"
        raise LogFormatError(
            f"{mapping.messages}: no list of messages; here are {there}: name the right key with --messages"
        )
    if all(isinstance(one, str) for one in raw):
        # Sets of worked solutions hold a list of texts, each a step of the one who solves.
        raw = [{"role": "assistant", mapping.text: one} for one in raw]
    groups = group_items([unwrap(one) if isinstance(one, Mapping) else one for one in raw])
    said = [_read_messages(number, group, mapping) for number, group in groups]
    answers = pair_answers([one.message.content for one in said])
    shown = list(before)
    acts = []
    for place, one in enumerate(said):
        if one.agent is not None:
            acts.append(_read_action(one, one.agent, tuple(shown), answers.get(place, {})))
        shown += one.message.to_messages()
    if not acts and needs_action:
        raise LogFormatError(
            f"{mapping.messages}: no message is an action: none is of an assistant, and none carries the name of an "
            "agent (name the key of it with --agent-from)"
        )
    question = next((one.content for one in shown if one.role == "user"), None)
    return LoggedTrajectory(
        task=read_task(line, mapping, prompt=question),
        acts=tuple(acts),
        outcome=read_outcome(line, mapping.outcomes),
        seconds=sum(act.seconds for act in acts),
        labels=read_logged_labels(
            line, mapping, messages=len(raw), agents={act.number: act.agent for act in acts if act.number is not None}
        ),
        entries=len(said),
        left_out=Counter(one.why for one in said if one.agent is None),
        unread=_unread_keys(said, mapping),
        notes={
            **_count_notes(said, answers),
            **count_odd_scores({name: lookup(line, key) for name, key in mapping.outcomes.items()}),
        },
    )


def _count_notes(said: Sequence[_LoggedMessage], answers: Mapping[int, Mapping[int, Answer]]) -> Mapping[str, int]:
    """What was left out of messages, and the messages that no action was shown, unless they answer its calls."""
    content = join_content(one.message.content for one in said)
    notes = Counter(content.notes)
    for one in said:
        notes.update(one.raw.get(NOTES, {}))
    last = max((place for place, one in enumerate(said) if one.agent is not None), default=-1)
    taken = {id(answer) for found in answers.values() for answer in found.values()}
    notes[BEHIND] += sum(
        one.message.content.is_written or any(id(answer) not in taken for answer in one.message.content.answers)
        for one in said[last + 1 :]
    )
    return dict(+notes)


def _unread_keys(said: Sequence[_LoggedMessage], mapping: LogMapping) -> tuple[str, ...]:
    named = (key.partition(".")[0] for key in (mapping.agent_from, mapping.text) if key is not None)
    read = {*_KNOWN_KEYS, *named}
    whole = (one for one in said if not is_item(one.raw))
    keys = (key for one in whole for key, value in one.raw.items() if key not in read and value not in (None, "", []))
    acted = (one for one in said if one.agent is not None)
    endings = (end for one in acted for end in name_unknown_finish(_ending(one.raw), "finish_reason"))
    return tuple(f"{mapping.messages}.{key}" for key in dict.fromkeys((*keys, *endings)))


def _ending(raw: Mapping[str, Any]) -> Any:
    reason = raw.get("finish_reason")
    return raw.get("stop_reason") if reason is None else reason


def read_usage(raw: Mapping[str, Any], place: str) -> Usage:
    """Read the usage of an action's call; a missing count is unknown."""
    # Anthropic and OpenAI's responses call them so.
    others = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
    keys = {name: name if raw.get(name) is not None else other for name, other in others.items()}
    counts = {
        name: read_token_count(raw.get(key), f"{place}.{name if raw.get(key) is None else key}")
        for name, key in keys.items()
    }
    return Usage(calls=1, **counts)


def read_token_count(value: Any, place: str) -> int | None:
    """Read a number of tokens; a table writes whole numbers as 12.0, and NaN for those that are missing."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != value // 1:
        raise LogFormatError(f"{place}: no number of tokens: {value!r}")
    return int(value)


def read_finish(value: Any, calls: Sequence[ToolCall]) -> Finish:
    """Read the finish reason of an action. If the log has none that is known: `tool` with tool calls, else `stop`."""
    return FINISH_REASONS.get(str(value).casefold(), "tool" if calls else "stop")


def answer_result(tool: str, text: str, *, failed: bool = False, seconds: float = 0.0) -> ToolResult:
    """The result that a tool's answer stands for: an error if its log says so, or if the answer itself does."""
    status: Literal["ok", "error"] = "error" if failed or find_error_text(text) is not None else "ok"
    return ToolResult(tool=tool, status=status, stdout=text, seconds=seconds)


def name_unknown_finish(value: Any, key: str) -> Iterator[str]:
    """The key and the value of a finish reason that is not known; nothing if it is, or if there is none."""
    if value is not None and str(value).casefold() not in FINISH_REASONS:
        yield f"{key} {value!r}"


def _read_messages(number: int, group: Sequence[Any], mapping: LogMapping) -> _LoggedMessage:
    """Read a message, or the items of one response."""
    read = [_read_message(raw, number + place, mapping) for place, raw in enumerate(group)]
    return replace(read[0], message=merge_messages([one.message for one in read]))


def _read_message(raw: Any, number: int, mapping: LogMapping) -> _LoggedMessage:
    place = f"{mapping.messages}.{number}"
    if not isinstance(raw, Mapping):
        raise LogFormatError(f"{place}: not a message: {raw!r}")
    role = _read_role(raw, place, mapping)
    name, remark = (None, "") if is_item(raw) else _read_name(raw, place, mapping)
    message = read_message(raw, role, name, place, mapping.text)
    agent, why = (None, str(raw[NO_ACTION])) if NO_ACTION in raw else _find_agent(message, mapping)
    return _LoggedMessage(message=message, raw=raw, number=number, place=place, agent=agent, why=why, remark=remark)


def _read_role(raw: Mapping[str, Any], place: str, mapping: LogMapping) -> MessageRole:
    """Read the role of a message. A role that the API lacks is the name of an agent where `agent_from` says so."""
    role = find_role(raw)
    if isinstance(role, str) and role in ROLES:
        return ROLES[role]
    named = None if mapping.agent_from is None else lookup(raw, mapping.agent_from)
    if isinstance(named, str) and named.strip():
        return "assistant"
    raise LogFormatError(
        f"{place}.role: {role!r} is none of {', '.join(ROLES)}; if it is the name of an agent, say --agent-from role"
    )


def _read_name(raw: Mapping[str, Any], place: str, mapping: LogMapping) -> tuple[str | None, str]:
    """Read who speaks, and the remark on it. An empty name is none."""
    if mapping.agent_from is None:
        return _name_or_none(optional_text(raw, "name", place)), ""
    named = lookup(raw, mapping.agent_from)
    if named is not None and not isinstance(named, str):
        raise LogFormatError(f"{place}.{mapping.agent_from}: not a name: {named!r}")
    if mapping.agent_from == "role" and named in get_args(MessageRole):
        return _name_or_none(optional_text(raw, "name", place)), ""
    parts = _REMARK.fullmatch(named or "")
    return (_name_or_none(parts["agent"]), parts["remark"]) if parts else (_name_or_none(named), "")


def _name_or_none(name: str | None) -> str | None:
    return name if name and name.strip() else None


def _find_agent(message: NormalMessage, mapping: LogMapping) -> tuple[str | None, str]:
    """The agent whose action a message is, or why it is none."""
    name = message.name
    if name in mapping.agents:
        return name, ""
    if message.role == "system":
        return None, SYSTEM
    if message.role == "tool" or (message.content.answers and not message.content.is_written):
        return None, ANSWER
    if name is None:
        return (mapping.default_agent, "") if message.role == "assistant" else (None, UNNAMED)
    return (None, f"messages of {name}, a person") if name.casefold() in mapping.persons else (name, "")


def _read_action(
    one: _LoggedMessage, agent: str, before: tuple[Message, ...], answers: Mapping[int, Answer]
) -> LoggedAction:
    content, raw = one.message.content, one.raw
    usage, seconds = raw.get("usage"), raw.get("seconds")
    if isinstance(seconds, float) and not isfinite(seconds):
        seconds = None
    if usage is not None and not isinstance(usage, Mapping):
        raise LogFormatError(f"{one.place}.usage: not an object")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0):
        raise LogFormatError(f"{one.place}.seconds: no number of seconds: {seconds!r}")
    # An option may say that what speaks as a tool is an agent.
    text = "\n".join(answer.text for answer in content.answers) if one.message.role == "tool" else content.text
    return LoggedAction(
        agent=agent,
        model=optional_text(raw, "model", one.place),
        messages=before,
        reply=Message(role="assistant", content=text, tool_calls=content.calls, reasoning=content.thinking or None),
        finish=read_finish(_ending(raw), content.calls),
        results=tuple(
            (call, answer_result(call.name, answers[place].text, failed=answers[place].failed))
            for place, call in enumerate(content.calls)
            if place in answers
        ),
        usage=None if usage is None else read_usage(usage, f"{one.place}.usage"),
        seconds=0.0 if seconds is None else float(seconds),
        number=one.number,
        strata={"remark": one.remark} if one.remark else {},
    )
