"""Reads a message into one form: those of OpenAI, Anthropic and Gemini, items of OpenAI's responses, messages of
LangChain (also as its `dumps` writes them), of inspect_ai, of OpenInference and of the GenAI conventions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from mappa.look.importing.content import (
    Answer,
    Content,
    join_content,
    name_call,
    read_answer,
    read_call,
    read_content,
    read_part,
    says_error,
    with_calls,
)
from mappa.look.importing.log_mapping import LogFormatError, lookup
from mappa_core import Message

MessageRole = Literal["system", "user", "assistant", "tool"]
ROLES: Mapping[str, MessageRole] = {
    **{role: role for role in get_args(MessageRole)},
    "developer": "system",
    "function": "tool",
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
}
MESSAGE_KEYS = {
    "role", "content", "parts", "contents", "name", "tool_name", "tool_calls", "invalid_tool_calls", "tool_responses",
    "function_call", "additional_kwargs", "tool_call_id", "reasoning", "reasoning_content", "reasoning_details",
    "thinking", "thinking_blocks", "refusal", "audio", "status", "is_error", "error",
}  # fmt: skip
"""Keys of a message that are read here."""
_LANGCHAIN = ("human", "ai", "system", "tool", "function")
_ITEMS = ("reasoning", "compaction", "item_reference", "mcp_list_tools")
_ITEM_ENDINGS = ("_call", "_call_output", "_approval_request", "_approval_response")


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalMessage:
    """A message in the one form. Of a message of a tool the answers are in its content. `joined` are the contents of
    which it was made, if they were several."""

    role: MessageRole
    name: str | None
    content: Content
    joined: tuple[Content, ...] = ()

    @property
    def pieces(self) -> tuple[Content, ...]:
        """The contents as they stand in the log."""
        return self.joined or (self.content,)

    def to_messages(self) -> tuple[Message, ...]:
        """As messages of the contract. Answers come before what a user wrote beside them, and behind what a model
        wrote, whose provider called the tool itself."""
        content = self.content
        answers = tuple(
            Message(
                role="tool",
                content=answer.text,
                name=self.name if self.role == "tool" else None,
                tool_call_id=answer.call,
            )
            for answer in content.answers
        )
        if answers and not content.is_written:
            return answers
        said = Message(
            role=self.role,
            content=content.text,
            name=self.name,
            tool_calls=content.calls,
            reasoning=content.thinking or None,
        )
        return (said, *answers) if self.role == "assistant" else (*answers, said)


def read_message(raw: Mapping[str, Any], role: MessageRole, name: str | None, place: str, text: str) -> NormalMessage:
    """Read a message that is unwrapped, whose text stands at the key `text`. Raises LogFormatError, naming the key."""
    if is_item(raw):
        content = read_part(raw, place)
        return NormalMessage(role="tool" if _is_output(raw) else role, name=name, content=content)
    if role == "tool":
        return NormalMessage(role=role, name=name, content=_read_answers(raw, place, text))
    content = with_calls(_read_body(raw, place, text), join_content(_read_calls(raw, place)))
    content = _with_thoughts(content, tuple(_read_thoughts(raw, place)))
    return NormalMessage(role=role, name=name, content=_with_texts(content, _read_texts(raw)))


def merge_messages(messages: Sequence[NormalMessage]) -> NormalMessage:
    """Several messages as one of the first's role: a reply that stands in several."""
    if len(messages) == 1:
        return messages[0]
    pieces = tuple(piece for message in messages for piece in message.pieces)
    return replace(messages[0], content=join_content(pieces), joined=pieces)


def pair_answers(contents: Sequence[Content]) -> dict[int, dict[int, Answer]]:
    """The answers of tools by the place of the content that called them and the place of the call in it. An id may be
    used again: an answer belongs to the nearest content that has a call with its id, and the first answer to a call
    counts. Answers without an id belong to the calls without one of the last content with calls: to the first of the
    tool that they name, else in order. Where every call has an id, they belong to the call that alone is left for
    them there."""
    answers: dict[int, dict[int, Answer]] = {}
    waiting: dict[str | None, list[tuple[int, int]]] = {}
    last = 0
    for number, content in enumerate(contents):
        if content.calls:
            last = number
            if None in waiting:
                waiting[None] = []
            waiting.update((call.id, []) for call in content.calls)
            for place, call in enumerate(content.calls):
                waiting[call.id].append((number, place))
        for answer in content.answers:
            called = waiting.get(answer.call)
            if answer.call is None and None not in waiting:  # else it may be late, and answer one of those
                called = _only_left(last, contents[last], answers.get(last, {}), answer)
            if called:
                named = (at for at in called if contents[at[0]].calls[at[1]].name == answer.tool)
                caller, place = at = next(named, called[0])
                waiting[contents[caller].calls[place].id].remove(at)
                answers.setdefault(caller, {})[place] = answer
    return answers


def _only_left(number: int, content: Content, answered: Collection[int], answer: Answer) -> list[tuple[int, int]]:
    """The place of the call of a content that an answer without an id can belong to, if it is one alone."""
    left = [
        (number, place)
        for place, call in enumerate(content.calls)
        if place not in answered and answer.tool in (None, call.name)
    ]
    return left if len(left) == 1 else []


def unwrap(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message without what LangChain or OpenInference put around it."""
    inner = raw.get("kwargs")
    if "lc" in raw and isinstance(inner, Mapping):
        path = raw.get("id")
        return {"type": _class_kind(path[-1]) if isinstance(path, list) and path else None, **inner}
    if isinstance(raw.get("data"), Mapping) and isinstance(raw.get("type"), str) and "role" not in raw:
        return {"type": raw["type"], **raw["data"]}
    if isinstance(raw.get("message"), Mapping) and "role" not in raw:
        return dict(raw["message"])
    return raw


def is_langchain(raw: Mapping[str, Any]) -> bool:
    """Whether a message is one of LangChain, in any of its three forms."""
    inner = unwrap(raw)
    kind = inner.get("type")
    return "role" not in inner and isinstance(kind, str) and _class_kind(kind) in _LANGCHAIN and "content" in inner


def find_role(raw: Mapping[str, Any]) -> Any:
    """The role that an unwrapped message names, as it names it, or None."""
    role = raw.get("role")
    if role is None and isinstance(raw.get("type"), str):
        if is_item(raw):
            return "assistant"
        kind = _class_kind(raw["type"])
        return kind if kind in _LANGCHAIN else None
    return role


def is_item(raw: Any) -> bool:
    """Whether a value is an item of OpenAI's responses that is no message."""
    kind = raw.get("type") if isinstance(raw, Mapping) and raw.get("role") is None else None
    return isinstance(kind, str) and (kind in _ITEMS or kind.endswith(_ITEM_ENDINGS))


def group_items(raws: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    """The messages of a list, each with its place; items of one response are one: thoughts, a text and calls up to the
    first answer, the next text, or the next thought behind a call or text."""
    start, group = 0, list[Any]()
    for number, raw in enumerate(raws):
        if group and _belongs(raw, group):
            group.append(raw)
            continue
        if group:
            yield start, group
        start, group = number, [raw]
    if group:
        yield start, group


def _belongs(raw: Any, group: Sequence[Any]) -> bool:
    def writes(one: Any) -> bool:
        if is_item(one):
            return not _is_output(one)
        return isinstance(one, Mapping) and one.get("type") == "message" and one.get("role") == "assistant"

    if not writes(raw) or not all(map(writes, group)) or not any(map(is_item, (raw, *group))):
        return False
    kinds = [one.get("type") for one in group]
    if raw["type"] == "reasoning":
        return set(kinds) == {"reasoning"}
    return raw["type"] != "message" or "message" not in kinds


def _is_output(raw: Mapping[str, Any]) -> bool:
    return str(raw.get("type")).endswith(("_call_output", "_approval_response"))


def _class_kind(name: Any) -> str:
    """The type of a class of LangChain: `AIMessageChunk` is `ai`."""
    return str(name).removesuffix("Chunk").removesuffix("Message").casefold()


# --- what stands beside the content -----------------------------------------------------------------------------------


def _read_body(raw: Mapping[str, Any], place: str, text: str) -> Content:
    body = lookup(raw, text)
    if body is None and text == "content":
        for key in ("parts", "contents"):
            if raw.get(key) is not None:
                return read_content(raw[key], f"{place}.{key}")
    return read_content(body, f"{place}.{text}")


def _read_calls(raw: Mapping[str, Any], place: str) -> Iterator[Content]:
    more = _extra(raw)
    for key in ("tool_calls", "invalid_tool_calls"):
        yield from _read_list(raw.get(key), f"{place}.{key}")
    if not raw.get("tool_calls") and not raw.get("invalid_tool_calls"):
        yield from _read_list(more.get("tool_calls"), f"{place}.additional_kwargs.tool_calls")
        for old in (raw.get("function_call"), more.get("function_call")):
            if old is not None:
                yield read_call(old, f"{place}.function_call")


def _read_list(raw: Any, place: str) -> Iterator[Content]:
    if raw is not None and not isinstance(raw, list):
        raise LogFormatError(f"{place}: not a list")
    yield from (read_call(one, f"{place}.{number}") for number, one in enumerate(raw or ()))


def _read_thoughts(raw: Mapping[str, Any], place: str) -> Iterator[Content]:
    """Thoughts beside the content; services repeat one under several keys."""
    more = _extra(raw)
    for key in ("reasoning", "reasoning_content", "thinking"):
        value = raw.get(key) or more.get(key)
        if isinstance(value, str):
            yield Content(thinking=value)
        elif isinstance(value, Mapping):
            yield read_part({"type": "reasoning", **value}, f"{place}.{key}")
        elif value is not None:
            raise LogFormatError(f"{place}.{key}: not text: {value!r}")
    for key in ("thinking_blocks", "reasoning_details"):
        for number, one in enumerate(raw.get(key) or more.get(key) or ()):
            # OpenRouter's types are `reasoning.text`, `reasoning.summary` and `reasoning.encrypted`.
            kind = "redacted_reasoning" if str(one.get("type")).endswith("encrypted") else None
            named = {**one, "type": kind or str(one.get("type")).partition(".")[0]} if isinstance(one, Mapping) else one
            yield read_part(named, f"{place}.{key}.{number}")


def _with_thoughts(content: Content, thoughts: Sequence[Content]) -> Content:
    told: list[str] = []
    for thinking in (*(one.thinking for one in thoughts), content.thinking):
        if thinking and not any(thinking in other for other in told):
            told.append(thinking)
    notes = join_content([*thoughts, content]).notes
    return replace(content, thinking="\n".join(told), notes=notes)


def _read_texts(raw: Mapping[str, Any]) -> Iterator[str]:
    more = _extra(raw)
    for value in (raw.get("refusal"), more.get("refusal")):
        if isinstance(value, str):
            yield value
    audio = raw.get("audio") or more.get("audio")
    if isinstance(audio, Mapping) and isinstance(audio.get("transcript"), str):
        yield audio["transcript"]


def _with_texts(content: Content, texts: Iterator[str]) -> Content:
    for text in texts:
        if text and text not in content.text:
            content = join_content([content, Content(text=text)])
    return content


def _extra(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    more = raw.get("additional_kwargs")
    return more if isinstance(more, Mapping) else {}


def _read_answers(raw: Mapping[str, Any], place: str, text: str) -> Content:
    """What a message of a tool holds: answers in parts or in a list of their own, or one as its content."""
    if isinstance(raw.get("tool_responses"), list):  # AG2, which joins them in the content, too
        return join_content(_read_response(one) for one in raw["tool_responses"])
    value = lookup(raw, text)
    if value is None:
        parts = _read_body(raw, place, text)
        if parts.answers:
            return parts
        value = parts.text
    elif isinstance(value, list) and (parts := _read_parts(value, place)).answers:
        return parts
    body, notes, failed = read_answer(value)
    error = raw.get("error")
    told = error.get("message") if isinstance(error, Mapping) else error
    if isinstance(told, str) and says_error(told) and told not in body:
        body = "\n".join(filter(None, (body, told)))
    failed = failed or raw.get("status") == "error" or raw.get("is_error") is True or says_error(error)
    tool = next((raw[key] for key in ("name", "tool_name", "function") if isinstance(raw.get(key), str)), None)
    answer = Answer(text=body, call=name_call(raw.get("tool_call_id")), tool=tool, failed=failed)
    return Content(answers=(answer,), notes=notes)


def _read_parts(value: Sequence[Any], place: str) -> Content:
    try:
        return read_content(value, place)
    except LogFormatError:  # data of the tool
        return Content()


def _read_response(raw: Any) -> Content:
    known = raw if isinstance(raw, Mapping) else {}
    text, notes, failed = read_answer(known.get("content"))
    answer = Answer(text=text, call=name_call(known.get("tool_call_id")), failed=failed)
    return Content(answers=(answer,), notes=notes)


def optional_text(raw: Mapping[str, Any], key: str, place: str) -> str | None:
    """The text of a key that may lack. Raises LogFormatError where it is no text."""
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise LogFormatError(f"{place}.{key}: not text: {value!r}")
    return value
