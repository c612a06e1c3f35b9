"""What Anthropic's API answers, read without trust: a Reply, or the CallError that it amounts to.

Only what a reply cannot do without is required; a figure of the usage that is missing, or no number, is None.
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

STOPS: dict[str, Literal["end", "length", "blocked"]] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "blocked",
}
"""Why a reply ended."""

FAULTS: dict[Any, CallFault] = {
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
"""Types of errors that come with status 200; all others are the server's."""

NO_CREDIT = re.compile(r"credit balance", re.IGNORECASE)
TOO_LONG = re.compile(r"prompt is too long|context (limit|window)", re.IGNORECASE)
NO_SCHEMA = re.compile(r"output_config\.format|output_format|schema|structured output", re.IGNORECASE)


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


def read_message(body: str, model: str) -> Reply:
    """The reply in the body of a message; `model` is what was asked. Raises CallError where there is none."""
    message = decode_answer(body, _Message)
    if message.error is not None:
        kind, words = explain(None, body)
        raise CallError(kind, one_line(words))
    stop = stop_of(message.stop_reason, STOPS)
    details = message.stop_details or _Details()
    said = (message.stop_reason, details.category, details.explanation)
    return Reply(
        text="".join(block.text or "" for block in message.content or () if block.type == "text"),
        stop=stop,
        detail=": ".join(word for word in said if word),
        model=message.model or model,
        usage=_usage(message.usage),
        raw=body,
    )


def read_count(body: str) -> int:
    """The number in the answer of the token counter. Raises CallError where there is none."""
    return decode_answer(body, _Count).input_tokens


def explain(status: int | None, body: str) -> tuple[CallFault, str]:
    """What an error amounts to that came with `status` (None: in an answer of status 200), and the provider's words."""
    error, message = error_in(body)
    return _fault(status, error.get("type"), message), f"status {status or 200}: {message}"


def _fault(status: int | None, kind: Any, message: str) -> CallFault:
    named = FAULTS.get(kind) if isinstance(kind, str) else None
    fault = named if named == "quota" else fault_of_status(status) if status is not None else named or "server"
    if fault != "request":
        return fault
    if NO_CREDIT.search(message):
        return "quota"
    if TOO_LONG.search(message):
        return "too_long"
    return "schema" if NO_SCHEMA.search(message) else fault


def _usage(said: Any) -> Usage | None:
    if not isinstance(said, dict):
        return None
    # The three counts exclude each other. One that is left out, or null, is of a server without a prompt cache.
    caches = ("cache_read_input_tokens", "cache_creation_input_tokens")
    written = [token_count(said, name) for name in caches if said.get(name) is not None]
    return Usage(
        calls=1,
        prompt_tokens=token_sum(token_count(said, "input_tokens"), *written),
        completion_tokens=token_count(said, "output_tokens"),
        cached_tokens=token_count(said, "cache_read_input_tokens"),
        thinking_tokens=token_count(said, "output_tokens_details", "thinking_tokens"),
    )
