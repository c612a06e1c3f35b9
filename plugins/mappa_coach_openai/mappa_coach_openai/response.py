"""Parses responses of servers with OpenAI's API, which are untrusted, into a Reply or a CallError.

Servers differ in what they leave out. Only the fields that a reply needs are required; a usage figure that is missing
or not a number is None.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from mappa_core import Usage
from mappa_core.transport import (
    CallError,
    CallFault,
    ErrorBody,
    ErrorParser,
    Reply,
    StopReason,
    decode_answer,
    map_stop_reason,
    parse_usage,
)

STOP_REASONS: dict[str, StopReason] = {
    "stop": "end",
    "completed": "end",
    "length": "length",
    "max_output_tokens": "length",
    "content_filter": "blocked",
}
"""A chat's finish reason, or a response's status or reason of incompleteness -> how the reply ended."""

FAULT_OF_CODE: dict[Any, CallFault] = {
    "insufficient_quota": "quota",
    "billing_hard_limit_reached": "quota",
    "billing_not_active": "quota",
    "context_length_exceeded": "too_long",
    "exceed_context_size_error": "too_long",
}
"""Error codes and types that are more precise than the HTTP status."""

FAULT_OF_CODE_WITHOUT_STATUS: dict[Any, CallFault] = {
    "rate_limit_exceeded": "rate_limit",
    "invalid_api_key": "key",
    "model_not_found": "model",
    "invalid_prompt": "request",
    "invalid_request_error": "request",
}
"""Error codes and types that come with status 200; all others count as a fault of the server."""

TOO_LONG_PATTERN = re.compile(
    r"context.(length|window|size)|maximum context|too many tokens|prompt is too long", re.IGNORECASE
)
SCHEMA_REFUSED_PATTERN = re.compile(r"response_format|text\.format|schema|structured.output|grammar", re.IGNORECASE)


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


def parse_chat_completion(body: str, model: str) -> Reply:
    """Parse the body of a chat completion. `model` is the requested model, used where the body names none. Raises
    CallError where the body holds no reply."""
    chat = decode_answer(body, _Chat, parse_error)
    if not chat.choices:
        raise CallError("garbled", "the answer holds no choice")
    message, finish = chat.choices[0].message, chat.choices[0].finish_reason
    return Reply(
        text=message.content or "",
        stop="blocked" if message.refusal else map_stop_reason(finish, STOP_REASONS),
        detail=f"refusal: {message.refusal}" if message.refusal else str(finish),
        model=chat.model or model,
        usage=_usage(chat.usage, "prompt_tokens", "completion_tokens"),
        raw=body,
    )


def parse_response(body: str, model: str) -> Reply:
    """Parse the body of a response. `model` is the requested model, used where the body names none. Raises CallError
    where the body holds no reply."""
    response = decode_answer(body, _Response, parse_error)
    details = response.incomplete_details
    ended = details.reason if response.status == "incomplete" and details else response.status
    parts = [part for item in response.output or () if item.type == "message" for part in item.content or ()]
    refusal = "".join(part.refusal or "" for part in parts if part.type == "refusal")
    return Reply(
        text="".join(part.text or "" for part in parts if part.type == "output_text"),
        stop="blocked" if refusal else map_stop_reason(ended, STOP_REASONS),
        detail=f"refusal: {refusal}" if refusal else str(ended),
        model=response.model or model,
        usage=_usage(response.usage, "input_tokens", "output_tokens"),
        raw=body,
    )


def parse_token_count(body: str) -> int:
    """Parse the response of the token counter. Raises CallError where it holds no number."""
    return decode_answer(body, _Count).input_tokens


def _classify_error(error: ErrorBody) -> CallFault:
    words = [word for word in (error.fields.get("code"), error.fields.get("type")) if isinstance(word, str)]
    for word in words:
        if word in FAULT_OF_CODE:
            return FAULT_OF_CODE[word]
    fault = error.status_fault
    if error.status is None:
        named = (FAULT_OF_CODE_WITHOUT_STATUS[word] for word in words if word in FAULT_OF_CODE_WITHOUT_STATUS)
        fault = next(named, fault)
    text = f"{error.message} {error.fields.get('param')}"
    if fault in ("request", "server") and TOO_LONG_PATTERN.search(text):
        return "too_long"
    return "schema" if fault == "request" and SCHEMA_REFUSED_PATTERN.search(text) else fault


parse_error = ErrorParser(_classify_error)


def _usage(value: Any, prompt: str, completion: str) -> Usage | None:
    return parse_usage(
        value,
        prompt=prompt,
        completion=completion,
        cached=f"{prompt}_details.cached_tokens",
        thinking=f"{completion}_details.reasoning_tokens",
    )
