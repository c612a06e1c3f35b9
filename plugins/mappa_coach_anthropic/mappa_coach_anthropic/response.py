"""Parses responses of Anthropic's API, which are untrusted, into a Reply or a CallError.

Only the fields that a reply needs are required; a usage figure that is missing or not a number is None.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from mappa_core.transport import (
    CallFault,
    ErrorBody,
    ErrorParser,
    Reply,
    StopReason,
    decode_answer,
    join_details,
    map_stop_reason,
    parse_usage,
)

STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "blocked",
}
"""Stop reason of the API -> how the reply ended."""

FAULT_OF_ERROR_TYPE: dict[Any, CallFault] = {
    "authentication_error": "key",
    "permission_error": "key",
    "billing_error": "quota",
    "not_found_error": "model",
    "invalid_request_error": "request",
    "request_too_large": "too_long",
    "rate_limit_error": "rate_limit",
    "overloaded_error": "overloaded",
    "timeout_error": "timeout",
}
"""Error types that come with status 200; every other type counts as a fault of the server."""

CACHE_COUNTS = ("cache_read_input_tokens", "cache_creation_input_tokens")

NO_CREDIT_PATTERN = re.compile(r"credit balance", re.IGNORECASE)
TOO_LONG_PATTERN = re.compile(r"prompt is too long|context (limit|window)", re.IGNORECASE)
SCHEMA_REFUSED_PATTERN = re.compile(r"output_config\.format|output_format|schema|structured output", re.IGNORECASE)


class _Block(Struct):
    type: str
    text: str | None = None


class _Details(Struct):
    category: str | None = None
    explanation: str | None = None


class _Message(Struct):
    content: list[_Block] | None = None
    stop_reason: str | None = None
    stop_details: _Details | None = None
    model: str | None = None
    usage: Any = None
    error: Any = None


class _Count(Struct):
    input_tokens: int


def parse_message(body: str, model: str) -> Reply:
    """Parse the body of a message. `model` is the requested model, used where the body names none. Raises CallError
    where the body holds no reply."""
    message = decode_answer(body, _Message, parse_error)
    details = message.stop_details or _Details()
    return Reply(
        text="".join(block.text or "" for block in message.content or () if block.type == "text"),
        stop=map_stop_reason(message.stop_reason, STOP_REASONS),
        detail=join_details(message.stop_reason, details.category, details.explanation),
        model=message.model or model,
        usage=parse_usage(
            message.usage,
            # The three counts exclude each other. A server without a prompt cache has no counts of it.
            prompt=("input_tokens", *CACHE_COUNTS),
            completion="output_tokens",
            cached="cache_read_input_tokens",
            thinking="output_tokens_details.thinking_tokens",
            optional=CACHE_COUNTS,
        ),
        raw=body,
    )


def parse_token_count(body: str) -> int:
    """Parse the response of the token counter. Raises CallError where it holds no number."""
    return decode_answer(body, _Count).input_tokens


def _classify_error(error: ErrorBody) -> CallFault:
    kind = error.fields.get("type")
    named = FAULT_OF_ERROR_TYPE.get(kind) if isinstance(kind, str) else None
    fault = named if named is not None and (named == "quota" or error.status is None) else error.status_fault
    if fault != "request":
        return fault
    if NO_CREDIT_PATTERN.search(error.message):
        return "quota"
    if TOO_LONG_PATTERN.search(error.message):
        return "too_long"
    return "schema" if SCHEMA_REFUSED_PATTERN.search(error.message) else fault


parse_error = ErrorParser(_classify_error)
