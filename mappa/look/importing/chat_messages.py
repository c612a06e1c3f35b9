"""Reads logs of messages as in OpenAI's chat API, one conversation per line.

    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "name": "solver", "content": "4"}]}

A message of an assistant is an action, and so is every message with the name of an agent, whatever its role. Beside the
API's keys a message may have `reasoning` or `reasoning_content`, `model`, `finish_reason`, `usage` (as in the API) and
`seconds`; a tool's answer may have `status: error` or `is_error`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from mappa.look.importing.documents import decode_embedded
from mappa.look.importing.labels import read_logged_labels
from mappa.look.importing.log_mapping import (
    LogFormatError,
    LoggedAction,
    LoggedTrajectory,
    LogMapping,
    lookup,
    read_outcome,
    read_task,
)
from mappa_core import Message, ToolCall, ToolResult, Usage
from mappa_core.coach import find_error_text
from mappa_core.engine import Finish
from mappa_core.safe_json import parse_untrusted_json

MessageRole = Literal["system", "user", "assistant", "tool"]
_ROLES: Mapping[str, MessageRole] = {
    **{role: role for role in get_args(MessageRole)},
    "developer": "system",
    "function": "tool",
    "human": "user",
    "ai": "assistant",
}
NO_ACTION = "mappa.no_action"
"""A key that a reader of another format adds to a message: why it is no action."""
_MESSAGE_KEYS = {
    "role", "content", "name", "tool_name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "model",
    "finish_reason", "usage", "seconds", "status", "is_error", NO_ACTION,
}  # fmt: skip
_REMARK = re.compile(r"(?P<agent>.+?) \((?P<remark>.+)\)")
"""A name with a remark, as in `Orchestrator (thought)`."""
SYSTEM, ANSWER, UNNAMED = "system prompts", "answers of tools", "messages of a user"
"""Why messages are no actions."""
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
    """A message, the object that it was read from, and the object's place in the log. It is an action of `agent`, or
    none because of `why`; `remark` is what the log adds to the agent's name."""

    message: Message
    raw: Mapping[str, Any]
    place: str
    agent: str | None = None
    why: str = ""
    remark: str = ""


def read_conversation(line: Mapping[str, Any], mapping: LogMapping, *, needs_action: bool = True) -> LoggedTrajectory:
    """Read the trajectory of a conversation.

    Args:
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
    said = [_read_message(one, f"{mapping.messages}.{place}", mapping) for place, one in enumerate(raw)]
    answers = _tool_answers(said)
    before = tuple(one.message for one in said)
    acts = tuple(
        replace(_read_action(one, one.agent, before[:number], answers.get(number, {})), number=number)
        for number, one in enumerate(said)
        if one.agent is not None
    )
    if not acts and needs_action:
        raise LogFormatError(
            f"{mapping.messages}: no message is an action: none is of an assistant, and none carries the name of an "
            "agent (name the key of it with --agent-from)"
        )
    question = next((one.message.content for one in said if one.message.role == "user"), None)
    return LoggedTrajectory(
        task=read_task(line, mapping, prompt=question),
        acts=acts,
        outcome=read_outcome(line, mapping.outcomes),
        seconds=sum(act.seconds for act in acts),
        labels=read_logged_labels(
            line, mapping, messages=len(said), agents={act.number: act.agent for act in acts if act.number is not None}
        ),
        entries=len(said),
        left_out=Counter(one.why for one in said if one.agent is None),
        unread=_unread_keys(said, mapping),
    )


def _unread_keys(said: Sequence[_LoggedMessage], mapping: LogMapping) -> tuple[str, ...]:
    named = (key.partition(".")[0] for key in (mapping.agent_from, mapping.text) if key is not None)
    read = {*_MESSAGE_KEYS, *named}
    keys = (key for one in said for key, value in one.raw.items() if key not in read and value not in (None, "", []))
    acted = (one for one in said if one.agent is not None)
    endings = (end for one in acted for end in name_unknown_finish(one.raw.get("finish_reason"), "finish_reason"))
    return tuple(f"{mapping.messages}.{key}" for key in dict.fromkeys((*keys, *endings)))


def read_text(content: Any, place: str) -> str:
    """Read the text of a message's content: text, null, or a list of parts. A part without text becomes `[type]`."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise LogFormatError(f"{place}: neither text, null nor a list of parts")
    parts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(kind, str) or (text is not None and not isinstance(text, str)):
            raise LogFormatError(f"{place}.{number}: not a part of a message: it has no type")
        parts.append(f"[{kind}]" if text is None else text)
    return "\n".join(parts)


def read_usage(raw: Mapping[str, Any], place: str) -> Usage:
    """Read the usage of an action's call; a missing count is unknown."""
    names = ("prompt_tokens", "completion_tokens")
    return Usage(calls=1, **{name: read_token_count(raw.get(name), f"{place}.{name}") for name in names})


def read_token_count(value: Any, place: str) -> int | None:
    """Read a number of tokens; a table writes whole numbers as 12.0 where some are missing."""
    if value is None:
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


def _read_message(raw: Any, place: str, mapping: LogMapping) -> _LoggedMessage:
    if not isinstance(raw, Mapping):
        raise LogFormatError(f"{place}: not a message: {raw!r}")
    if raw.get("function_call") is not None:
        raise LogFormatError(f"{place}.function_call: the API's old form; write it as a list of tool_calls")
    role = _read_role(raw, place, mapping)
    name, remark = _read_name(raw, place, mapping)
    message = Message(
        role=role,
        content=read_text(lookup(raw, mapping.text), f"{place}.{mapping.text}"),
        name=name,
        tool_calls=tuple(_read_calls(raw.get("tool_calls"), f"{place}.tool_calls")),
        tool_call_id=_optional_text(raw, "tool_call_id", place),
        reasoning=_optional_text(raw, "reasoning", place) or _optional_text(raw, "reasoning_content", place),
    )
    agent, why = (None, str(raw[NO_ACTION])) if NO_ACTION in raw else _find_agent(message, mapping)
    return _LoggedMessage(message=message, raw=raw, place=place, agent=agent, why=why, remark=remark)


def _read_role(raw: Mapping[str, Any], place: str, mapping: LogMapping) -> MessageRole:
    """Read the role of a message. A role that the API lacks is the name of an agent where `agent_from` says so."""
    role = raw.get("role")
    if isinstance(role, str) and role in _ROLES:
        return _ROLES[role]
    named = None if mapping.agent_from is None else lookup(raw, mapping.agent_from)
    if isinstance(named, str) and named.strip():
        return "assistant"
    raise LogFormatError(
        f"{place}.role: {role!r} is none of {', '.join(_ROLES)}; if it is the name of an agent, say --agent-from role"
    )


def _read_name(raw: Mapping[str, Any], place: str, mapping: LogMapping) -> tuple[str | None, str]:
    """Read who speaks, and the remark on it. An empty name is none."""
    if mapping.agent_from is None:
        return _name_or_none(_optional_text(raw, "name", place)), ""
    named = lookup(raw, mapping.agent_from)
    if named is not None and not isinstance(named, str):
        raise LogFormatError(f"{place}.{mapping.agent_from}: not a name: {named!r}")
    if mapping.agent_from == "role" and named in get_args(MessageRole):
        return _name_or_none(_optional_text(raw, "name", place)), ""
    parts = _REMARK.fullmatch(named or "")
    return (_name_or_none(parts["agent"]), parts["remark"]) if parts else (_name_or_none(named), "")


def _name_or_none(name: str | None) -> str | None:
    return name if name and name.strip() else None


def _find_agent(message: Message, mapping: LogMapping) -> tuple[str | None, str]:
    """The agent whose action a message is, or why it is none."""
    name = message.name
    if name in mapping.agents:
        return name, ""
    if message.role == "system":
        return None, SYSTEM
    if message.role == "tool":
        return None, ANSWER
    if name is None:
        return (mapping.default_agent, "") if message.role == "assistant" else (None, UNNAMED)
    return (None, f"messages of {name}, a person") if name.casefold() in mapping.persons else (name, "")


def _optional_text(raw: Mapping[str, Any], key: str, place: str) -> str | None:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise LogFormatError(f"{place}.{key}: not text: {value!r}")
    return value


def _read_calls(raw: Any, place: str) -> list[ToolCall]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise LogFormatError(f"{place}: not a list")
    calls = []
    for number, one in enumerate(raw):
        function = one.get("function") if isinstance(one, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise LogFormatError(f"{place}.{number}.function: has no name")
        calls.append(
            make_tool_call(function["name"], function.get("arguments"), _optional_text(one, "id", f"{place}.{number}"))
        )
    return calls


def make_tool_call(name: str, arguments: Any, identity: str | None) -> ToolCall:
    """Build a tool call. In the API its arguments are text written by a model, so they may not be valid JSON."""
    if isinstance(arguments, str):
        try:
            arguments = parse_untrusted_json(arguments) if arguments.strip() else {}
        except ValueError:
            return ToolCall(name=name, id=identity, error="its arguments are not JSON")
    if arguments is not None and not isinstance(arguments, Mapping):
        return ToolCall(name=name, id=identity, error="its arguments are not an object")
    return ToolCall(name=name, arguments=dict(arguments or {}), id=identity)


def _tool_answers(said: Sequence[_LoggedMessage]) -> dict[int, dict[int, _LoggedMessage]]:
    """The answers of tools by the number of the message that called them and the place of the call in it. An id may be
    used again: an answer belongs to the nearest message that has a call with its id, and the first answer to a call
    counts. Answers without an id belong to the calls without one of the last message with calls, in order."""
    answers: dict[int, dict[int, _LoggedMessage]] = {}
    waiting: dict[str | None, list[tuple[int, int]]] = {}
    for number, one in enumerate(said):
        if calls := one.message.tool_calls:
            waiting[None] = []
            waiting.update((call.id, []) for call in calls)
            for place, call in enumerate(calls):
                waiting[call.id].append((number, place))
        if one.message.role == "tool" and (called := waiting.get(one.message.tool_call_id)):
            caller, place = called.pop(0)
            answers.setdefault(caller, {})[place] = one
    return answers


def _read_action(
    one: _LoggedMessage, agent: str, before: tuple[Message, ...], answers: Mapping[int, _LoggedMessage]
) -> LoggedAction:
    message, raw = one.message, one.raw
    usage, seconds = raw.get("usage"), raw.get("seconds")
    if usage is not None and not isinstance(usage, Mapping):
        raise LogFormatError(f"{one.place}.usage: not an object")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0):
        raise LogFormatError(f"{one.place}.seconds: no number of seconds: {seconds!r}")
    return LoggedAction(
        agent=agent,
        model=_optional_text(raw, "model", one.place),
        messages=before,
        reply=Message(
            role="assistant", content=message.content, tool_calls=message.tool_calls, reasoning=message.reasoning
        ),
        finish=read_finish(raw.get("finish_reason"), message.tool_calls),
        results=tuple(
            (call, _read_result(call, answers[place]))
            for place, call in enumerate(message.tool_calls)
            if place in answers
        ),
        usage=None if usage is None else read_usage(usage, f"{one.place}.usage"),
        seconds=0.0 if seconds is None else float(seconds),
        strata={"remark": one.remark} if one.remark else {},
    )


def _read_result(call: ToolCall, answer: _LoggedMessage) -> ToolResult:
    failed = answer.raw.get("status") == "error" or answer.raw.get("is_error") is True
    return answer_result(call.name, answer.message.content, failed=failed)
