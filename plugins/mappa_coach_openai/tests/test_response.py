"""What a server says, and what it amounts to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_coach_openai.response import parse_chat_completion, parse_error, parse_response
from mappa_core import Usage
from mappa_core.transport import CallError, Reply

WORDS = st.sampled_from(
    [
        "choices",
        "message",
        "content",
        "finish_reason",
        "stop",
        "usage",
        "prompt_tokens",
        "error",
        "code",
        "output",
        "status",
    ]
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


def chat(finish: Any = "stop", content: Any = "Fine.", **fields: Any) -> str:
    return json.dumps({"choices": [{"message": {"content": content}, "finish_reason": finish}], **fields})


@settings(deadline=None)
@given(ANY_JSON)
def test_any_json_is_a_reply_or_a_fault(value: Any) -> None:
    for read in (parse_chat_completion, parse_response):
        try:
            assert isinstance(read(json.dumps(value), "asked"), Reply)
        except CallError as fault:
            assert fault.kind


@pytest.mark.parametrize("finish", [None, "tool_calls", "abort", "eos", "insufficient_system_resource"])
def test_an_unknown_stop_reason_is_garbled(finish: str | None) -> None:
    with pytest.raises(CallError, match=f"not known: {finish}") as error:
        parse_chat_completion(chat(finish), "asked")
    assert error.value.kind == "garbled"


@pytest.mark.parametrize("status", [None, "queued", "in_progress", "cancelled", "incomplete"])
def test_a_response_under_way_is_garbled(status: str | None) -> None:
    with pytest.raises(CallError, match="not known") as error:
        parse_response(json.dumps({"status": status, "output": []}), "asked")
    assert error.value.kind == "garbled"


def test_a_reply_with_few_fields_is_read() -> None:
    reply = parse_chat_completion(chat(content=None), "asked")
    assert (reply.text, reply.stop, reply.model, reply.usage) == ("", "end", "asked", None)


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        (None, None),
        ("many", None),
        ({}, (None, None, None, None)),
        ({"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": None}, (5, 3, None, None)),
        ({"prompt_tokens": "5", "completion_tokens": True, "prompt_tokens_details": "x"}, (None, None, None, None)),
        ({"prompt_tokens": 5.0, "completion_tokens": -1}, (None, None, None, None)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}, (5, None, 4, None)),
        ({"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 8}}, (None, 9, None, 8)),
    ],
)
def test_usage_that_is_no_number_is_unknown(said: Any, tokens: tuple[int | None, ...] | None) -> None:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "thinking_tokens")
    expected = None if tokens is None else Usage(calls=1, **dict(zip(names, tokens, strict=True)))
    assert parse_chat_completion(chat(usage=said), "asked").usage == expected


def test_thoughts_are_no_part_of_the_reply() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    said = {
        "type": "message",
        "content": [{"type": "output_text", "text": "Fi"}, {"type": "output_text", "text": "ne."}],
    }
    assert parse_response(json.dumps({"status": "completed", "output": [thought, said]}), "asked").text == "Fine."


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        # an error's own code says more than its status
        (429, {"message": "You are out.", "code": "insufficient_quota"}, "quota"),
        (429, {"message": "Pay first.", "code": "billing_not_active"}, "quota"),
        (402, {"message": "Insufficient credits"}, "quota"),
        # too long, as OpenAI, vLLM and llama.cpp say it
        (400, {"message": "Your input exceeds the context window", "code": "context_length_exceeded"}, "too_long"),
        (400, {"message": "This model's maximum context length is 4096 tokens.", "code": 400}, "too_long"),
        (400, {"message": "request (9 tokens) exceeds the available context size", "type": "x"}, "too_long"),
        (500, {"message": "Context size has been exceeded.", "type": "server_error"}, "too_long"),
        # structured output that the server cannot do
        (400, {"message": "Unknown parameter: 'response_format'."}, "schema"),
        (400, {"message": "Invalid value", "param": "text.format"}, "schema"),
        (400, {"message": 'Either "json_schema" or "grammar" can be specified'}, "schema"),
        (422, {"message": "structured outputs are off"}, "schema"),
        (400, {"message": "Unsupported value: 'temperature' does not support 0"}, "request"),
        (500, {"message": "schema compiler crashed"}, "server"),
        # errors that come as a 200
        (None, {"message": "slow down", "code": 429}, "rate_limit"),
        (None, {"message": "too big", "code": 400, "type": "exceed_context_size_error"}, "too_long"),
        (None, {"message": "x", "code": "rate_limit_exceeded"}, "rate_limit"),
        (None, {"message": "x", "code": "model_not_found"}, "model"),
        (None, {"message": "x", "type": "invalid_request_error"}, "request"),
        (None, {"message": "x", "code": ["odd"], "type": {"odd": 1}}, "server"),
        (None, "the model is not loaded", "server"),
    ],
)
def test_an_error_is_classified_by_status_and_words(status: int | None, error: Any, kind: str) -> None:
    assert parse_error(status, json.dumps({"error": error}))[0] == kind


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"error": {"message": "No."}}', "No."),
        ('{"object": "error", "message": "No.", "code": 400}', "No."),
        ('{"detail": "Not Found"}', '{"detail": "Not Found"}'),
        (" <html>bad</html>\n", "<html>bad</html>"),
        ("", ""),
    ],
)
def test_an_error_is_told_in_the_servers_own_words(body: str, words: str) -> None:
    assert parse_error(400, body)[1] == f"status 400: {words}"
