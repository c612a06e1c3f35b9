"""How published models write calls of tools in a reply: one parser per form.

A parser splits a reply into (text without calls, calls in order), given the JSON schemas of tools by name. A call that
cannot be parsed has an `error`: it is the agent's, and told to it. The parsers of transformers (`parse_response`) raise
for a whole reply instead, and bound neither depth nor size of what an agent writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mappa_core import ToolCall
from mappa_core.engine import split_calls
from mappa_core.safe_json import parse_untrusted_json

Schemas = Mapping[str, Mapping[str, Any]]
Calls = tuple[ToolCall, ...]
CallFormat = Callable[[str, Schemas], tuple[str, Calls]]

_CUT_OFF = "the call is cut off: {} is missing"


def read_hermes(text: str, schemas: Schemas) -> tuple[str, Calls]:
    """JSON in tags (Hermes, Qwen 2.5 and 3): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""
    return split_calls(text)


_XML_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_PAIR_CALL = re.compile(r"\s*([^<\s]+)\s*(.*)", re.DOTALL)
# A key without tags: one of any text takes cubic time where the tags repeat and none is closed.
_PAIR = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def read_functions(text: str, schemas: Schemas) -> tuple[str, Calls]:
    """Tags per parameter (Qwen3-Coder, Qwen 3.5, Nemotron 3): `<function=NAME><parameter=KEY>…</parameter>…`."""
    return _read_tags(text, schemas, _FUNCTION, _PARAMETER, "<tool_call><function=NAME>…</function></tool_call>")


def read_pairs(text: str, schemas: Schemas) -> tuple[str, Calls]:
    """Tags of keys and values (GLM 4.5): `<tool_call>NAME<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`."""
    return _read_tags(text, schemas, _PAIR_CALL, _PAIR, "<tool_call>NAME<arg_key>…</arg_key>…</tool_call>")


def _read_tags(
    text: str, schemas: Schemas, whole: re.Pattern[str], part: re.Pattern[str], form: str
) -> tuple[str, Calls]:
    calls = []
    for found in _XML_CALL.finditer(text):
        body = whole.fullmatch(found[1])
        if not found[2]:
            calls.append(ToolCall(name="", error=_CUT_OFF.format("</tool_call>")))
        elif body is None or part.sub("", body[2]).strip():
            calls.append(ToolCall(name="" if body is None else body[1], error=f"the call is not of the form {form}"))
        else:
            known = schemas.get(body[1], {}).get("properties")
            types = known if isinstance(known, Mapping) else {}
            values = {key: _typed(value, types.get(key)) for key, value in part.findall(body[2])}
            calls.append(ToolCall(name=body[1], arguments=values))
    return (_XML_CALL.sub("", text).rstrip() if calls else text), tuple(calls)


def _typed(value: str, schema: Any) -> Any:
    """The value of a text between tags: JSON, unless the tool's schema takes a text."""
    declared = schema.get("type") if isinstance(schema, Mapping) else None
    if declared == "string" or (isinstance(declared, list) and "string" in declared):
        return value
    try:
        return parse_untrusted_json(value)
    except ValueError:
        return value


def read_list(
    text: str, schemas: Schemas, *, tags: tuple[str, str], keys: tuple[str, str] = ("name", "arguments")
) -> tuple[str, Calls]:
    """A JSON list in tags: `<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>`."""
    opening, closing = map(re.escape, tags)
    tagged = re.compile(f"{opening}(.*?)({closing}|\\Z)", re.DOTALL)
    calls: list[ToolCall] = []
    for found in tagged.finditer(text):
        if found[2]:
            calls += _listed(found[1], keys)
        else:
            calls.append(ToolCall(name="", error=_CUT_OFF.format(tags[1])))
    return (tagged.sub("", text).rstrip() if calls else text), tuple(calls)


_MISTRAL = "[TOOL_CALLS]"


def read_mistral(text: str, schemas: Schemas) -> tuple[str, Calls]:
    """Mistral's: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, since version 11 `[TOOL_CALLS]NAME[ARGS]{…}`."""
    said, *bodies = text.split(_MISTRAL)
    calls: list[ToolCall] = []
    for body in bodies:
        head, written, arguments = body.partition("[ARGS]")
        if written:
            name, _, identity = head.partition("[CALL_ID]")
            calls.append(_called(name.strip(), arguments, identity=identity.strip() or None))
        else:
            calls += _listed(body, ("name", "arguments"))
    return (said.rstrip() if calls else text), tuple(calls)


_LLAMA_TAG = "<|python_tag|>"
_LLAMA = re.compile(r'\s*\{\s*"(type|name)"\s*:.*"parameters"\s*:', re.DOTALL)


def read_llama(text: str, schemas: Schemas) -> tuple[str, Calls]:
    """Llama's: the reply is `{"name": …, "parameters": {…}}`, or comes after `<|python_tag|>`. One call a reply, which
    is all that its template takes back."""
    said, tagged, body = text.partition(_LLAMA_TAG)
    if not tagged:
        said, body = "", text
    # What has no mark of its own is a call only where there is a tool: an agent without any may answer in JSON.
    if not tagged and (not schemas or _LLAMA.match(body) is None):
        return text, ()
    calls = _listed(body, ("name", "parameters"))
    if len(calls) > 1:
        calls = [ToolCall(name="", error=f"{len(calls)} calls in one reply: make one, and wait for its result")]
    return said.rstrip(), tuple(calls)


_MESSAGE_END = re.compile(r"<\|end\|>|<\|call\|>|<\|return\|>")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def read_channels(text: str, schemas: Schemas) -> tuple[str, str | None, Calls]:
    """Split a reply of messages in channels (harmony, of gpt-oss) into (visible text, reasoning or None, calls)."""
    if "<|message|>" not in text and "<|channel|>" not in text:
        return text, None, ()
    said, thought, calls = [], [], []
    for message in text.split("<|start|>"):
        header, written, rest = message.partition("<|message|>")
        body = _MESSAGE_END.split(rest, maxsplit=1)[0]
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None and not written:
            calls.append(ToolCall(name=recipient[1], error=_CUT_OFF.format("<|message|>")))
        elif recipient is not None:
            calls.append(_called(recipient[1], body))
        elif channel is not None and channel[1] == "analysis":
            thought.append(body)
        else:
            said.append(body)
    return "\n".join(filter(None, said)), "\n".join(thought) if thought else None, tuple(calls)


FORMATS: tuple[CallFormat, ...] = (
    read_hermes,
    read_functions,
    read_pairs,
    partial(read_list, tags=("<TOOLCALL>", "</TOOLCALL>")),
    partial(read_list, tags=("<|tool_call|>", "<|/tool_call|>")),
    partial(read_list, tags=("<|START_ACTION|>", "<|END_ACTION|>"), keys=("tool_name", "parameters")),
    read_mistral,
    read_llama,
)


def _listed(body: str, keys: tuple[str, str]) -> list[ToolCall]:
    """The calls of a JSON list, or of one object."""
    name, arguments = keys
    try:
        value = parse_untrusted_json(body)
    except ValueError as error:
        return [ToolCall(name="", error=f"the call is not valid: {error}")]
    entries = value if isinstance(value, list) else [value]
    form = f'the call is not of the form {{"{name}": …, "{arguments}": {{…}}}}'
    calls = [ToolCall(name="", error=form)] if not entries else []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get(name), str):
            calls.append(ToolCall(name="", error=form))
        elif not isinstance(entry.get(arguments), dict):
            calls.append(ToolCall(name=entry[name], error=f'the call\'s "{arguments}" are not a JSON object'))
        else:
            identity = entry.get("id")
            calls.append(
                ToolCall(
                    name=entry[name],
                    arguments=entry[arguments],
                    id=identity if isinstance(identity, str) and identity else None,
                )
            )
    return calls


def _called(name: str, arguments: str, *, identity: str | None = None) -> ToolCall:
    """The call of a tool whose arguments are JSON text."""
    try:
        value = parse_untrusted_json(arguments)
    except ValueError as error:
        return ToolCall(name=name, id=identity, error=f"the call is not valid: {error}")
    if not isinstance(value, dict):
        return ToolCall(name=name, id=identity, error="the call's arguments are not a JSON object")
    return ToolCall(name=name, arguments=value, id=identity)
