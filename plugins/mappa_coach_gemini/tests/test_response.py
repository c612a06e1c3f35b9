"""What Google says, and what it amounts to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_coach_gemini.response import parse_error, parse_response, parse_retry_delay
from mappa_core import Usage
from mappa_core.transport import CallError, Reply

WORDS = st.sampled_from(
    ["candidates", "content", "parts", "text", "finishReason", "STOP", "usageMetadata", "error", "code"]
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


def answer(finish: Any = "STOP", parts: Any = ({"text": "Fine."},), **fields: Any) -> str:
    return json.dumps({"candidates": [{"content": {"parts": parts}, "finishReason": finish}], **fields})


@settings(deadline=None)
@given(ANY_JSON)
def test_any_json_is_a_reply_or_a_fault(value: Any) -> None:
    try:
        assert isinstance(parse_response(json.dumps(value), "asked"), Reply)
    except CallError as fault:
        assert fault.kind


@pytest.mark.parametrize(
    "finish",
    [None, "FINISH_REASON_UNSPECIFIED", "MALFORMED_RESPONSE", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "NEW"],
)
def test_an_unknown_stop_reason_is_garbled(finish: str | None) -> None:
    with pytest.raises(CallError, match=f"not known: {finish}") as error:
        parse_response(answer(finish), "asked")
    assert error.value.kind == "garbled"


@pytest.mark.parametrize(
    "finish",
    [
        "SAFETY",
        "RECITATION",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "LANGUAGE",
        "ESCALATION",
        "MODEL_ARMOR",
        "OTHER",
    ],
)
def test_a_blocked_reply_gives_its_reason(finish: str) -> None:
    said = {"candidates": [{"finishReason": finish, "finishMessage": "Not this."}]}
    reply = parse_response(json.dumps(said), "asked")
    assert (reply.text, reply.stop, reply.detail) == ("", "blocked", f"{finish}: Not this.")


def test_a_blocked_prompt_gives_its_reason() -> None:
    said = {"promptFeedback": {"blockReason": "BLOCKLIST", "blockReasonMessage": "Not this."}, "candidates": []}
    reply = parse_response(json.dumps(said), "asked")
    assert (reply.stop, reply.detail, reply.model) == ("blocked", "prompt: BLOCKLIST: Not this.", "asked")


def test_thoughts_are_no_part_of_the_reply() -> None:
    parts = [{"text": "Hm.", "thought": True}, {"text": "Fi"}, {"thoughtSignature": "c2ln"}, {"text": "ne."}]
    assert parse_response(answer(parts=parts), "asked").text == "Fine."


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        (None, None),
        ("many", None),
        # counts of 0 are left out, and nothing else is
        ({}, (None, 0, 0, 0)),
        ({"promptTokenCount": 5, "candidatesTokenCount": 3}, (5, 3, 0, 0)),
        ({"promptTokenCount": 5, "candidatesTokenCount": 3, "thoughtsTokenCount": 8}, (5, 11, 0, 8)),
        ({"promptTokenCount": 5, "thoughtsTokenCount": 8, "cachedContentTokenCount": 4}, (5, 8, 4, 8)),
        # one that is no number makes their sum unknown
        ({"promptTokenCount": "5", "candidatesTokenCount": 3, "thoughtsTokenCount": "8"}, (None, None, 0, None)),
        ({"promptTokenCount": 5.0, "candidatesTokenCount": True}, (None, None, 0, 0)),
        ({"promptTokenCount": 5, "candidatesTokenCount": None, "cachedContentTokenCount": None}, (5, None, None, 0)),
    ],
)
def test_usage_that_is_no_number_is_unknown_and_one_left_out_is_zero(
    said: Any, tokens: tuple[int | None, ...] | None
) -> None:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "thinking_tokens")
    expected = None if tokens is None else Usage(calls=1, **dict(zip(names, tokens, strict=True)))
    assert parse_response(answer(usageMetadata=said), "asked").usage == expected


REASON = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
DAY = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}
MINUTE = {"violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel"}]}


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"message": "API Key not found. Please pass a valid API key.", "details": [REASON]}, "key"),
        (400, {"message": "API key not valid. Please pass a valid API key."}, "key"),
        (400, {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}, "too_long"),
        (400, {"message": "Unknown name \"responseJsonSchema\" at 'generation_config'"}, "schema"),
        (400, {"message": "The specified schema produces a constraint that has too many states"}, "schema"),
        (400, {"message": "User location is not supported for the API use."}, "request"),
        (429, {"message": "You exceeded your current quota", "details": [DAY]}, "quota"),
        (429, {"message": "You exceeded your current quota", "details": [MINUTE]}, "rate_limit"),
        (500, {"message": "schema compiler crashed"}, "server"),
        # errors that come as a 200
        (None, {"message": "Slow down.", "code": 429}, "rate_limit"),
        (None, {"message": "?", "code": "odd"}, "server"),
        (None, "odd", "server"),
    ],
)
def test_an_error_is_classified_by_status_and_words(status: int | None, error: Any, kind: str) -> None:
    assert parse_error(status, json.dumps({"error": error}))[0] == kind
    assert parse_error(status, json.dumps([{"error": error}]))[0] == kind


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ('{"retryDelay": "17s"}', 17.0),
        ('{"retryDelay":"20.04466179s"}', 20.04466179),
        ('{"retryDelay": "soon"}', None),
        ("<html>", None),
    ],
)
def test_a_delay_is_read_where_there_is_one(body: str, seconds: float | None) -> None:
    assert parse_retry_delay(body) == seconds
