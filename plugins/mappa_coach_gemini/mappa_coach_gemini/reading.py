"""What Google's API answers, read without trust: a Reply, or the CallError that it amounts to.

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
"""Why a reply ended."""

WRONG_KEY = re.compile(r"API_KEY_INVALID|API key (not valid|expired)", re.IGNORECASE)
DAY_IS_SPENT = re.compile(r"PerDay")
TOO_LONG = re.compile(r"input token count|maximum number of tokens", re.IGNORECASE)
NO_SCHEMA = re.compile(r"schema|mime.?type", re.IGNORECASE)
DELAY = re.compile(r'"retryDelay":\s*"(\d+(?:\.\d+)?)s"')


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


class _Answer(Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    model_version: str | None = None
    usage_metadata: Any = None
    error: Any = None


def read_answer(body: str, model: str) -> Reply:
    """The reply in the body of an answer; `model` is what was asked. Raises CallError where there is none."""
    answer = decode_answer(body, _Answer)
    if answer.error is not None:
        kind, words = explain(None, body)
        raise CallError(kind, one_line(words))
    feedback = answer.prompt_feedback or _Feedback()
    model, usage = answer.model_version or model, _usage(answer.usage_metadata)
    if not answer.candidates and feedback.block_reason:
        said = ("prompt", feedback.block_reason, feedback.block_reason_message)
        return Reply(text="", stop="blocked", detail=_joined(*said), model=model, usage=usage, raw=body)
    if not answer.candidates:
        raise CallError("garbled", "the answer holds no candidate")
    candidate = answer.candidates[0]
    stop = stop_of(candidate.finish_reason, STOPS)
    parts = (candidate.content or _Content()).parts or ()
    return Reply(
        text="".join(part.text or "" for part in parts if not part.thought),
        stop=stop,
        detail=_joined(candidate.finish_reason, candidate.finish_message),
        model=model,
        usage=usage,
        raw=body,
    )


def explain(status: int | None, body: str) -> tuple[CallFault, str]:
    """What an error amounts to that came with `status` (None: in an answer of status 200), and the provider's words."""
    error, message = error_in(body)
    if status is None:
        code = error.get("code")
        return _fault(code if isinstance(code, int) else 500, body, message), f"status 200: {message}"
    return _fault(status, body, message), f"status {status}: {message}"


def delay(body: str) -> float | None:
    """Seconds that an error asks to be left alone (its RetryInfo), None where it does not say."""
    found = DELAY.search(body)
    return None if found is None else float(found[1])


def _fault(status: int, body: str, message: str) -> CallFault:
    fault = fault_of_status(status)
    if fault == "rate_limit" and DAY_IS_SPENT.search(body):
        return "quota"
    if fault != "request":
        return fault
    if WRONG_KEY.search(body):
        return "key"
    if TOO_LONG.search(message):
        return "too_long"
    return "schema" if NO_SCHEMA.search(message) else fault


def _joined(*words: str | None) -> str:
    return ": ".join(word for word in words if word)


def _usage(said: Any) -> Usage | None:
    if not isinstance(said, dict):
        return None
    thoughts = _written(said, "thoughtsTokenCount")
    return Usage(
        calls=1,
        prompt_tokens=token_count(said, "promptTokenCount"),
        completion_tokens=token_sum(_written(said, "candidatesTokenCount"), thoughts),
        cached_tokens=_written(said, "cachedContentTokenCount"),
        thinking_tokens=thoughts,
    )


def _written(usage: dict[str, Any], name: str) -> int | None:
    # The wire is proto3's JSON, which leaves fields of value 0 out: in a usage that is there, a count that is not is 0.
    return token_count(usage, name) if name in usage else 0
