"""What a server that speaks OpenAI's API answers, read without trust: a Reply, or the CallError that it amounts to.

Servers differ in what they leave out. Only what a reply cannot do without is required; a figure of the usage that is
missing, or no number, is None.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from msgspec import Struct

from mappa_core import (
    CallError,
    CallFault,
    Reply,
    Usage,
    decode_answer,
    error_in,
    fault_of_status,
    one_line,
    stop_of,
    token_count,
)

STOPS: dict[str, Literal["end", "length", "blocked"]] = {
    "stop": "end",
    "completed": "end",
    "length": "length",
    "max_output_tokens": "length",
    "content_filter": "blocked",
}
"""Why a reply ended: of a chat its finish reason, of a response its status or why it is incomplete."""

PRECISE: dict[Any, CallFault] = {
    "insufficient_quota": "quota",
    "billing_hard_limit_reached": "quota",
    "billing_not_active": "quota",
    "context_length_exceeded": "too_long",
    "exceed_context_size_error": "too_long",
}
"""Codes and types of errors that say more than their status."""

WITHOUT_STATUS: dict[Any, CallFault] = {
    "rate_limit_exceeded": "rate_limit",
    "invalid_api_key": "key",
    "model_not_found": "model",
    "invalid_prompt": "request",
    "invalid_request_error": "request",
}
"""Codes and types of errors that come with status 200; all others are the server's."""

TOO_LONG = re.compile(r"context.(length|window|size)|maximum context|too many tokens|prompt is too long", re.IGNORECASE)
NO_SCHEMA = re.compile(r"response_format|text\.format|schema|structured.output|grammar", re.IGNORECASE)


class _Message(Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(Struct):
    message: _Message
    finish_reason: str | None = None


class _Chat(Struct):
    choices: list[_Choice] | None = None
    model: str | None = None
    usage: Any = None
    error: Any = None


class _Part(Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class _Item(Struct):
    type: str
    content: list[_Part] | None = None


class _Incomplete(Struct):
    reason: str | None = None


class _Response(Struct):
    status: str | None = None
    output: list[_Item] | None = None
    incomplete_details: _Incomplete | None = None
    model: str | None = None
    usage: Any = None
    error: Any = None


class _Count(Struct):
    input_tokens: int


def read_chat(body: str, model: str) -> Reply:
    """The reply in the body of a chat completion; `model` is what was asked. Raises CallError where there is none."""
    chat = decode_answer(body, _Chat)
    if chat.error is not None:
        raise _fault_in(body)
    if not chat.choices:
        raise CallError("garbled", "the answer holds no choice")
    message, finish = chat.choices[0].message, chat.choices[0].finish_reason
    return Reply(
        text=message.content or "",
        stop="blocked" if message.refusal else stop_of(finish, STOPS),
        detail=f"refusal: {message.refusal}" if message.refusal else str(finish),
        model=chat.model or model,
        usage=_usage(chat.usage, "prompt_tokens", "completion_tokens"),
        raw=body,
    )


def read_response(body: str, model: str) -> Reply:
    """The reply in the body of a response; `model` is what was asked. Raises CallError where there is none."""
    response = decode_answer(body, _Response)
    if response.error is not None:
        raise _fault_in(body)
    details = response.incomplete_details
    ended = details.reason if response.status == "incomplete" and details else response.status
    parts = [part for item in response.output or () if item.type == "message" for part in item.content or ()]
    refusal = "".join(part.refusal or "" for part in parts if part.type == "refusal")
    return Reply(
        text="".join(part.text or "" for part in parts if part.type == "output_text"),
        stop="blocked" if refusal else stop_of(ended, STOPS),
        detail=f"refusal: {refusal}" if refusal else str(ended),
        model=response.model or model,
        usage=_usage(response.usage, "input_tokens", "output_tokens"),
        raw=body,
    )


def read_count(body: str) -> int:
    """The number in the answer of the token counter. Raises CallError where there is none."""
    return decode_answer(body, _Count).input_tokens


def explain(status: int | None, body: str) -> tuple[CallFault, str]:
    """What an error amounts to that came with `status` (None: in an answer of status 200), and the server's words."""
    error, message = error_in(body)
    kind = _fault(status, error.get("code"), error.get("type"), f"{message} {error.get('param')}")
    return kind, f"status {status or 200}: {message}"


def _fault_in(body: str) -> CallError:
    kind, words = explain(None, body)
    return CallError(kind, one_line(words))


def _fault(status: int | None, code: Any, kind: Any, text: str) -> CallFault:
    words = [word for word in (code, kind) if isinstance(word, str)]
    for word in words:
        if word in PRECISE:
            return PRECISE[word]
    if status is None and type(code) is int:
        status = code
    if status is not None:
        fault = fault_of_status(status)
    else:
        fault = next((WITHOUT_STATUS[word] for word in words if word in WITHOUT_STATUS), "server")
    if fault in ("request", "server") and TOO_LONG.search(text):
        return "too_long"
    return "schema" if fault == "request" and NO_SCHEMA.search(text) else fault


def _usage(said: Any, prompt: str, completion: str) -> Usage | None:
    if not isinstance(said, dict):
        return None
    return Usage(
        calls=1,
        prompt_tokens=token_count(said, prompt),
        completion_tokens=token_count(said, completion),
        cached_tokens=token_count(said, f"{prompt}_details", "cached_tokens"),
        thinking_tokens=token_count(said, f"{completion}_details", "reasoning_tokens"),
    )
