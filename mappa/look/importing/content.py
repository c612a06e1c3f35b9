"""Reads what a message holds into one form, of any provider and library: texts, thoughts, calls of tools, their
answers, and notes of what was left out.

Content is a text, or a list of parts. Parts of OpenAI (chat completions and the items of responses), Anthropic, the AI
SDK, LangChain, inspect_ai and OpenTelemetry name their `type`; those of Gemini and Bedrock are the value of a key.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from mappa.look.importing.log_mapping import LogFormatError
from mappa_core import ToolCall
from mappa_core.safe_json import parse_own_json

UNNAMED_TOOL = "unnamed"
"""The tool of a call that a model broke off before its name."""
RUN_CODE = "code_execution"
"""The tool of code that is run without a call of one, as Gemini names it."""
RAW_ARGUMENTS = "arguments"
"""The argument that holds what a call has in place of an object of arguments."""
ENCRYPTED = "pieces of encrypted reasoning"
ENCRYPTED_RESULTS = "encrypted texts in results"
CITATIONS = "citations"
ODD_NUMBERS = "numbers in arguments that are not finite, kept as texts"
_MEDIA = {"image": "images", "audio": "pieces of audio", "video": "videos"}
_FILES = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a tool answered to the call with the id `call`; without one, to the next call without an id, of `tool` if it
    is named."""

    text: str
    call: str | None = None
    tool: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a message holds. `notes` count, by kind, what is not in it or not as it was."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[Answer, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_written(self) -> bool:
        """Whether somebody wrote something, beside answers of tools."""
        return bool(self.text or self.thinking or self.calls)


def join_content(parts: Iterable[Content]) -> Content:
    """The parts in order, their texts in lines of their own."""
    parts, notes = tuple(parts), Counter[str]()
    for part in parts:
        notes.update(part.notes)
    return Content(
        text="\n".join(part.text for part in parts if part.text),
        thinking="\n".join(part.thinking for part in parts if part.thinking),
        calls=tuple(call for part in parts for call in part.calls),
        answers=tuple(answer for part in parts for answer in part.answers),
        notes=dict(notes),
    )


def read_content(raw: Any, place: str) -> Content:
    """Read a text, null, a part, or a list of parts. Raises LogFormatError, which names `place`."""
    if raw is None:
        return Content()
    if isinstance(raw, str):
        return Content(text=raw)
    if isinstance(raw, Mapping):
        return read_part(raw, place)
    if not isinstance(raw, list):
        raise LogFormatError(f"{place}: neither text, null nor a list of parts")
    return join_content(read_part(one, f"{place}.{number}") for number, one in enumerate(raw))


def read_part(raw: Any, place: str) -> Content:
    """Read a part. Of one whose type is not known the text is read; without one its type stands in its place, and it is
    noted. Raises LogFormatError for what is no part."""
    if isinstance(raw, str):
        return Content(text=raw)
    if not isinstance(raw, Mapping):
        raise LogFormatError(f"{place}: not a part of a message: it has no type")
    if isinstance(raw.get("message_content"), Mapping):  # OpenInference, which puts the call of a part beside it
        return read_part({**raw, **raw["message_content"], "message_content": None}, place)
    kind = raw.get("type")
    return _read_typed(_snake(kind), raw, place) if isinstance(kind, str) else _read_keyed(raw, place)


def read_call(raw: Any, place: str) -> Content:
    """Read a call of a tool, and its answer if it has one. Raises LogFormatError without name and arguments."""
    outer = raw if isinstance(raw, Mapping) else {}
    inner = next((outer[key] for key in _INSIDE_CALLS if isinstance(outer.get(key), Mapping)), outer)
    if isinstance(inner.get("function"), Mapping):  # OpenInference
        outer, inner = inner, inner["function"]
    name = _first(inner, "name", "function_name", "tool_name", "toolName", "function")
    arguments = _first(inner, "arguments", "args", "input")
    if not isinstance(name, str) and arguments is None and "name" not in inner:
        raise LogFormatError(f"{place}.function: has no name")
    if isinstance(arguments, str) and ("custom" in outer or outer.get("type") == "custom_tool_call"):
        arguments = {"input": arguments}  # such a tool takes a text, and no object
    made = make_call(name if isinstance(name, str) and name else UNNAMED_TOOL, arguments, _identity({**inner, **outer}))
    (call,) = made.calls
    if "result" in outer:  # a tool of the provider, in inspect_ai
        is_answered = outer["result"] is not None or says_error(outer.get("error"))
        return join_content([made, _read_answer(outer["result"], outer, call.id, call.name)]) if is_answered else made
    why = _first(outer, "parse_error", *(("error",) if outer.get("type") == "invalid_tool_call" else ()))
    if call.error is None and isinstance(why, str) and says_error(why):
        return replace(made, calls=(replace(call, error=why),))
    return made


def make_call(name: str, arguments: Any, identity: str | None) -> Content:
    """A call of a tool. A model may have written its arguments as text, so they may be no JSON, or no object: then they
    are kept as they are, and the call could not be run."""
    error = None
    if isinstance(arguments, str):
        try:
            arguments = parse_own_json(arguments) if arguments.strip() else {}
        except ValueError:
            error = "its arguments are not JSON"
    if error is None and arguments is not None and not isinstance(arguments, Mapping):
        error = "its arguments are not an object"
    if error is not None:
        return Content(calls=(ToolCall(name=name, arguments={RAW_ARGUMENTS: arguments}, id=identity, error=error),))
    known, odd = _name_odd_numbers(arguments or {})
    return Content(calls=(ToolCall(name=name, arguments=known, id=identity),), notes={ODD_NUMBERS: odd} if odd else {})


def says_error(value: Any) -> bool:
    """Whether the error that stands beside an answer is one: many write an empty text or object, `false` or the name of
    nothing where there is none."""
    return bool(value) and not (isinstance(value, str) and value.strip().casefold() in ("", "none", "null"))


def read_answer(raw: Any) -> tuple[str, Mapping[str, int], bool]:
    """The text of what a tool answered, its notes, and whether it says that it failed; of what is neither a text nor
    parts the JSON."""
    if isinstance(raw, str) or raw is None:
        return raw or "", {}, False
    if isinstance(raw, Mapping) and set(raw) == {"type", "value"}:  # AI SDK
        text, notes, failed = read_answer(raw["value"])
        return text, notes, failed or str(raw["type"]).startswith("error")
    parts = raw if isinstance(raw, list) else [raw]
    if parts and all(map(_is_part, parts)):
        content = read_content(parts, "")
        return content.text, content.notes, False
    clean, notes = _without_ciphers(raw)
    failed = isinstance(raw, Mapping) and (
        raw.get("isError") is True
        or str(raw.get("type", "")).endswith("_error")
        or raw.get("return_code") not in (0, None)
    )
    return json.dumps(clean, ensure_ascii=False), notes, failed


# --- parts that name their type ---------------------------------------------------------------------------------------


def _read_typed(kind: str, part: Mapping[str, Any], place: str) -> Content:
    if reader := _READERS.get(kind):
        return reader(kind, part, place)
    if kind.endswith(_RESULT_ENDINGS):
        return _read_result(kind, part, place)
    if kind.endswith("_call"):
        return _read_hosted_call(kind, part, place)
    return _read_medium(kind, part, place) if _medium(kind, part) else _read_other(kind, part, place)


def _read_text(kind: str, part: Mapping[str, Any], place: str) -> Content:
    text = _first(part, "text", "content", "refusal")
    if text is None and kind == "text_plain":  # a file, which LangChain shows by its address or its bytes
        return _read_medium("file", part, place)
    if text is not None and not isinstance(text, str):
        raise LogFormatError(f"{place}: not a part of a message: its text is {type(text).__name__}")
    cited = len(part.get("citations") or part.get("annotations") or ())
    return Content(text=text or "", notes={CITATIONS: cited} if cited else {})


def _read_thought(kind: str, part: Mapping[str, Any], place: str) -> Content:
    """A thought, or its summary. A cipher is no thought: it is noted."""
    plain = _first(part, "thinking", "reasoning", "content", "text")
    hidden = kind.startswith("redacted") or part.get("redacted") is True
    cipher = plain if hidden else None
    cipher = cipher or part.get("encrypted_content") or (part.get("data") if hidden or plain is None else None)
    told = [_plain_text(one) for one in (None if hidden else plain, part.get("summary")) if one]
    # Anthropic leaves out a thought by sending its signature alone.
    if cipher or (not any(told) and part.get("signature")):
        return Content(thinking="\n".join(dict.fromkeys(told)), notes={ENCRYPTED: 1})
    return Content(thinking="\n".join(dict.fromkeys(told)))


def _read_typed_call(kind: str, part: Mapping[str, Any], place: str) -> Content:
    return read_call(part, place)


def _read_hosted_call(kind: str, part: Mapping[str, Any], place: str) -> Content:
    """A call of a tool of OpenAI's own, such as `web_search_call`: beside its id and its answer all is arguments."""
    if "name" in part:
        return _with_output(read_call(part, place), part)
    beside = {"type", "id", "call_id", "status", *_OUTPUTS}
    known = {key: value for key, value in part.items() if key not in beside and value not in (None, [], {})}
    return _with_output(make_call(kind.removesuffix("_call"), known, _identity(part)), part)


def _with_output(made: Content, part: Mapping[str, Any]) -> Content:
    (call,) = made.calls
    output = _first(part, *(key for key in _OUTPUTS if key != "error"))
    if output is None and not says_error(part.get("error")):
        return made
    if call.name == "image_generation":
        return join_content([made, Content(notes={_MEDIA["image"]: 1})])
    return join_content([made, _read_answer(output, part, call.id, call.name)])


def _read_result(kind: str, part: Mapping[str, Any], place: str) -> Content:
    value = _first(
        part, "content", "response", "result", "output", "server_tool_call_response", "code_execution_result"
    )
    tool = _first(part, "name", "toolName", "tool_name")
    return _read_answer(value, part, _identity(part, answered=True), tool if isinstance(tool, str) else None)


def _read_answer(value: Any, part: Mapping[str, Any], call: str | None, tool: str | None) -> Content:
    text, notes, failed = read_answer(value)
    error = part.get("error")
    if says_error(error):
        failed, told = True, _plain_text(error)
        text = text if told in text else "\n".join(filter(None, (text, told)))
    failed = (
        failed
        or part.get("is_error") is True
        or part.get("isError") is True
        or str(part.get("status")).casefold() in ("error", "failed")
    )
    return Content(answers=(Answer(text=text, call=call, tool=tool, failed=failed),), notes=notes)


def _read_medium(kind: str, part: Mapping[str, Any], place: str) -> Content:
    """A picture, a piece of audio or a file: its text if it has one, else its type, and a note."""
    source = part.get("source") or part.get("file")
    source = source if isinstance(source, Mapping) else {}
    if source.get("type") == "text" and isinstance(source.get("data"), str):
        return Content(text=source["data"])
    if source.get("type") == "content":
        return read_content(source.get("content"), f"{place}.source.content")
    text = part.get("text", part.get("transcript"))
    if isinstance(text, str) and text:
        return Content(text=text)
    return Content(text=f"[{part.get('type', kind)}]", notes={_medium(kind, part): 1})


def _medium(kind: str, part: Mapping[str, Any]) -> str:
    """What a part is a picture, a piece of audio or a file by, as its note names it; empty if it is none."""
    modality = str(part.get("modality") or part.get("mime_type") or part.get("mimeType") or kind)
    if named := next((note for word, note in _MEDIA.items() if word in modality), ""):
        return named
    return _MEDIA["image"] if "image_url" in part else _FILES if kind in _FILE_KINDS else ""


def _read_found(kind: str, part: Mapping[str, Any], place: str) -> Content:
    """A search result that a message holds: its title, its source and its texts."""
    head = [str(part[key]) for key in ("title", "source") if part.get(key)]
    return join_content([Content(text="\n".join(head)), read_content(part.get("content"), f"{place}.content")])


def _read_nested(kind: str, part: Mapping[str, Any], place: str) -> Content:
    return read_content(part.get("content"), f"{place}.content")


def _read_server_call(kind: str, part: Mapping[str, Any], place: str) -> Content:
    """A call of a provider's tool in the GenAI conventions, whose arguments stand in an object with a type."""
    inner = part.get("server_tool_call")
    if not isinstance(inner, Mapping):
        return read_call(part, place)
    known = {key: value for key, value in inner.items() if key != "type"}
    return make_call(str(part.get("name") or inner.get("type") or UNNAMED_TOOL), known, _identity(part))


def _read_resource(kind: str, part: Mapping[str, Any], place: str) -> Content:
    inner = part.get("resource")
    text = inner.get("text") if isinstance(inner, Mapping) else None
    return Content(text=text) if isinstance(text, str) else _read_medium("file", part, place)


def _read_code(kind: str, part: Mapping[str, Any], place: str) -> Content:
    inner = part.get(kind)
    known = inner if isinstance(inner, Mapping) else {"code": inner, "language": part.get("language")}
    return _read_keyed_code(known, place)


def _read_other(kind: str, part: Mapping[str, Any], place: str) -> Content:
    text = part.get("text")
    if isinstance(text, str):
        return Content(text=text)
    if text is not None:
        raise LogFormatError(f"{place}: not a part of a message: it has no type")
    value = part.get("value")
    if kind == "non_standard" and isinstance(value, Mapping):  # LangChain keeps parts of a provider in it
        return read_part(value, f"{place}.value")
    return Content(text=f"[{part['type']}]", notes={f"parts of the type {part['type']}": 1})


_INSIDE_CALLS = ("tool_call", "function", "custom")
_RESULT_ENDINGS = ("_result", "_response", "_output", "_call_output")
_OUTPUTS = ("output", "outputs", "results", "result", "error")
_FILE_KINDS = ("file", "input_file", "document", "container_upload", "blob", "uri", "media", "file_data", "inline_data")
_READERS: Mapping[str, Callable[[str, Mapping[str, Any], str], Content]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "refusal", "text_plain"), _read_text),
    **dict.fromkeys(
        ("thinking", "reasoning", "redacted_thinking", "redacted_reasoning", "reasoning_text", "summary_text"),
        _read_thought,
    ),
    **dict.fromkeys(
        (
            "tool_use", "server_tool_use", "mcp_tool_use", "tool_call", "invalid_tool_call", "tool_call_chunk",
            "function_call", "function", "custom_tool_call",
        ),
        _read_typed_call,
    ),
    "server_tool_call": _read_server_call,
    "search_result": _read_found,
    **dict.fromkeys(("resource", "resource_link"), _read_resource),
    "message": _read_nested,
    "executable_code": _read_code,
}  # fmt: skip


# --- parts that are the value of a key --------------------------------------------------------------------------------


def _read_keyed(part: Mapping[str, Any], place: str) -> Content:
    """Read a part of Gemini or Bedrock."""
    known = {_snake(key): value for key, value in part.items() if value is not None}
    if isinstance(known.get("text"), str):
        return Content(thinking=known["text"]) if known.get("thought") is True else Content(text=known["text"])
    for key, read in _KEYED.items():
        if isinstance(known.get(key), Mapping):
            return read(known[key], place)
    if "json" in known:
        return Content(text=json.dumps(known["json"], ensure_ascii=False))
    if medium := next((key for key in known if key in (*_MEDIA, *_FILE_KINDS)), None):
        inner = known[medium] if isinstance(known[medium], Mapping) else {}
        return _read_medium(medium, {**inner, "type": next(key for key in part if _snake(key) == medium)}, place)
    raise LogFormatError(f"{place}: not a part of a message: it has no type")


def _read_keyed_call(inner: Mapping[str, Any], place: str) -> Content:
    return read_call(inner, place)


def _read_keyed_result(inner: Mapping[str, Any], place: str) -> Content:
    return _read_result("tool_result", inner, place)


def _read_keyed_code(inner: Mapping[str, Any], place: str) -> Content:
    known = {key: value for key, value in inner.items() if key != "id" and value is not None}
    return make_call(RUN_CODE, known, _identity(inner))


def _read_keyed_output(inner: Mapping[str, Any], place: str) -> Content:
    outcome = str(inner.get("outcome") or "OK")
    failed = not outcome.casefold().endswith(("ok", "1"))
    answer = Answer(text=str(inner.get("output") or ""), call=_identity(inner), tool=RUN_CODE, failed=failed)
    return Content(answers=(answer,))


def _read_keyed_thought(inner: Mapping[str, Any], place: str) -> Content:
    told = inner.get("reasoningText", inner.get("reasoning_text"))
    return Content(thinking=_plain_text(told)) if told else Content(notes={ENCRYPTED: 1})


_KEYED: Mapping[str, Callable[[Mapping[str, Any], str], Content]] = {
    "function_call": _read_keyed_call,
    "tool_use": _read_keyed_call,
    "function_response": _read_keyed_result,
    "tool_result": _read_keyed_result,
    "executable_code": _read_keyed_code,
    "code_execution_result": _read_keyed_output,
    "reasoning_content": _read_keyed_thought,
}


# --- values -----------------------------------------------------------------------------------------------------------


def _snake(key: str) -> str:
    """A name in small letters with underscores: `functionCall`, `tool-call`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key.replace("-", "_")).casefold()


def _first(record: Mapping[str, Any], *keys: str) -> Any:
    return next((record[key] for key in keys if record.get(key) is not None), None)


def _identity(record: Mapping[str, Any], *, answered: bool = False) -> str | None:
    """The id of a call; of an answer the id of what it answers."""
    of_call = ("tool_use_id", "tool_call_id", "call_id", "toolCallId", "toolUseId")
    keys = (*of_call, "id") if answered else (*of_call[2:], *of_call[:2], "id")
    return name_call(_first(record, *keys))


def name_call(identity: Any) -> str | None:
    """The id of a call as a text: some services count their calls."""
    return identity if identity is None or isinstance(identity, str) else str(identity)


def _plain_text(value: Any) -> str:
    """The text of a text, of an object that has one, or of a list of these; of anything else the JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(map(_plain_text, value))
    told = _first(value, "text", "message", "summary", "reasoning") if isinstance(value, Mapping) else None
    return told if isinstance(told, str) else json.dumps(value, ensure_ascii=False)


def _is_part(value: Any) -> bool:
    """Whether an item of a tool's answer is a part of a message, rather than data of the tool that looks like one."""
    if not isinstance(value, Mapping):
        return False
    kind = _snake(value["type"]) if isinstance(value.get("type"), str) else None
    if kind is None:
        return len(value) == 1 and (isinstance(value.get("text"), str) or "json" in value)
    if _READERS.get(kind) is _read_text:
        return isinstance(value.get("text"), str) and set(value) <= _TEXT_KEYS
    if kind in ("resource", "search_result"):
        return True
    return bool(_medium(kind, value)) and any(key in value for key in _PAYLOADS)


_TEXT_KEYS = {"type", "text", "id", "index", "annotations", "citations", "cache_control", "extras", "_meta", "meta"}
_PAYLOADS = ("source", "image_url", "data", "base64", "file_id", "url", "uri", "image", "file_data", "inlineData")


def _name_odd_numbers(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Arguments with the names of numbers that JSON lacks (`NaN`), and how many these are."""
    found = 0

    def name(value: Any) -> Any:
        nonlocal found
        if isinstance(value, float) and not isfinite(value):
            found += 1
            return json.dumps(value)
        if isinstance(value, list):
            return [name(item) for item in value]
        return {key: name(item) for key, item in value.items()} if isinstance(value, Mapping) else value

    return {str(key): name(value) for key, value in arguments.items()}, found


def _without_ciphers(value: Any) -> tuple[Any, Mapping[str, int]]:
    """Results of a search without the pages that the provider encrypted."""
    items = value if isinstance(value, list) else [value]
    hidden = sum(isinstance(item, Mapping) and "encrypted_content" in item for item in items)
    if not hidden:
        return value, {}
    clean = [
        {key: inner for key, inner in item.items() if key != "encrypted_content"} if isinstance(item, Mapping) else item
        for item in items
    ]
    return clean if isinstance(value, list) else clean[0], {ENCRYPTED_RESULTS: hidden}


def with_calls(content: Content, calls: Content) -> Content:
    """The content with calls that its message lists apart; those that the content repeats stand in it once."""
    ids = {call.id for call in calls.calls if call.id is not None}
    listed = [(call.name, call.arguments) for call in calls.calls]
    others = tuple(
        call
        for call in content.calls
        if not (call.id in ids if call.id is not None else (call.name, call.arguments) in listed)
    )
    return join_content([replace(content, calls=()), replace(calls, calls=(*calls.calls, *others))])
