"""Faults by status, Retry-After in all its forms, and a key that shows nowhere."""

import copy
import json
import pickle
import re
import traceback
from base64 import b64encode, encodebytes, urlsafe_b64encode
from typing import get_args
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import ConfigError
from mappa_core.calls.errors import ErrorBody, ErrorParser, fault_from_status, one_line, retry_after
from mappa_core.calls.secret import Secret
from mappa_core.transport import CallFault

KEY = "sk-ant/PLANTED+0123456789=="


@pytest.mark.parametrize(
    ("fault", "statuses"),
    {
        "request": [301, 307, 400, 405, 418, 422, 499],
        "key": [401, 403],
        "quota": [402],
        "model": [404, 410],
        "timeout": [408],
        "server": [409, 500, 501, 502, 504, 520, 599],
        "too_long": [413],
        "rate_limit": [429],
        "overloaded": [503, 529],
        "garbled": [200, 201, 204, 600, 999],
    }.items(),
)
def test_the_fault_of_a_status(fault, statuses):
    assert [fault_from_status(status) for status in statuses] == [fault] * len(statuses)


@given(st.integers(100, 1000))
def test_every_status_has_a_fault(status):
    assert fault_from_status(status) in get_args(CallFault)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": " 0.5 "}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e999"}, None),
        ({"Date": "Wed, 21 Oct 2026 07:28:00 GMT", "Retry-After": "Wed, 21 Oct 2026 07:29:30 GMT"}, 90.0),
        ({"date": "Wed, 21 Oct 2026 07:28:00 GMT", "retry-after": "Wed, 21 Oct 2026 07:27:00 GMT"}, 0.0),
        ({"date": "Wed, 21 Oct 2026 07:28:00 GMT", "retry-after": "Wed Oct 21 07:28:05 2026"}, 5.0),
        ({"date": "Wed, 21 Oct 2026 07:28:00 GMT", "retry-after": "Wed, 21 Oct 2026 07:28:05 -0000"}, 5.0),
        ({"retry-after": f"Wed, 21 Oct {'9' * 30} 07:28:05 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:05 +99999999999999999999"}, None),
    ],
)
def test_retry_after_is_seconds_milliseconds_or_a_date(headers, seconds):
    assert retry_after(headers) == seconds


def test_without_the_servers_date_its_retry_after_is_read_by_our_clock():
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert retry_after({"retry-after": "Fri, 21 Oct 2155 07:28:00 GMT"}) > 1e9


dates = st.from_regex(
    r"[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{1,30} \d{1,3}:\d{1,3}:\d{1,3} ([A-Z]{1,4}|[+-]\d{1,30})"
)


@given(st.text(max_size=40) | dates, st.text(max_size=40) | dates)
def test_no_header_can_raise(first, second):
    seconds = retry_after({"retry-after": first, "retry-after-ms": second, "date": second})
    assert seconds is None or 0.0 <= seconds < float("inf")


# What a key shows.


@pytest.fixture
def secret(monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", f"  {KEY}\n")
    return Secret.from_env("GEMINI_API_KEY", "the coach gemini")


def test_a_secret_reveals_its_value_without_the_space_around_it(secret):
    assert secret.reveal() == KEY


def test_a_secret_shows_as_the_name_of_its_variable(secret):
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>60}", repr([secret])]
    assert all("GEMINI_API_KEY" in one and "PLANTED" not in one for one in shown)
    assert not hasattr(secret, "__dict__")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_is_not_pickled(secret, protocol):
    with pytest.raises(TypeError, match="GEMINI_API_KEY") as caught:
        pickle.dumps({"key": secret}, protocol)
    assert "PLANTED" not in str(caught.value)


@pytest.mark.parametrize("write", [copy.copy, copy.deepcopy, json.dumps, msgspec.json.encode, msgspec.to_builtins])
def test_a_secret_is_not_copied_or_written(secret, write):
    with pytest.raises(TypeError) as caught:
        write(secret)
    assert "PLANTED" not in str(caught.value)


def test_a_secret_does_not_show_in_a_traceback_with_locals(secret):
    def fail(key):
        again = key
        raise RuntimeError(f"no reply with {again}")

    with pytest.raises(RuntimeError) as caught:
        fail(secret)
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    text = "".join(shown.format())
    assert "Secret(GEMINI_API_KEY)" in text
    assert "PLANTED" not in text


@pytest.mark.parametrize("value", [None, "", "  \n"])
def test_a_missing_key_is_an_error_that_names_the_variable_and_who_needs_it(monkeypatch, value):
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("GEMINI_API_KEY", value)
    with pytest.raises(ConfigError, match=r"^GEMINI_API_KEY is not set or empty: the coach gemini needs its key"):
        Secret.from_env("GEMINI_API_KEY", "the coach gemini")


@pytest.mark.parametrize("value", [f"{KEY} and more", f"{KEY}\nX-Other: 1", f"{KEY}é", f"{KEY}\x1b"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(monkeypatch, value):
    monkeypatch.setenv("GEMINI_API_KEY", value)
    with pytest.raises(ConfigError, match="GEMINI_API_KEY holds characters that no key has") as caught:
        Secret.from_env("GEMINI_API_KEY", "the coach gemini")
    ours = traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack[-1]
    assert ours.name == "from_env"
    assert "PLANTED" not in str(caught.value) + str(ours.locals)


def test_a_key_in_place_of_the_name_of_its_variable_is_not_shown():
    with pytest.raises(ConfigError, match="the coach gemini needs the name of the environment variable") as caught:
        Secret.from_env(KEY, "the coach gemini")
    assert "PLANTED" not in str(caught.value)


@pytest.mark.parametrize(
    "quoted",
    [
        f"Authorization: Bearer {KEY}",
        "GET /v1/models?key=sk-ant%2FPLANTED%2B0123456789%3D%3D",
        "GET /v1/models?key=sk-ant%2fPLANTED%2b0123456789%3d%3d&x=1",
        f"{KEY}{KEY}, {KEY.lower()}",
    ],
)
def test_key_quoted_in_an_error_message_is_hidden(secret, quoted):
    hidden = secret.hide(f"401: {quoted}")
    assert "planted" not in hidden.lower()
    assert "[GEMINI_API_KEY]" in hidden
    assert hidden.startswith("401: ")


def test_error_message_is_cut_to_one_bounded_line_after_the_key_is_hidden(secret):
    assert secret.hide("<html>\n  <body>  502 </body>\n") == "<html> <body> 502 </body>"
    text = "x" * 490 + KEY
    assert secret.hide(text) == "x" * 490 + "[GEMINI_A…"
    assert secret.hide(text, limit=20) == "x" * 19 + "…"


@given(st.text(), st.integers(1, 40))
def test_a_line_is_bounded_and_without_breaks(text, limit):
    line = one_line(text, limit)
    assert len(line) <= limit
    assert line.splitlines() == [line][: bool(line)]


def test_only_the_key_is_removed_from_an_answer(secret):
    text = "x" * 999 + f'\n  "{KEY}", {KEY[:-4]}\n'
    assert secret.scrub(text) == "x" * 999 + f'\n  "[GEMINI_API_KEY]", {KEY[:-4]}\n'


DISGUISES = {
    "as it is": lambda key: key,
    "backwards": lambda key: key[::-1],
    "lower case": str.lower,
    "upper case": str.upper,
    "swapped case, backwards": lambda key: key[::-1].swapcase(),
    "hex": lambda key: key.encode().hex(),
    "HEX": lambda key: key.encode().hex().upper(),
    "in a URL": lambda key: quote(key, safe=""),
    "in a url": lambda key: quote(key, safe="").lower(),
    "spaced": " ".join,
    "in lines": lambda key: "\n".join(key[start : start + 5] for start in range(0, len(key), 5)),
    "in lines of JSON": lambda key: json.dumps("\n".join(key)),
    "base64": lambda key: b64encode(key.encode()).decode(),
    "base64 in lines": lambda key: encodebytes(key.encode() * 3).decode(),
    "base64 after one": lambda key: b64encode(b"x" + key.encode() + b"yz").decode(),
    "base64 after two": lambda key: b64encode(b"xx" + key.encode() + b"yz").decode(),
    "base64 after three": lambda key: b64encode(b"xxx" + key.encode() + b"yz").decode(),
    "base64 for URLs": lambda key: urlsafe_b64encode(b"?" + key.encode()).decode(),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_disguised_key_is_masked(secret, disguise):
    shown = DISGUISES[disguise](KEY)
    for masked in (secret.scrub(f'{{"echo": "{shown}"}}'), secret.hide(f"401: {shown} is wrong")):
        assert "[GEMINI_API_KEY]" in masked
        # What is left is what stands beside it, or a character whose bits are not only the key's.
        left = re.sub(r"\[GEMINI_API_KEY\]", "", masked)
        assert len(left.strip()) <= len('{"echo": ""}') + 14


def test_words_like_a_short_key_are_not_masked():
    secret = Secret("changeme", "PLACEHOLDER")
    kept = "Change me. CHANGEME, change\nme: these are words."
    assert secret.scrub(kept) == kept
    assert secret.scrub("emegnahc changeme") == "[PLACEHOLDER] [PLACEHOLDER]"


def test_masking_a_long_answer_takes_no_power_of_its_length(secret):
    """Every beginning of the key, but never the whole: a search that tries again at each of them does not end."""
    text = (" ".join(KEY[:-1]) + " ") * 20_000
    assert secret.scrub(text) == text
    assert secret.scrub(text + KEY).endswith("[GEMINI_API_KEY]")


def test_a_secret_has_a_value():
    with pytest.raises(ValueError, match="GEMINI_API_KEY has no value"):
        Secret("", "GEMINI_API_KEY")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab") | st.text(), inner, max_size=3),
    max_leaves=8,
)


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
    parser = ErrorParser(lambda error: kept.append(error) or error.status_fault)
    kept: list[ErrorBody] = []
    assert parser(400, body) == ("request", f"status 400: {message}")
    assert kept == [ErrorBody(400, fields, message, body)]


@given(ANY_JSON.map(json.dumps) | st.text())
def test_any_body_may_tell_of_an_error(body):
    for status in (None, 500):
        fault, message = ErrorParser()(status, body)
        assert fault in get_args(CallFault)
        assert message.startswith(f"status {status or 200}: ")


def test_error_code_in_a_body_with_status_200_decides_the_fault():
    assert ErrorParser()(None, '{"error": {"message": "No.", "code": 429}}') == ("rate_limit", "status 200: No.")
    assert ErrorParser()(None, '{"error": {"message": "No.", "code": "odd"}}') == ("server", "status 200: No.")
