"""What a provider answers: a shape, an error, an end, a number of tokens, or none of these."""

import pytest
from msgspec import Struct

from mappa_core.calls.errors import ErrorParser
from mappa_core.calls.parse import decode_answer, join_details, map_stop_reason, parse_usage
from mappa_core.transport import CallError


class Answer(Struct):
    text: str
    model: str | None = None


def test_answer_is_decoded_and_unknown_fields_are_ignored():
    assert decode_answer('{"text": "yes", "id": 7}', Answer) == Answer(text="yes")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "garbled: Input data was truncated, in the answer ''"),
        ("<html>\n 502 </html>", "in the answer '<html> 502 </html>'"),
        ("null", "garbled: Expected `object`, got `null`, in the answer 'null'"),
        ('{"text": 7}', "garbled: Expected `str`, got `int` - at `$.text`, in the answer '{\"text\": 7}'"),
        ("{}", "missing required field `text`"),
    ],
)
def test_an_answer_of_another_shape_is_garbled_and_quoted(body, words):
    with pytest.raises(CallError) as caught:
        decode_answer(body, Answer)
    assert caught.value.kind == "garbled"
    assert words in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_long_answer_is_quoted_in_part():
    with pytest.raises(CallError) as caught:
        decode_answer("<p>" * 99_999, Answer)
    assert len(str(caught.value)) < 600


def test_unknown_stop_reason_is_an_error():
    known = {"stop": "end", "content_filter": "blocked"}
    assert [map_stop_reason(reason, known) for reason in known] == ["end", "blocked"]
    for reason in (None, "abort", "x" * 9999):
        with pytest.raises(CallError, match=f"garbled: .* not known: {reason}"[:60]) as caught:
            map_stop_reason(reason, known)
        assert len(str(caught.value)) < 600


def test_an_error_with_status_200_is_raised():
    class Maybe(Struct):
        error: object = None

    said = '{"error": {"message": "Slow down.", "code": 429}}'
    assert decode_answer(said, Maybe).error is not None
    assert decode_answer('{"error": null}', Maybe, ErrorParser()).error is None
    with pytest.raises(CallError, match="rate_limit: status 200: Slow down"):
        decode_answer(said, Maybe, ErrorParser())


def test_details_that_are_known_are_joined():
    assert join_details("refusal", None, "", "cyber") == "refusal: cyber"


@pytest.mark.parametrize(
    ("said", "path", "count"),
    [
        ({"a": 7}, "a", 7),
        ({"a": 0}, "a", 0),
        ({"a": {"b": 7}}, "a.b", 7),
        ({"a": {"b": 7}}, "a", None),
        ({"a": None}, "a.b", None),
        ({"a": [7]}, "a.b", None),
        ({}, "a", None),
        ({"a": -1}, "a", None),
        ({"a": 7.0}, "a", None),
        ({"a": "7"}, "a", None),
        ({"a": True}, "a", None),
        ({"a": 5, "b": 0, "c": 8}, ("a", "b", "c"), 13),
        ({"a": 5, "b": None}, ("a", "b"), None),
        ({"a": 5, "x": None}, ("a", "x"), 5),  # x is optional
        ({"a": 5}, ("a", "x"), 5),
        ({"a": 5, "x": "8"}, ("a", "x"), None),
        ({"x": None}, "x", None),
    ],
)
def test_a_number_of_tokens_is_a_whole_number_or_unknown(said, path, count):
    usage = parse_usage(said, prompt=path, completion="nothing", optional=("x",))
    assert (usage.prompt_tokens, type(usage.prompt_tokens)) == (count, type(count))
    assert usage.completion_tokens is usage.cached_tokens is usage.thinking_tokens is None


@pytest.mark.parametrize("value", [None, "many", 7, [7]])
def test_usage_that_is_no_object_is_unknown(value):
    assert parse_usage(value, prompt="a", completion="b") is None
