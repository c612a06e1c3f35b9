"""Message logs in the form of OpenAI's chat API: one conversation a line, every message of an assistant an action.

    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "name": "solver", "content": "4"}]}

Beside what the API has, a message may say `reasoning` or `reasoning_content`, `model`, `finish_reason`, `usage` (as the
API gives it) and `seconds`; an answer of a tool may say `status: error` or `is_error`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mappa_core.records import Finish, Message, ToolCall, ToolResult, Usage
from mappa_core.studies.importing.mapping import Act, BadLog, Log, Mapped, found, outcome_of, task_of

Role = Literal["system", "user", "assistant", "tool"]
_ROLES: Mapping[str, Role] = {**{role: role for role in get_args(Role)}, "developer": "system", "function": "tool"}
FINISHES: Mapping[str, Finish] = {
    "stop": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool",
    "tool_call": "tool",
    "tool_use": "tool",
    "tool": "tool",
    "content_filter": "abort",
    "abort": "abort",
    "error": "abort",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """One message, read, with the object that it was read from and where that stands."""

    message: Message
    raw: Mapping[str, Any]
    place: str


def log_of_line(line: Mapping[str, Any], mapped: Mapped) -> Log:
    """The trajectory of a conversation. Raises BadLog, naming the key, for what makes no sense."""
    raw = found(line, mapped.messages)
    if not isinstance(raw, list) or not raw:
        there = ", ".join(sorted(line)) or "no keys"
        raise BadLog(f"{mapped.messages}: no list of messages; here are {there}: name the right key with --messages")
    said = [_said(one, f"{mapped.messages}.{place}") for place, one in enumerate(raw)]
    answers = _answers(said)
    before = tuple(one.message for one in said)
    acts = tuple(
        _act(one, before[:place], answers, mapped) for place, one in enumerate(said) if _acts(one.message, mapped)
    )
    if not acts:
        raise BadLog(
            f"{mapped.messages}: no message is an action: none is of an assistant, and none carries a name that "
            "--agent declares"
        )
    asked = next((one.message.content for one in said if one.message.role == "user"), None)
    return Log(
        task=task_of(line, mapped, prompt=asked),
        acts=acts,
        outcome=outcome_of(line, mapped.outcomes),
        seconds=sum(act.seconds for act in acts),
    )


def text_of(content: Any, place: str) -> str:
    """The text of a message's content: text, nothing, or parts. A part that is no text is a word for its kind."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadLog(f"{place}: neither text, null nor a list of parts")
    parts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(kind, str) or (text is not None and not isinstance(text, str)):
            raise BadLog(f"{place}.{number}: not a part of a message: it has no type")
        parts.append(f"[{kind}]" if text is None else text)
    return "\n".join(parts)


def usage_of(raw: Mapping[str, Any], place: str) -> Usage:
    """What the call of an action took; a count that is not there is not known."""
    counts: dict[str, int | None] = {}
    for name in ("prompt_tokens", "completion_tokens"):
        value = raw.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise BadLog(f"{place}.{name}: no number of tokens: {value!r}")
        counts[name] = value
    return Usage(calls=1, **counts)


def finish_of(value: Any, calls: Sequence[ToolCall], place: str) -> Finish:
    """Why an action ended; where the log does not say, it called a tool or it stopped by itself."""
    if value is None:
        return "tool" if calls else "stop"
    if value not in FINISHES:
        raise BadLog(f"{place}: {value!r} is none of {', '.join(FINISHES)}")
    return FINISHES[value]


def _acts(message: Message, mapped: Mapped) -> bool:
    return message.role == "assistant" or message.name in mapped.agents


def _said(raw: Any, place: str) -> _Said:
    if not isinstance(raw, Mapping):
        raise BadLog(f"{place}: not a message: {raw!r}")
    role = raw.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadLog(f"{place}.role: {role!r} is none of {', '.join(_ROLES)}")
    if raw.get("function_call") is not None:
        raise BadLog(f"{place}.function_call: the API's old form; write it as a list of tool_calls")
    message = Message(
        role=_ROLES[role],
        content=text_of(raw.get("content"), f"{place}.content"),
        name=_word(raw, "name", place),
        tool_calls=tuple(_calls(raw.get("tool_calls"), f"{place}.tool_calls")),
        tool_call_id=_word(raw, "tool_call_id", place),
        reasoning=_word(raw, "reasoning", place) or _word(raw, "reasoning_content", place),
    )
    return _Said(message=message, raw=raw, place=place)


def _word(raw: Mapping[str, Any], key: str, place: str) -> str | None:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise BadLog(f"{place}.{key}: not text: {value!r}")
    return value


def _calls(raw: Any, place: str) -> list[ToolCall]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise BadLog(f"{place}: not a list")
    calls = []
    for number, one in enumerate(raw):
        function = one.get("function") if isinstance(one, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadLog(f"{place}.{number}.function: has no name")
        calls.append(called(function["name"], function.get("arguments"), _word(one, "id", f"{place}.{number}")))
    return calls


def called(name: str, arguments: Any, identity: str | None) -> ToolCall:
    """A call with its arguments, which the API writes as text of a model: it may be no JSON."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            return ToolCall(name=name, id=identity, error="its arguments are not JSON")
    if arguments is not None and not isinstance(arguments, Mapping):
        return ToolCall(name=name, id=identity, error="its arguments are not an object")
    return ToolCall(name=name, arguments=dict(arguments or {}), id=identity)


def _answers(said: Sequence[_Said]) -> dict[str, _Said]:
    """What tools answered, by the id of the call."""
    answers: dict[str, _Said] = {}
    for one in said:
        if one.message.role == "tool" and one.message.tool_call_id is not None:
            answers[one.message.tool_call_id] = one
    return answers


def _act(one: _Said, before: tuple[Message, ...], answers: Mapping[str, _Said], mapped: Mapped) -> Act:
    message, raw = one.message, one.raw
    usage, seconds = raw.get("usage"), raw.get("seconds")
    if usage is not None and not isinstance(usage, Mapping):
        raise BadLog(f"{one.place}.usage: not an object")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0):
        raise BadLog(f"{one.place}.seconds: no number of seconds: {seconds!r}")
    return Act(
        agent=message.name or mapped.unnamed,
        model=_word(raw, "model", one.place),
        messages=before,
        reply=Message(
            role="assistant", content=message.content, tool_calls=message.tool_calls, reasoning=message.reasoning
        ),
        finish=finish_of(raw.get("finish_reason"), message.tool_calls, f"{one.place}.finish_reason"),
        answered=tuple(
            (call, _result(call, answers[call.id]))
            for call in message.tool_calls
            if call.id is not None and call.id in answers
        ),
        usage=None if usage is None else usage_of(usage, f"{one.place}.usage"),
        seconds=0.0 if seconds is None else float(seconds),
    )


def _result(call: ToolCall, answer: _Said) -> ToolResult:
    failed = answer.raw.get("status") == "error" or answer.raw.get("is_error") is True
    return ToolResult(tool=call.name, status="error" if failed else "ok", stdout=answer.message.content)
