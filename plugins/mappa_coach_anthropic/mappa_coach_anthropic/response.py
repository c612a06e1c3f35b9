"""Parses responses of Anthropic's API, which are untrusted, into a Reply or a CallError.

Only the fields that a reply needs are required; a usage figure that is missing or not a number is None.
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
    token_sum,
)

STOP_REASONS: dict[str, Literal["end", "length", "blocked"]] = {
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
    message = decode_answer(body, _Message)
    if message.error is not None:
        kind, words = parse_error(None, body)
        raise CallError(kind, one_line(words))
    stop = stop_of(message.stop_reason, STOP_REASONS)
    details = message.stop_details or _Details()
    reasons = (message.stop_reason, details.category, details.explanation)
    return Reply(
        text="".join(block.text or "" for block in message.content or () if block.type == "text"),
        stop=stop,
        detail=": ".join(word for word in reasons if word),
        model=message.model or model,
        usage=_parse_usage(message.usage),
        raw=body,
    )


def parse_token_count(body: str) -> int:
    """Parse the response of the token counter. Raises CallError where it holds no number."""
    return decode_answer(body, _Count).input_tokens


def parse_error(status: int | None, body: str) -> tuple[CallFault, str]:
    """Classify an error with `status` (None: it came with status 200); return the fault and the provider's message."""
    error, message = error_in(body)
    return _classify_error(status, error.get("type"), message), f"status {status or 200}: {message}"


def _classify_error(status: int | None, kind: Any, message: str) -> CallFault:
    named = FAULT_OF_ERROR_TYPE.get(kind) if isinstance(kind, str) else None
    fault = named if named == "quota" else fault_of_status(status) if status is not None else named or "server"
    if fault != "request":
        return fault
    if NO_CREDIT_PATTERN.search(message):
        return "quota"
    if TOO_LONG_PATTERN.search(message):
        return "too_long"
    return "schema" if SCHEMA_REFUSED_PATTERN.search(message) else fault


def _parse_usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    # The three counts exclude each other. A server without a prompt cache leaves the cache counts out, or sends null.
    caches = ("cache_read_input_tokens", "cache_creation_input_tokens")
    written = [token_count(usage, name) for name in caches if usage.get(name) is not None]
    return Usage(
        calls=1,
        prompt_tokens=token_sum(token_count(usage, "input_tokens"), *written),
        completion_tokens=token_count(usage, "output_tokens"),
        cached_tokens=token_count(usage, "cache_read_input_tokens"),
        thinking_tokens=token_count(usage, "output_tokens_details", "thinking_tokens"),
    )
