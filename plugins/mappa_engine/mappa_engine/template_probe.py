"""What a chat template can show, found by rendering short conversations: tools, calls, results, system messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mappa_engine.call_formats import FORMATS, CallFormat, read_channels

Entry = dict[str, Any]
Apply = Callable[[Sequence[Entry], Sequence[Entry] | None, bool], str | None]
"""Render (messages, tools, whether an answer is due); None where the template refuses them."""

_TOOL = "look_up"
_PURPOSE = "Looks a word up."
_ARGUMENTS = {"word": "42", "limit": 3}
_SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}}}
_QUESTION, _ANSWER, _RESULT, _BRIEF, _REASONS = "Which one?", "Answered.", "31415", "Be brief today.", "Counted twice."
_IDENTITY, _LONG_IDENTITY = "a1B2c3D4e", "call_a1B2c3D4e5F6g7H8"
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_TOOLS = [{"type": "function", "function": {"name": _TOOL, "description": _PURPOSE, "parameters": _SCHEMA}}]
_ASKED: list[Entry] = [{"role": "user", "content": _QUESTION}]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateProbe:
    """What a chat template can show."""

    renderings: tuple[str, ...]
    """What it rendered of the conversations that it takes."""
    tools: bool
    results: bool
    """Whether it shows the results of tools."""
    system: bool
    calls: CallFormat | None
    """Parser of calls as the template writes them; None if it writes none, or in a form that is not known here."""
    lone_calls: bool
    """Whether it shows a call that a user message answers, instead of the result of a tool."""
    channels: bool
    """Whether a reply is a sequence of messages in channels (harmony)."""
    short_ids: bool
    """Whether it takes ids of calls of nine letters and digits only (Mistral)."""
    reasoning_key: str
    """Key of a message under which it reads reasoning."""


def probe_template(apply: Apply, *, channels: bool) -> TemplateProbe:
    """Render with `apply` what shows what a template can. `channels`: its source writes channels."""
    briefed = apply([{"role": "system", "content": _BRIEF}, *_ASKED], None, True)
    offered = apply(_ASKED, _TOOLS, True)
    called = apply(_called(_IDENTITY), _TOOLS, False)
    told = apply(_told(_IDENTITY), _TOOLS, True)
    alone = apply([*_called(_IDENTITY), {"role": "user", "content": _RESULT}], _TOOLS, True)
    reasoned = {key: apply(_reasoned(key), None, False) for key in _REASONING_KEYS}
    shown = [key for key, text in reasoned.items() if text is not None and _REASONS in text]
    texts = (briefed, offered, called, told, apply(_called(_IDENTITY), None, True), *reasoned.values())
    return TemplateProbe(
        renderings=tuple(text for text in texts if text is not None),
        tools=offered is not None and _TOOL in offered,
        results=told is not None and _RESULT in told,
        system=briefed is not None and _BRIEF in briefed,
        calls=_find_format(offered, called, channels=channels),
        lone_calls=alone is not None and _TOOL in alone.partition(_QUESTION)[2] and _RESULT in alone,
        channels=channels,
        short_ids=told is not None and apply(_told(_LONG_IDENTITY), _TOOLS, True) is None,
        reasoning_key=shown[0] if shown else _REASONING_KEYS[0],
    )


def _reasoned(key: str) -> list[Entry]:
    return [*_ASKED, {"role": "assistant", "content": _ANSWER, key: _REASONS}]


def _called(identity: str) -> list[Entry]:
    function = {"name": _TOOL, "arguments": dict(_ARGUMENTS)}
    call = {"id": identity, "type": "function", "function": function}
    return [*_ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}]


def _told(identity: str) -> list[Entry]:
    return [*_called(identity), {"role": "tool", "content": _RESULT, "name": _TOOL, "tool_call_id": identity}]


def _find_format(offered: str | None, called: str | None, *, channels: bool) -> CallFormat | None:
    """Find the parser that reads the template's own writing of a call back."""
    if called is None:
        return None
    formats = [_read_calls_of_channels] if channels else FORMATS
    for reply in _replies(offered, called):
        for read in formats:
            _, calls = read(reply, {_TOOL: _SCHEMA})
            if [(call.name, call.arguments, call.error) for call in calls] == [(_TOOL, _ARGUMENTS, None)]:
                return read
    return None


def _replies(offered: str | None, called: str) -> list[str]:
    """Guesses at which part of a conversation is the reply that calls: after the prompt, or after the question; with
    and without the token that ends it."""
    starts = [called.rpartition(_QUESTION)[2]]
    if offered is not None and called.startswith(offered):
        starts.insert(0, called[len(offered) :])
    ends = (r"\s*\Z", r"\s*(<[^<>]*>|\[[^][]*\])\s*\Z")
    return [re.sub(end, "", start, count=1) for start in starts for end in ends]


def _read_calls_of_channels(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> tuple[str, Any]:
    said, _, calls = read_channels(text, schemas)
    return said, calls
