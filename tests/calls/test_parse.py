"""What a provider answers: a shape, an error, an end, a number of tokens, or none of these."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from mappa_core.calls.parse import decode_answer, error_in, stop_of, token_count, token_sum
from mappa_core.errors import CallError

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab") | st.text(), inner, max_size=3),
    max_leaves=8,
)


class Answer(Struct):
    text: str
    model: str | None = None


def test_an_answer_is_decoded_and_what_nobody_asked_for_ignored():
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


@pytest.mark.parametrize(
    ("body", "fields", "message"),
    [
        ('{"error": {"message": "No.", "code": 400}}', {"message": "No.", "code": 400}, "No."),
        ('[{"error": {"message": "No."}}]', {"message": "No."}, "No."),
        ('{"error": "No."}', {"message": "No."}, "No."),
        ('{"message": "No.", "code": 400}', {"message": "No.", "code": 400}, "No."),
        ('{"error": {"message": ["No."]}}', {"message": ["No."]}, '{"error": {"message": ["No."]}}'),
        ('{"detail": "Not Found"}\n', {"detail": "Not Found"}, '{"detail": "Not Found"}'),
        ("[1, 2]", {"message": None}, "[1, 2]"),
        (" <html>bad</html>\n", {"message": None}, "<html>bad</html>"),
        ("", {"message": None}, ""),
    ],
)
def test_an_error_is_found_however_it_is_wrapped(body, fields, message):
    assert error_in(body) == (fields, message)


@given(ANY_JSON.map(json.dumps) | st.text())
def test_any_body_may_tell_of_an_error(body):
    fields, message = error_in(body)
    assert isinstance(fields, dict)
    assert isinstance(message, str)


def test_an_end_that_is_not_known_is_no_reply():
    known = {"stop": "end", "content_filter": "blocked"}
    assert [stop_of(reason, known) for reason in known] == ["end", "blocked"]
    for reason in (None, "abort", "x" * 9999):
        with pytest.raises(CallError, match=f"garbled: .* not known: {reason}"[:60]) as caught:
            stop_of(reason, known)
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("said", "path", "count"),
    [
        (7, (), 7),
        (0, (), 0),
        ({"a": 7}, ("a",), 7),
        ({"a": {"b": 7}}, ("a", "b"), 7),
        ({"a": {"b": 7}}, ("a",), None),
        ({"a": None}, ("a", "b"), None),
        ({"a": [7]}, ("a", "b"), None),
        ({}, ("a",), None),
        (None, ("a",), None),
        (None, (), None),
        (-1, (), None),
        (7.0, (), None),
        ("7", (), None),
        (True, (), None),
    ],
)
def test_a_number_of_tokens_is_a_whole_number_or_unknown(said, path, count):
    found = token_count(said, *path)
    assert (found, type(found)) == (count, type(count))


@pytest.mark.parametrize(
    ("counts", "total"), [((), 0), ((5,), 5), ((5, 0, 8), 13), ((5, None), None), ((None,), None), ((0, 0), 0)]
)
def test_a_sum_is_unknown_where_a_part_is(counts, total):
    assert token_sum(*counts) == total
