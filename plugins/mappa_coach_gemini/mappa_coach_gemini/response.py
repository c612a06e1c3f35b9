"""Parses responses of Google's API, which are untrusted, into a Reply or a CallError.

Only the fields that a reply needs are required; a usage figure that is missing or not a number is None.
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
    join_details,
    map_stop_reason,
    parse_usage,
)

STOP_REASONS: dict[str, StopReason] = {
    "STOP": "end",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    **dict.fromkeys(
        (
            "SAFETY",
            "RECITATION",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "LANGUAGE",
            "ESCALATION",
            "MODEL_ARMOR",
            "OTHER",
        ),
        "blocked",
    ),
}
"""Finish reason of the API -> how the reply ended."""

ZERO_COUNTS = dict.fromkeys(("candidatesTokenCount", "thoughtsTokenCount", "cachedContentTokenCount"), 0)

WRONG_KEY_PATTERN = re.compile(r"API_KEY_INVALID|API key (not valid|expired)", re.IGNORECASE)
DAILY_QUOTA_PATTERN = re.compile(r"PerDay")
TOO_LONG_PATTERN = re.compile(r"input token count|maximum number of tokens", re.IGNORECASE)
SCHEMA_REFUSED_PATTERN = re.compile(r"schema|mime.?type", re.IGNORECASE)
RETRY_DELAY_PATTERN = re.compile(r'"retryDelay":\s*"(\d+(?:\.\d+)?)s"')


class _Part(Struct):
    text: str | None = None
    thought: bool | None = None


class _Content(Struct):
    parts: list[_Part] | None = None


class _Candidate(Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Feedback(Struct, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


class _Response(Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    model_version: str | None = None
    usage_metadata: Any = None
    error: Any = None


def parse_response(body: str, model: str) -> Reply:
    """Parse the body of a response. `model` is the requested model, used where the body names none. Raises CallError
    where the body holds no reply."""
    answer = decode_answer(body, _Response, parse_error)
    feedback = answer.prompt_feedback or _Feedback()
    model, usage = answer.model_version or model, _parse_usage(answer.usage_metadata)
    if not answer.candidates and feedback.block_reason:
        reasons = ("prompt", feedback.block_reason, feedback.block_reason_message)
        return Reply(text="", stop="blocked", detail=join_details(*reasons), model=model, usage=usage, raw=body)
    if not answer.candidates:
        raise CallError("garbled", "the answer holds no candidate")
    candidate = answer.candidates[0]
    stop = map_stop_reason(candidate.finish_reason, STOP_REASONS)
    parts = (candidate.content or _Content()).parts or ()
    return Reply(
        text="".join(part.text or "" for part in parts if not part.thought),
        stop=stop,
        detail=join_details(candidate.finish_reason, candidate.finish_message),
        model=model,
        usage=usage,
        raw=body,
    )


def parse_retry_delay(body: str) -> float | None:
    """Return the retry delay in seconds that an error names in its RetryInfo; None where it names none."""
    match = RETRY_DELAY_PATTERN.search(body)
    return None if match is None else float(match[1])


def _classify_error(error: ErrorBody) -> CallFault:
    fault = error.status_fault
    if fault == "rate_limit" and DAILY_QUOTA_PATTERN.search(error.body):
        return "quota"
    if fault != "request":
        return fault
    if WRONG_KEY_PATTERN.search(error.body):
        return "key"
    if TOO_LONG_PATTERN.search(error.message):
        return "too_long"
    return "schema" if SCHEMA_REFUSED_PATTERN.search(error.message) else fault


parse_error = ErrorParser(_classify_error)


def _parse_usage(value: Any) -> Usage | None:
    # proto3's JSON leaves out fields whose value is 0: in a usage object, a missing count is 0.
    return parse_usage(
        {**ZERO_COUNTS, **value} if isinstance(value, dict) else None,
        prompt="promptTokenCount",
        completion=("candidatesTokenCount", "thoughtsTokenCount"),
        cached="cachedContentTokenCount",
        thinking="thoughtsTokenCount",
    )
