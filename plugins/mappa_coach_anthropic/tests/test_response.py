"""What Anthropic says, and what it amounts to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_coach_anthropic.response import parse_error, parse_message
from mappa_core import Usage
from mappa_core.transport import CallError, Reply

WORDS = st.sampled_from(
    ["content", "type", "text", "stop_reason", "end_turn", "stop_details", "usage", "input_tokens", "error"]
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


def message(stop: Any = "end_turn", **fields: Any) -> str:
    return json.dumps({"content": [{"type": "text", "text": "Fine."}], "stop_reason": stop, **fields})


@settings(deadline=None)
@given(ANY_JSON)
def test_any_json_is_a_reply_or_a_fault(value: Any) -> None:
    try:
        assert isinstance(parse_message(json.dumps(value), "asked"), Reply)
    except CallError as fault:
        assert fault.kind


@pytest.mark.parametrize("stop", [None, "tool_use", "pause_turn", "bored"])
def test_an_unknown_stop_reason_is_garbled(stop: str | None) -> None:
    with pytest.raises(CallError, match=f"not known: {stop}") as error:
        parse_message(message(stop), "asked")
    assert error.value.kind == "garbled"


def test_only_text_blocks_are_part_of_the_reply() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "AAAA"},
        {"type": "text", "text": "Fi"},
        {"type": "weird", "text": "odd"},
        {"type": "text", "text": "ne."},
    ]
    assert parse_message(message(content=blocks), "asked").text == "Fine."


@pytest.mark.parametrize(
    ("details", "detail"),
    [
        (None, "refusal"),
        ({"category": None, "explanation": None}, "refusal"),
        ({"category": "cyber"}, "refusal: cyber"),
        ({"explanation": "Declined."}, "refusal: Declined."),
    ],
)
def test_a_refusal_gives_its_reason_where_there_is_one(details: Any, detail: str) -> None:
    reply = parse_message(message("refusal", stop_details=details), "asked")
    assert (reply.stop, reply.detail) == ("blocked", detail)


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        (None, None),
        ("many", None),
        ({}, (None, None, None, None)),
        # three counts that exclude each other
        (
            {"input_tokens": 200, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 30},
            (1230, None, 1000, None),
        ),
        ({"input_tokens": 200, "cache_read_input_tokens": None, "output_tokens": 3}, (200, 3, None, None)),
        # one that is no number makes their sum unknown
        ({"input_tokens": "200", "cache_read_input_tokens": 1000}, (None, None, 1000, None)),
        ({"input_tokens": 200, "cache_creation_input_tokens": "30"}, (None, None, None, None)),
        ({"input_tokens": True, "output_tokens": 2.0, "output_tokens_details": "x"}, (None, None, None, None)),
        ({"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 8}}, (None, 9, None, 8)),
    ],
)
def test_usage_that_is_no_number_is_unknown(said: Any, tokens: tuple[int | None, ...] | None) -> None:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "thinking_tokens")
    expected = None if tokens is None else Usage(calls=1, **dict(zip(names, tokens, strict=True)))
    assert parse_message(message(usage=said), "asked").usage == expected


@pytest.mark.parametrize(
    ("status", "kind", "words", "fault"),
    [
        (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API.", "quota"),
        (403, "billing_error", "Pay first.", "quota"),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", "too_long"),
        (400, "invalid_request_error", "input length and `max_tokens` exceed context limit", "too_long"),
        (400, "invalid_request_error", "output_config.format: not on this model", "schema"),
        (400, "invalid_request_error", "max_tokens: must be greater than thinking.budget_tokens", "request"),
        (500, "api_error", "schema compiler crashed", "server"),
        (529, "overloaded_error", "Overloaded", "overloaded"),
        # errors that come as a 200
        (None, "overloaded_error", "Overloaded", "overloaded"),
        (None, "rate_limit_error", "Slow down.", "rate_limit"),
        (None, "billing_error", "Pay first.", "quota"),
        (None, "invalid_request_error", "prompt is too long", "too_long"),
        (None, "brand_new_error", "?", "server"),
        (None, ["odd"], "?", "server"),
    ],
)
def test_an_error_is_classified_by_status_and_words(status: int | None, kind: Any, words: str, fault: str) -> None:
    body = json.dumps({"type": "error", "error": {"type": kind, "message": words}})
    assert parse_error(status, body) == (fault, f"status {status or 200}: {words}")
