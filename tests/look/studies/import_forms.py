"""Conversations, and how frameworks and providers write them: each writer makes the objects of a file.

Every text is a word of its own with the number of its call or turn, so that a search finds it in a log and in a run,
whatever the form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Row = dict[str, Any]
Writer = Callable[["Talk"], list[Row]]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call with the words `arg-N` and `res-N`."""

    number: int
    failed: bool

    @property
    def arguments(self) -> Row:
        return {"q": f"arg-{self.number}", "deep": {"list": [self.number, 10**30]}}

    @property
    def answer(self) -> str:
        return f"res-{self.number} of the tool"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a model wrote: perhaps a thought, a cipher, a text, a picture, and calls."""

    number: int
    thought: bool
    cipher: bool
    text: bool
    calls: tuple[Call, ...]

    @property
    def said(self) -> str:
        return f"txt-{self.number} was said" if self.text or not self.calls else ""

    @property
    def thinking(self) -> str:
        return f"thk-{self.number} was thought" if self.thought else ""


@dataclass(frozen=True, kw_only=True)
class Talk:
    """A question with or without a picture, and turns, the last of which calls nothing."""

    picture: bool
    turns: tuple[Turn, ...]


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    """Talks of one to four turns."""
    turns, number = [], 0
    count = draw(st.integers(1, 4))
    for place in range(count):
        calls = []
        for _ in range(0 if place == count - 1 else draw(st.integers(0, 3))):
            calls.append(Call(number=number, failed=draw(st.booleans())))
            number += 1
        flags = [draw(st.booleans()) for _ in range(3)]
        turns.append(Turn(number=place, thought=flags[0], cipher=flags[1], text=flags[2], calls=tuple(calls)))
    return Talk(picture=draw(st.booleans()), turns=tuple(turns))


def name(call: Call) -> str:
    return f"tool{call.number}"


QUESTION = "ask-0 is the question"


# --- forms of messages: of the question, of a turn, and of the answers to its calls -----------------------------------


@dataclass(frozen=True, kw_only=True)
class Form:
    """How messages are written. `ciphers`: whether it has encrypted thoughts, and so on."""

    ask: Callable[[bool], list[Row]]
    turn: Callable[[Turn], list[Row]]
    answers: Callable[[Turn], list[Row]]
    thoughts: bool = True
    ciphers: bool = False
    pictures: bool = True
    failures: bool = True


def _openai_ask(picture: bool) -> list[Row]:
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,img-0"}}] if picture else []
    return [{"role": "user", "content": [{"type": "text", "text": QUESTION}, *image]}]


def _openai_turn(turn: Turn) -> list[Row]:
    calls = [
        {
            "id": f"c{one.number}",
            "type": "function",
            "function": {"name": name(one), "arguments": json.dumps(one.arguments)},
        }
        for one in turn.calls
    ]
    message = {"role": "assistant", "content": turn.said or None, "refusal": None, "tool_calls": calls or None}
    return [message | ({"reasoning_content": turn.thinking} if turn.thought else {})]


def _openai_answers(turn: Turn) -> list[Row]:
    return [
        {"role": "tool", "tool_call_id": f"c{one.number}", "content": one.answer, "is_error": one.failed}
        for one in turn.calls
    ]


def _anthropic_ask(picture: bool) -> list[Row]:
    source = {"type": "base64", "media_type": "image/png", "data": "img-0"}
    image = [{"type": "image", "source": source}] if picture else []
    return [{"role": "user", "content": [*image, {"type": "text", "text": QUESTION}]}]


def _anthropic_turn(turn: Turn) -> list[Row]:
    parts: list[Row] = []
    if turn.thought:
        parts.append({"type": "thinking", "thinking": turn.thinking, "signature": "sig"})
    if turn.cipher:
        parts.append({"type": "redacted_thinking", "data": f"enc-{turn.number}"})
    if turn.said:
        parts.append({"type": "text", "text": turn.said, "citations": None})
    parts += [
        {"type": "tool_use", "id": f"c{one.number}", "name": name(one), "input": one.arguments} for one in turn.calls
    ]
    return [{"role": "assistant", "content": parts, "stop_reason": "tool_use" if turn.calls else "end_turn"}]


def _anthropic_answers(turn: Turn) -> list[Row]:
    parts = [
        {
            "type": "tool_result",
            "tool_use_id": f"c{one.number}",
            "content": [{"type": "text", "text": one.answer}] if one.number % 2 else one.answer,
            "is_error": one.failed,
        }
        for one in turn.calls
    ]
    return [{"role": "user", "content": parts}] if parts else []


def _gemini_ask(picture: bool) -> list[Row]:
    image = [{"inlineData": {"mimeType": "image/png", "data": "img-0"}}] if picture else []
    return [{"role": "user", "parts": [{"text": QUESTION}, *image]}]


def _gemini_turn(turn: Turn) -> list[Row]:
    parts: list[Row] = [{"text": turn.thinking, "thought": True}] if turn.thought else []
    parts += [{"text": turn.said, "thoughtSignature": "sig"}] if turn.said else []
    parts += [{"functionCall": {"name": name(one), "args": one.arguments}} for one in turn.calls]
    return [{"role": "model", "parts": parts}]


def _gemini_answers(turn: Turn) -> list[Row]:
    # In another order: those without ids are told apart by the tool.
    parts = [
        {"functionResponse": {"name": name(one), "response": {"output": one.answer}}} for one in reversed(turn.calls)
    ]
    return [{"role": "user", "parts": parts}] if parts else []


def _snake_gemini_turn(turn: Turn) -> list[Row]:
    empty = dict.fromkeys(("text", "thought", "function_call", "function_response", "inline_data", "executable_code"))
    parts = [{**empty, "text": turn.thinking, "thought": True}] if turn.thought else []
    parts += [{**empty, "text": turn.said}] if turn.said else []
    parts += [
        {**empty, "function_call": {"id": f"c{one.number}", "name": name(one), "args": one.arguments}}
        for one in turn.calls
    ]
    return [{"role": "model", "parts": parts}]


def _snake_gemini_answers(turn: Turn) -> list[Row]:
    parts = [
        {"function_response": {"id": f"c{one.number}", "name": name(one), "response": {"result": one.answer}}}
        for one in turn.calls
    ]
    return [{"role": "function", "parts": parts}] if parts else []


def _responses_ask(picture: bool) -> list[Row]:
    image = [{"type": "input_image", "image_url": "data:image/png;base64,img-0"}] if picture else []
    return [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}, *image]}]


def _responses_turn(turn: Turn) -> list[Row]:
    items: list[Row] = []
    if turn.thought or turn.cipher:
        summary = [{"type": "summary_text", "text": turn.thinking}] if turn.thought else []
        cipher = f"enc-{turn.number}" if turn.cipher else None
        items.append({"type": "reasoning", "id": "rs", "summary": summary, "encrypted_content": cipher})
    if turn.said:
        text = [{"type": "output_text", "text": turn.said, "annotations": []}]
        items.append({"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": text})
    for one in turn.calls:
        arguments = json.dumps(one.arguments)
        items.append({"type": "function_call", "call_id": f"c{one.number}", "name": name(one), "arguments": arguments})
    return items


def _responses_answers(turn: Turn) -> list[Row]:
    return [{"type": "function_call_output", "call_id": f"c{one.number}", "output": one.answer} for one in turn.calls]


def _langchain_ask(picture: bool) -> list[Row]:
    (message,) = _openai_ask(picture)
    return [{"type": "human", "content": message["content"], "id": None}]


def _langchain_turn(turn: Turn) -> list[Row]:
    (message,) = _anthropic_turn(turn)
    calls = [
        {"name": name(one), "args": one.arguments, "id": f"c{one.number}", "type": "tool_call"} for one in turn.calls
    ]
    return [{"type": "ai", "content": message["content"], "tool_calls": calls, "invalid_tool_calls": []}]


def _langchain_answers(turn: Turn) -> list[Row]:
    return [
        {
            "type": "tool",
            "content": one.answer,
            "tool_call_id": f"c{one.number}",
            "name": name(one),
            "status": "error" if one.failed else "success",
        }
        for one in turn.calls
    ]


def _blocks_turn(turn: Turn) -> list[Row]:
    """LangChain's standard blocks."""
    parts: list[Row] = [{"type": "reasoning", "reasoning": turn.thinking}] if turn.thought else []
    parts += [{"type": "text", "text": turn.said}] if turn.said else []
    parts += [
        {"type": "tool_call", "name": name(one), "args": one.arguments, "id": f"c{one.number}"} for one in turn.calls
    ]
    return [{"type": "ai", "content": parts, "tool_calls": []}]


_CLASSES = {"human": "HumanMessage", "ai": "AIMessage", "tool": "ToolMessage"}


def _dumped(write: Callable[[Any], list[Row]]) -> Callable[[Any], list[Row]]:
    """As LangChain's `dumps` writes messages."""

    def dump(of: Any) -> list[Row]:
        path = ["langchain", "schema", "messages"]
        return [
            {"lc": 1, "type": "constructor", "id": [*path, _CLASSES[one["type"]]], "kwargs": one} for one in write(of)
        ]

    return dump


def _nested(write: Callable[[Any], list[Row]]) -> Callable[[Any], list[Row]]:
    """As `messages_to_dict` writes them."""
    return lambda of: [{"type": one["type"], "data": one} for one in write(of)]


def _genai_ask(picture: bool) -> list[Row]:
    image = [{"type": "blob", "modality": "image", "mime_type": "image/png", "content": "img-0"}] if picture else []
    return [{"role": "user", "parts": [{"type": "text", "content": QUESTION}, *image]}]


def _genai_turn(turn: Turn) -> list[Row]:
    parts: list[Row] = [{"type": "reasoning", "content": turn.thinking}] if turn.thought else []
    parts += [{"type": "text", "content": turn.said}] if turn.said else []
    parts += [
        {"type": "tool_call", "id": f"c{one.number}", "name": name(one), "arguments": one.arguments}
        for one in turn.calls
    ]
    return [{"role": "assistant", "parts": parts, "finish_reason": "stop"}]


def _parallel_turn(turn: Turn) -> list[Row]:
    """The same, with a message for each part."""
    (message,) = _genai_turn(turn)
    return [{"role": "assistant", "parts": [part]} for part in message["parts"]]


def _genai_answers(turn: Turn) -> list[Row]:
    return [
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": f"c{one.number}", "response": one.answer}]}
        for one in turn.calls
    ]


def _ai_sdk_ask(picture: bool) -> list[Row]:
    image = [{"type": "image", "image": "img-0"}] if picture else []
    return [{"role": "user", "content": [{"type": "text", "text": QUESTION}, *image]}]


def _ai_sdk_turn(turn: Turn) -> list[Row]:
    parts: list[Row] = [{"type": "reasoning", "text": turn.thinking}] if turn.thought else []
    parts += [{"type": "text", "text": turn.said}] if turn.said else []
    parts += [
        {"type": "tool-call", "toolCallId": f"c{one.number}", "toolName": name(one), "input": one.arguments}
        for one in turn.calls
    ]
    return [{"role": "assistant", "content": parts}]


def _ai_sdk_answers(turn: Turn) -> list[Row]:
    parts = [
        {
            "type": "tool-result",
            "toolCallId": f"c{one.number}",
            "toolName": name(one),
            "output": {"type": "error-text" if one.failed else "text", "value": one.answer},
        }
        for one in turn.calls
    ]
    return [{"role": "tool", "content": parts}] if parts else []


def _bedrock_ask(picture: bool) -> list[Row]:
    image = [{"image": {"format": "png", "source": {"bytes": "img-0"}}}] if picture else []
    return [{"role": "user", "content": [{"text": QUESTION}, *image]}]


def _bedrock_turn(turn: Turn) -> list[Row]:
    parts: list[Row] = []
    if turn.thought:
        parts.append({"reasoningContent": {"reasoningText": {"text": turn.thinking, "signature": "sig"}}})
    if turn.cipher:
        parts.append({"reasoningContent": {"redactedContent": f"enc-{turn.number}"}})
    parts += [{"text": turn.said}] if turn.said else []
    parts += [
        {"toolUse": {"toolUseId": f"c{one.number}", "name": name(one), "input": one.arguments}} for one in turn.calls
    ]
    return [{"role": "assistant", "content": parts}]


def _bedrock_answers(turn: Turn) -> list[Row]:
    parts = [
        {
            "toolResult": {
                "toolUseId": f"c{one.number}",
                "content": [{"json": {"said": one.answer}} if one.number % 2 else {"text": one.answer}],
                "status": "error" if one.failed else "success",
            }
        }
        for one in turn.calls
    ]
    return [{"role": "user", "content": parts}] if parts else []


def _ag2_answers(turn: Turn) -> list[Row]:
    told = [{"tool_call_id": f"c{one.number}", "role": "tool", "content": one.answer} for one in turn.calls]
    text = "\n\n".join(one.answer for one in turn.calls)
    return [{"role": "tool", "name": "executor", "content": text, "tool_responses": told}] if told else []


FORMS: Mapping[str, Form] = {
    "openai": Form(ask=_openai_ask, turn=_openai_turn, answers=_openai_answers),
    "anthropic": Form(ask=_anthropic_ask, turn=_anthropic_turn, answers=_anthropic_answers, ciphers=True),
    "gemini": Form(ask=_gemini_ask, turn=_gemini_turn, answers=_gemini_answers, failures=False),
    "google-genai": Form(ask=_gemini_ask, turn=_snake_gemini_turn, answers=_snake_gemini_answers, failures=False),
    "responses": Form(
        ask=_responses_ask, turn=_responses_turn, answers=_responses_answers, ciphers=True, failures=False
    ),
    "langchain": Form(ask=_langchain_ask, turn=_langchain_turn, answers=_langchain_answers, ciphers=True),
    "langchain-blocks": Form(ask=_langchain_ask, turn=_blocks_turn, answers=_langchain_answers),
    "langchain-dumps": Form(
        ask=_dumped(_langchain_ask), turn=_dumped(_langchain_turn), answers=_dumped(_langchain_answers), ciphers=True
    ),
    "langchain-dict": Form(
        ask=_nested(_langchain_ask), turn=_nested(_langchain_turn), answers=_nested(_langchain_answers), ciphers=True
    ),
    "genai": Form(ask=_genai_ask, turn=_genai_turn, answers=_genai_answers, failures=False),
    "genai-parallel": Form(ask=_genai_ask, turn=_parallel_turn, answers=_genai_answers, failures=False),
    "ai-sdk": Form(ask=_ai_sdk_ask, turn=_ai_sdk_turn, answers=_ai_sdk_answers),
    "bedrock": Form(ask=_bedrock_ask, turn=_bedrock_turn, answers=_bedrock_answers, ciphers=True),
    "ag2": Form(ask=_openai_ask, turn=_openai_turn, answers=_ag2_answers, failures=False),
}


# --- files of messages and of spans -----------------------------------------------------------------------------------


def _chat(form: Form, talk: Talk) -> list[Row]:
    messages = form.ask(talk.picture)
    for turn in talk.turns:
        messages += [*form.turn(turn), *form.answers(turn)]
    return messages


def conversation(form: Form) -> Writer:
    """A line with the list of messages."""
    return lambda talk: [{"messages": _chat(form, talk)}]


def _steps(form: Form, talk: Talk) -> list[tuple[int, list[Row], list[Row]]]:
    """Second, input and output of each call of a model."""
    given, steps = form.ask(talk.picture), []
    for second, turn in enumerate(talk.turns):
        steps.append((second, list(given), form.turn(turn)))
        given += [*form.turn(turn), *form.answers(turn)]
    return steps


def _time(second: int, end: bool = False) -> str:
    return f"2026-01-01T00:00:{second:02d}{'.500000' if end else ''}+00:00"


def genai_spans(form: Form) -> Writer:
    """Spans of the GenAI conventions, as an SDK prints them."""

    def write(talk: Talk) -> list[Row]:
        return [
            {
                "name": "chat m",
                "context": {"trace_id": "aa", "span_id": f"{second:02d}"},
                "parent_id": None,
                "start_time": _time(second),
                "end_time": _time(second, end=True),
                "attributes": {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.input.messages": json.dumps(given),
                    "gen_ai.output.messages": json.dumps(written),
                },
            }
            for second, given, written in _steps(form, talk)
        ]

    return write


def _flat(prefix: str, value: Any) -> Row:
    if isinstance(value, Mapping):
        return {key: one for name, inner in value.items() for key, one in _flat(f"{prefix}.{name}", inner).items()}
    if isinstance(value, list):
        return {key: one for at, inner in enumerate(value) for key, one in _flat(f"{prefix}.{at}", inner).items()}
    return {} if value is None else {prefix: value}


def _openinference_message(message: Row) -> Row:
    """An OpenAI message in the terms of OpenInference."""
    content, known = message.get("content"), {"role": message["role"]}
    if isinstance(content, list):
        kinds = {"text": lambda one: {"type": "text", "text": one["text"]}}
        image = {"type": "image", "image": {"image": {"url": "img-0"}}}
        known["contents"] = [{"message_content": kinds.get(one["type"], lambda _: image)(one)} for one in content]
    elif content is not None:
        known["content"] = content
    known["tool_calls"] = [
        {"tool_call": {"id": one["id"], "function": one["function"]}} for one in message.get("tool_calls") or ()
    ]
    return known | ({"tool_call_id": message["tool_call_id"]} if "tool_call_id" in message else {})


def openinference_spans(talk: Talk) -> list[Row]:
    """Spans of OpenInference, whose lists are flat; of every reply the text and each call are a message."""
    rows = []
    for second, given, written in _steps(FORMS["openai"], talk):
        reply = _openinference_message(written[0])
        parts = [
            {**reply, "tool_calls": []},
            *({"role": "assistant", "tool_calls": [one]} for one in reply["tool_calls"]),
        ]
        known = {"openinference.span.kind": "LLM", "llm.model_name": "m"}
        known |= _flat("llm.input_messages", [{"message": _openinference_message(one)} for one in given])
        known |= _flat("llm.output_messages", [{"message": one} for one in parts])
        rows.append(
            {
                "name": "llm",
                "context": {"trace_id": "aa", "span_id": f"{second:02d}"},
                "parent_id": None,
                "start_time": _time(second),
                "end_time": _time(second, end=True),
                "attributes": known,
            }
        )
    return rows


def langfuse(form: Form) -> Writer:
    """A trace of Langfuse with its generations."""

    def write(talk: Talk) -> list[Row]:
        observations = [
            {
                "id": f"o{second}",
                "traceId": "t",
                "type": "GENERATION",
                "name": "model",
                "startTime": _time(second),
                "endTime": _time(second, end=True),
                "input": {"messages": given} if second % 2 else given,
                "output": written[0] if len(written) == 1 else written,
            }
            for second, given, written in _steps(form, talk)
        ]
        return [{"id": "t", "observations": observations}]

    return write


def openai_agents(form: Form) -> Writer:
    """Spans `generation` of the OpenAI Agents SDK."""
    return lambda talk: [
        {
            "object": "trace.span",
            "id": f"s{second}",
            "trace_id": "t",
            "parent_id": None,
            "started_at": _time(second),
            "ended_at": _time(second, end=True),
            "span_data": {"type": "generation", "input": given, "output": written},
            "error": None,
        }
        for second, given, written in _steps(form, talk)
    ]


def autogen_events(form: Form, around: Callable[[list[Row]], Row]) -> Writer:
    """The event log of AutoGen, whose responses are those of the provider."""
    return lambda talk: [
        {"type": "LLMCall", "messages": given, "response": around(written), "agent_id": "a_1/1"}
        for _, given, written in _steps(form, talk)
    ]


def autogen(talk: Talk) -> list[Row]:
    """A result of AutoGen's teams: events of calls, of thoughts, of code and of a selector."""
    picture = [{"data": "img-0"}] if talk.picture else []
    messages: list[Row] = [{"source": "user", "type": "MultiModalMessage", "content": [QUESTION, *picture]}]
    for turn in talk.turns:
        if turn.thought:
            messages.append({"source": "a", "type": "ThoughtEvent", "content": turn.thinking})
        if turn.calls:
            calls = [
                {"id": f"c{one.number}", "name": name(one), "arguments": json.dumps(one.arguments)}
                for one in turn.calls
            ]
            answers = [
                {"call_id": f"c{one.number}", "name": name(one), "content": one.answer, "is_error": one.failed}
                for one in turn.calls
            ]
            messages.append({"source": "a", "type": "ToolCallRequestEvent", "content": calls})
            messages.append({"source": "a", "type": "ToolCallExecutionEvent", "content": answers})
        if turn.said:
            messages.append({"source": "a", "type": "TextMessage", "content": turn.said})
    return [{"messages": messages, "stop_reason": None}]


def atif(talk: Talk) -> list[Row]:
    """A trajectory of Harbor."""
    picture = [{"type": "image", "source": {"media_type": "image/png", "path": "img-0"}}] if talk.picture else []
    steps: list[Row] = [{"source": "user", "message": [{"type": "text", "text": QUESTION}, *picture]}]
    for turn in talk.turns:
        calls = [
            {"tool_call_id": f"c{one.number}", "function_name": name(one), "arguments": one.arguments}
            for one in turn.calls
        ]
        results = [{"source_call_id": f"c{one.number}", "content": one.answer} for one in turn.calls]
        step = {"source": "agent", "message": turn.said, "reasoning_content": turn.thinking or None}
        steps.append({**step, "tool_calls": calls, "observation": {"results": results}})
    return [{"schema_version": "ATIF-v1.6", "agent": {"name": "t"}, "steps": steps}]


def inspect(talk: Talk) -> list[Row]:
    """A log of inspect_ai, which keeps long texts apart."""
    picture = [{"type": "image", "image": "img-0"}] if talk.picture else []
    messages: list[Row] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}, *picture]}]
    attached = {}
    for turn in talk.turns:
        parts: list[Row] = []
        if turn.cipher:
            parts.append({"type": "reasoning", "reasoning": f"enc-{turn.number}", "redacted": True})
        if turn.thought:
            parts.append({"type": "reasoning", "reasoning": turn.thinking, "signature": None})
        attached[f"h{turn.number}"] = turn.said
        parts.append({"type": "text", "text": f"attachment://h{turn.number}"})
        calls = [{"id": f"c{one.number}", "function": name(one), "arguments": one.arguments} for one in turn.calls]
        messages.append({"role": "assistant", "content": parts, "tool_calls": calls, "model": "m"})
        for one in turn.calls:
            error = {"type": "unknown", "message": one.answer} if one.failed else None
            content = "" if one.failed else one.answer
            messages.append(
                {
                    "role": "tool",
                    "content": content,
                    "tool_call_id": f"c{one.number}",
                    "function": name(one),
                    "error": error,
                }
            )
    sample = {"id": 1, "epoch": 1, "messages": messages, "attachments": attached, "scores": {}}
    return [{"eval": {"task": "t"}, "samples": [sample]}]


def _choices(written: list[Row]) -> Row:
    return {"model": "m", "choices": [{"index": 0, "message": written[0]}]}


_SPOKEN = ("openai", "anthropic", "gemini", "google-genai", "responses", "ai-sdk", "bedrock", "ag2")
_IN_SPANS = (*_SPOKEN, "langchain", "langchain-blocks", "langchain-dumps", "langchain-dict")
LOGS: Mapping[str, tuple[Form, Writer]] = {
    **{f"messages of {one}": (FORMS[one], conversation(FORMS[one])) for one in _SPOKEN},
    **{f"states of {one}": (FORMS[one], conversation(FORMS[one])) for one in _IN_SPANS if "langchain" in one},
    **{f"spans of {one}": (FORMS[one], genai_spans(FORMS[one])) for one in (*_IN_SPANS, "genai", "genai-parallel")},
    **{f"langfuse of {one}": (FORMS[one], langfuse(FORMS[one])) for one in _IN_SPANS},
    "openinference": (
        Form(ask=_openai_ask, turn=_openai_turn, answers=_openai_answers, thoughts=False, failures=False),
        openinference_spans,
    ),
    "openai-agents": (FORMS["openai"], openai_agents(FORMS["openai"])),
    "autogen-events of openai": (FORMS["openai"], autogen_events(FORMS["openai"], _choices)),
    "autogen-events of anthropic": (
        FORMS["anthropic"],
        autogen_events(FORMS["anthropic"], lambda written: {"type": "message", **written[0]}),
    ),
    "autogen": (FORMS["openai"], autogen),
    "atif": (Form(ask=_openai_ask, turn=_openai_turn, answers=_openai_answers, failures=False), atif),
    "inspect": (FORMS["anthropic"], inspect),
}
"""Logs by what they are, with what their form can hold."""


def words(value: Any) -> Sequence[str]:
    """The words of a log, found by a walk that knows no format: as they stand, also in JSON within texts."""
    if isinstance(value, str):
        try:
            inner = json.loads(value) if value[:1] in "[{" and value else None
        except ValueError:
            inner = None
        return words(inner) if isinstance(inner, dict | list) else value.replace(",", " ").replace('"', " ").split()
    if isinstance(value, Mapping):
        return [word for inner in value.values() for word in words(inner)]
    return [word for inner in value for word in words(inner)] if isinstance(value, list) else []
