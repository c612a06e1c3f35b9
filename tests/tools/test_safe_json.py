"""The boundary for JSON that models write: what passes can be handled by everything behind it."""

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import ToolCall
from mappa_core.codec import from_json, to_json
from mappa_core.safe_json import MAX_CHARACTERS, MAX_DEPTH, MAX_DIGITS, parse_untrusted_json
from mappa_core.tools.chat_format import split_calls

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(SCALARS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@given(VALUES, st.booleans())
def test_json_values_survive_a_round_trip(value, ascii_only):
    assert parse_untrusted_json(json.dumps(value, ensure_ascii=ascii_only)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is no JSON: Expecting value at line 1, column 1"),
        ('{"a":\n 1', "it is no JSON: Expecting ',' delimiter at line 2, column 3"),
        ('["x', "it is no JSON: Unterminated string starting at line 1, column 2"),
        ("NaN", "it holds a number that is not finite, or too large or too long"),
        ("[-Infinity]", "it holds a number that is not finite, or too large or too long"),
        ("9" * 4301, "it holds a number that is not finite, or too large or too long"),
        (str(2**63), "it holds a number that is not finite, or too large or too long"),
        (str(-(2**63) - 1), "it holds a number that is not finite, or too large or too long"),
        ("1e999", "it holds a number that is not finite, or too large or too long"),
        ("0." + "1" * MAX_DIGITS, "it holds a number that is not finite, or too large or too long"),
        (nested(MAX_DEPTH + 1), f"it is nested deeper than {MAX_DEPTH} levels"),
        (nested(100_000), f"it is nested deeper than {MAX_DEPTH} levels"),
        ("[" * 1_000_000, f"it is nested deeper than {MAX_DEPTH} levels"),
        ('{"a":' * 1_000_000, f"it is nested deeper than {MAX_DEPTH} levels"),
        ('[{"a": 1, "a": 1}]', "a key occurs twice in it"),
        ('["\\ud800"]', "it holds half a character (an unpaired surrogate)"),
        ('{"\\udfff": 1}', "it holds half a character (an unpaired surrogate)"),
        ('"' + "x" * MAX_CHARACTERS + '"', f"it is longer than {MAX_CHARACTERS} characters"),
    ],
)
def test_document_beyond_a_limit_is_a_value_error_that_names_the_limit(text, message):
    with pytest.raises(ValueError) as error:
        parse_untrusted_json(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "text", [nested(MAX_DEPTH), str(2**63 - 1), str(-(2**63)), '"\\ud83d\\ude00"', "0." + "1" * 98]
)
def test_document_within_the_limits_is_parsed(text):
    assert parse_untrusted_json(text) == json.loads(text)


@pytest.mark.parametrize(
    "body",
    [
        '{"name":"python","arguments":' + "[" * 1_024,
        '{"name":"python","arguments":{"code":' + "[" * 1_000 + "]" * 1_000 + "}}",
        '{"name":"python","arguments":{"code":' + "1" * 4_301 + "}}",
        '{"name":"python","arguments":{"code":' + "1" * 4_300 + "}}",
        '{"name":"\\ud800","arguments":{}}',
    ],
)
def test_a_call_beyond_the_limits_is_a_malformed_call(body):
    said, (call,) = split_calls(f"so<tool_call>{body}</tool_call>")
    assert said == "so"
    assert call.name == "" and call.error.startswith("the call is not valid: it ")


@given(VALUES)
def test_whatever_passes_can_be_validated_stored_and_shown(value):
    text = json.dumps({"name": "f", "arguments": {"of": value}})
    _, (call,) = split_calls(f"<tool_call>{text}</tool_call>")
    assert call.error is None
    assert from_json(ToolCall, to_json(call)) == call
    jsonschema.Draft202012Validator({"type": "object"}).validate(dict(call.arguments))
    json.dumps(dict(call.arguments), allow_nan=False).encode()
