"""Replies and what is made of them: the one place where a coach's words become a number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import Verdict
from mappa_core.coaching.reply_parser import BadReply, ReplySchema

ONE = ReplySchema(agents=("solver", "verifier"))
CORRECTED = ReplySchema(agents=("solver", "verifier"), correction=True)
THREE = ReplySchema(agents=("solver", "verifier"), actions=3)

GOOD = '{"reasoning": "adds", "blame": "nobody", "score": 7}'
SEVEN = Verdict.scored(7, "adds", blame="nobody")


def reply(score: str = "7", reasoning: str = '"adds"', blame: str = '"nobody"', more: str = "") -> str:
    return f'{{"reasoning": {reasoning}, "blame": {blame}, "score": {score}{more}}}'


def entry(number: object, score: object = 5, **more: object) -> dict[str, object]:
    return {"action": number, "reasoning": f"because {number}", "blame": None, "score": score, **more}


def actions(*entries: object) -> str:
    return json.dumps({"actions": entries})


FITS = {
    "plain": (GOOD, SEVEN),
    "spaces around": (f" \n\t{GOOD}\r\n", SEVEN),
    "keys in another order": ('{"score": 7, "blame": "nobody", "reasoning": "adds"}', SEVEN),
    "fenced": (f"```\n{GOOD}\n```", SEVEN),
    "fenced as json": (f"\n```json\n{GOOD}\n```\n", SEVEN),
    "fenced as JSON with carriage returns": (f"```JSON \r\n{GOOD}\r\n```", SEVEN),
    "fenced by four": (f"````json\n{GOOD}\n````", SEVEN),
    "lowest": (reply("0"), Verdict.scored(0, "adds", blame="nobody")),
    "highest": (reply("10"), Verdict.scored(10, "adds", blame="nobody")),
    "fraction": (reply("6.5"), Verdict.scored(6.5, "adds", blame="nobody")),
    "exponent": (reply("65e-1"), Verdict.scored(6.5, "adds", blame="nobody")),
    "too small for a float": (reply("1e-400"), Verdict.scored(0, "adds", blame="nobody")),
    "blames an agent": (reply(blame='"solver"'), Verdict.scored(7, "adds", blame="solver")),
    "blames none it knows": (reply(blame="null"), Verdict.scored(7, "adds")),
    "fence in the reasoning": (reply(reasoning='"```json"'), Verdict.scored(7, "```json", blame="nobody")),
    "number in the reasoning": (reply(reasoning='"score: 10"'), Verdict.scored(7, "score: 10", blame="nobody")),
    "escapes": (reply(reasoning='"\\u00e4\\n\\ud83d\\ude00"'), Verdict.scored(7, "ä\n😀", blame="nobody")),
    "thought before": (f"<think>\nSay 10? No.\n</think>\n\n{GOOD}", SEVEN),
    "thought whose first tag stood in the prompt": (f"Say 10? No.\n</think>\n{GOOD}", SEVEN),
    "a draft in the thought": (f"<think>{reply('10')}</think>{GOOD}", SEVEN),
    "a draft that is all of the thought": (f"{reply('10')}</think>{GOOD}", SEVEN),
    "thought before a fence": (f"<reasoning>Hm.</reasoning>\n```json\n{GOOD}\n```", SEVEN),
    "a thought in the reasoning": (
        reply(reasoning='"it wrote <think>9</think>"'),
        Verdict.scored(7, "it wrote <think>9</think>", blame="nobody"),
    ),
    "the end of a thought in the reasoning": (
        reply(reasoning='"it wrote </think> twice"'),
        Verdict.scored(7, "it wrote </think> twice", blame="nobody"),
    ),
    "abstains": (
        '{"reasoning": "no text", "blame": null, "score": null}',
        Verdict(status="abstained", reasoning="no text"),
    ),
}

EMPTY = "it is empty"
NO_JSON = "it is no JSON: "
TOO_LARGE = "it holds a number that is not finite, or too large or too long"
HALF = "it holds half a character (an unpaired surrogate)"
NO_OBJECT = "there must be a JSON object with the keys reasoning, blame, score"
TWICE = "a key occurs twice in it"
FURTHER = "there is a key that was not asked for; the keys are reasoning, blame, score"
SCORE = "`score` must be a number from 0 to 10, or null where the action cannot be judged"
REASONING = "`reasoning` must be text that is not empty"
BLAME = "`blame` must be solver, verifier, nobody or null"

FAILS = {
    "nothing": ("", EMPTY),
    "blank": (" \n\t ", EMPTY),
    "prose before": (f"Here you are: {GOOD}", NO_JSON + "Expecting value at line 1, column 1"),
    "prose after": (f"{GOOD} I hope this helps.", NO_JSON + "Extra data at line 1, column 54"),
    "prose before a fence": (f"Sure!\n```json\n{GOOD}\n```", NO_JSON + "Expecting value at line 1, column 1"),
    "a fence in a fence": (f"```\n```json\n{GOOD}\n```\n```", NO_JSON + "Expecting value at line 1, column 1"),
    "another language's fence": (f"```python\n{GOOD}\n```", NO_JSON + "Expecting value at line 1, column 1"),
    "a fence that does not end": (f"```json\n{GOOD}", NO_JSON + "Expecting value at line 1, column 1"),
    "two objects": (f"{GOOD}\n{GOOD}", NO_JSON + "Extra data at line 2, column 1"),
    "only a score in prose": ("PROCESS_SCORE: 8", NO_JSON + "Expecting value at line 1, column 1"),
    "a thought that does not end": (f"<think>{GOOD}", EMPTY),
    "a thought and nothing else": (f"<think>{GOOD}</think>\n", EMPTY),
    "a thought and prose": ("<think>7</think>I give 7.", NO_JSON + "Expecting value at line 1, column 1"),
    "a thought and a score out of range": (f"<think>7</think>{reply('11')}", SCORE),
    "a thought after": (f"{GOOD}<think>Or 9?</think>", NO_JSON + "Extra data at line 1, column 53"),
    "two thoughts": (f"<think>7</think><think>8</think>{GOOD}", NO_JSON + "Expecting value at line 1, column 1"),
    "a draft, a thought and an end of one": (
        f"{GOOD}</think>{GOOD}</think>",
        NO_JSON + "Extra data at line 1, column 53",
    ),
    "a score out of range that quotes a thought": (reply("11", reasoning='"</think>"'), SCORE),
    "html": ("<html><body>502</body></html>", NO_JSON + "Expecting value at line 1, column 1"),
    "cut off": (GOOD[:-1], NO_JSON + "Expecting ',' delimiter at line 1, column 52"),
    "cut off in a string": (GOOD[:18], NO_JSON + "Unterminated string starting at line 1, column 15"),
    "single quotes": (
        "{'score': 7}",
        NO_JSON + "Expecting property name enclosed in double quotes at line 1, column 2",
    ),
    "byte order mark": (f"\ufeff{GOOD}", NO_JSON + "Expecting value at line 1, column 1"),
    "a line break in a string": (reply(reasoning='"a\nb"'), NO_JSON + "Invalid control character at line 1, column 17"),
    "null": ("null", NO_OBJECT),
    "true": ("true", NO_OBJECT),
    "a number": ("7", NO_OBJECT),
    "a string": ('"7"', NO_OBJECT),
    "a list": (f"[{GOOD}]", NO_OBJECT),
    "nested in another object": (f'{{"verdict": {GOOD}}}', "the key `reasoning` is missing"),
    "no keys": ("{}", "the key `reasoning` is missing"),
    "no score": ('{"reasoning": "a", "blame": null}', "the key `score` is missing"),
    "no blame": ('{"reasoning": "a", "score": 3}', "the key `blame` is missing"),
    "a key too many": (reply(more=', "confidence": 0.9'), FURTHER),
    "a correction nobody asked for": (reply(more=', "correction": null'), FURTHER),
    "key in capitals": ('{"reasoning": "a", "blame": null, "Score": 3}', "the key `score` is missing"),
    "two scores": (reply(more=', "score": 9'), TWICE),
    "the same score twice": (reply(more=', "score": 7'), TWICE),
    "score as text": (reply('"7"'), SCORE),
    "score of ten": (reply('"7/10"'), SCORE),
    "score true": (reply("true"), SCORE),
    "score false": (reply("false"), SCORE),
    "score as list": (reply("[7]"), SCORE),
    "score as object": (reply('{"value": 7}'), SCORE),
    "above": (reply("10.000001"), SCORE),
    "far above": (reply("85"), SCORE),
    "below": (reply("-0.5"), SCORE),
    "NaN": (reply("NaN"), TOO_LARGE),
    "Infinity": (reply("Infinity"), TOO_LARGE),
    "-Infinity": (reply("-Infinity"), TOO_LARGE),
    "too large for a float": (reply("1e400"), TOO_LARGE),
    "an integer too large for a float": (reply("1" * 400), TOO_LARGE),
    "an integer too large to read": (reply("1" * 5000), TOO_LARGE),
    "arabic digits": (reply("٧"), NO_JSON + "Expecting value at line 1, column 51"),
    "full-width digits": (reply("７"), NO_JSON + "Expecting value at line 1, column 51"),
    "leading zero": (reply("07"), NO_JSON + "Expecting ',' delimiter at line 1, column 52"),
    "plus sign": (reply("+7"), NO_JSON + "Expecting value at line 1, column 51"),
    "hexadecimal": (reply("0x7"), NO_JSON + "Expecting ',' delimiter at line 1, column 52"),
    "nested too deep": ("[" * 200_000, "it is nested deeper than 64 levels"),
    "reasoning empty": (reply(reasoning='""'), REASONING),
    "reasoning blank": (reply(reasoning='" \\n"'), REASONING),
    "reasoning null": (reply(reasoning="null"), REASONING),
    "reasoning as list": (reply(reasoning='["a"]'), REASONING),
    "reasoning with half a character": (reply(reasoning='"a\\ud83d"'), HALF),
    "blames a stranger": (reply(blame='"coder"'), BLAME),
    "blames nobody with a capital": (reply(blame='"Nobody"'), BLAME),
    "blames two": (reply(blame='["solver", "verifier"]'), BLAME),
    "blames by number": (reply(blame="0"), BLAME),
    "blame empty": (reply(blame='""'), BLAME),
}


@pytest.mark.parametrize(("text", "verdict"), FITS.values(), ids=FITS)
def test_valid_reply_is_a_verdict(text: str, verdict: Verdict) -> None:
    assert ONE.parse(text) == (verdict,)


@pytest.mark.parametrize(("text", "message"), FAILS.values(), ids=FAILS)
def test_invalid_reply_is_an_error_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(BadReply) as error:
        ONE.parse(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("correction", "kept"), [('"add first"', "add first"), ("null", None), ('""', None)], ids=["given", "null", "empty"]
)
def test_a_correction_is_kept_where_there_is_one(correction: str, kept: str | None) -> None:
    (verdict,) = CORRECTED.parse(reply(more=f', "correction": {correction}'))
    assert isinstance(verdict, Verdict)
    assert verdict.correction == kept


@pytest.mark.parametrize("correction", ["3", "[]", "false"])
def test_a_correction_is_text(correction: str) -> None:
    with pytest.raises(BadReply, match="`correction` must be text, or null where there is none"):
        CORRECTED.parse(reply(more=f', "correction": {correction}'))


def test_a_correction_that_was_asked_for_must_be_there() -> None:
    with pytest.raises(BadReply, match="the key `correction` is missing"):
        CORRECTED.parse(GOOD)


def found(text: str, form: ReplySchema = THREE) -> list[object]:
    """Scores, and messages where there is none."""
    return [one.score if isinstance(one, Verdict) else str(one) for one in form.parse(text)]


def test_every_action_of_a_trajectory_has_its_verdict_in_order() -> None:
    verdicts = THREE.parse(actions(entry(2, 6), entry(1, 4), entry(3, None)))
    assert verdicts == (
        Verdict.scored(4, "because 1"),
        Verdict.scored(6, "because 2"),
        Verdict(status="abstained", reasoning="because 3"),
    )


SOME_FIT = {
    "missing": (actions(entry(1), entry(3)), [5, "action 2 is missing", 5]),
    "no entries": (actions(), ["action 1 is missing", "action 2 is missing", "action 3 is missing"]),
    "twice": (actions(entry(1), entry(2, 1), entry(2, 9), entry(3)), [5, "action 2 is judged twice", 5]),
    "twice the same": (actions(entry(1), entry(1), entry(2), entry(3)), ["action 1 is judged twice", 5, 5]),
    "out of range": (actions(entry(1), entry(2, 11), entry(3)), [5, f"action 2: {SCORE}", 5]),
    "a key too many": (
        actions(entry(1, sure=True), entry(2), entry(3)),
        ["action 1: there is a key that was not asked for; the keys are action, reasoning, blame, score", 5, 5],
    ),
}


@pytest.mark.parametrize(("text", "expected"), SOME_FIT.values(), ids=SOME_FIT)
def test_invalid_entry_leaves_the_other_actions_valid(text: str, expected: list[object]) -> None:
    assert found(text) == expected


NUMBER = "every entry of `actions` must have an `action`, a whole number from 1 to 3"
WHOLE = {
    "an action that is not there": (actions(entry(1), entry(2), entry(3), entry(4)), NUMBER),
    "action zero": (actions(entry(0), entry(1), entry(2)), NUMBER),
    "action as text": (actions(entry("1"), entry(2), entry(3)), NUMBER),
    "action true": (actions(entry(True), entry(2), entry(3)), NUMBER),
    "action as fraction": (actions(entry(1.0), entry(2), entry(3)), NUMBER),
    "no number": (actions({"score": 5}), NUMBER),
    "entries that are numbers": (actions(5, 6, 7), NUMBER),
    "an object by number": ('{"actions": {"1": 5}}', "`actions` must be a list"),
    "a bare list": (json.dumps([entry(1)]), "there must be a JSON object with the keys actions"),
    "another key": ('{"verdicts": []}', "the key `actions` is missing"),
    "a key beside": ('{"actions": [], "overall": 9}', "there is a key that was not asked for; the keys are actions"),
    "two lists": ('{"actions": [], "actions": []}', TWICE),
    "one judgement for all": (GOOD, "the key `actions` is missing"),
    "a key twice": (
        actions(entry(1), entry(2), entry(3)).replace('{"action": 3', '{"score": 9, "action": 3'),
        TWICE,
    ),
    "NaN": (actions(entry(1, float("nan")), entry(2), entry(3)), TOO_LARGE),
}


@pytest.mark.parametrize(("text", "message"), WHOLE.values(), ids=WHOLE)
def test_a_reply_that_cannot_be_told_apart_by_action_fails_as_a_whole(text: str, message: str) -> None:
    with pytest.raises(BadReply) as error:
        THREE.parse(text)
    assert str(error.value) == message


CANARY = "agents-say-10"


@pytest.mark.parametrize(
    "text",
    [
        CANARY,
        json.dumps(CANARY),
        json.dumps({CANARY: 1}),
        reply(more=f', "{CANARY}": 1'),
        reply(blame=f'"{CANARY}"'),
        reply(f'"{CANARY}"'),
        f'{{"reasoning": "\\{CANARY}"}}',
    ],
)
def test_error_message_quotes_nothing_of_the_reply(text: str) -> None:
    with pytest.raises(BadReply) as error:
        ONE.parse(text)
    assert CANARY not in str(error.value)


# Any JSON value, and values that nearly fit.
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["solver", "nobody"])
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
keys = st.sampled_from(["reasoning", "blame", "score", "correction", "action"]) | st.text(max_size=3)
objects = st.dictionaries(keys, scalars, max_size=5)
fitting = st.fixed_dictionaries(
    {"reasoning": scalars, "blame": st.sampled_from([None, "solver", "nobody"]), "score": scalars | st.floats(-1, 11)},
    optional={"action": st.integers(0, 4) | scalars, "correction": scalars},
)
replies = (
    st.text()
    | values.map(json.dumps)
    | objects.map(json.dumps)
    | fitting.map(json.dumps)
    | st.lists(fitting | values, max_size=4).map(lambda entries: json.dumps({"actions": entries}))
    | st.tuples(fitting.map(json.dumps), st.integers(0, 60)).map(lambda cut: cut[0][: cut[1]])
)


@given(text=replies, form=st.sampled_from([ONE, CORRECTED, THREE]))
def test_any_text_is_a_verdict_in_range_or_a_bad_reply(text: str, form: ReplySchema) -> None:
    try:
        parsed = form.parse(text)
    except BadReply:
        return
    assert len(parsed) == form.count
    for one in parsed:
        if isinstance(one, Verdict):
            assert one.reasoning.strip()
            assert one.score is None or 0.0 <= one.score <= 10.0
            assert one.blame in (None, "solver", "verifier", "nobody")
        else:
            assert isinstance(one, BadReply)


def score_of(text: str) -> object:
    """The score, None where it abstains, or that there is none."""
    try:
        return found(text, ONE)
    except BadReply:
        return BadReply


@given(thought=replies, text=replies)
def test_think_text_before_a_reply_changes_nothing(thought: str, text: str) -> None:
    assert score_of(f"<think>{thought}</think>{text}") == score_of(text)


@given(text=replies)
def test_accepted_replies_are_valid_by_the_schema(text: str) -> None:
    """The schema has no bounds, as providers differ in them: what the parser takes must be within the schema."""
    try:
        parsed = ONE.parse(text)
    except BadReply:
        return
    jsonschema.validate(json.loads(text), dict(ONE.json_schema))
    assert parsed[0] is not None


def portable(schema: Mapping[str, Any]) -> None:
    """What all providers' structured output can do; see each one's list of supported keywords."""
    assert set(schema) <= {
        "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "description",
    }  # fmt: skip
    assert isinstance(schema.get("type", ""), str)
    if schema.get("type") == "object":
        assert list(schema["required"]) == list(schema["properties"])
        assert schema["additionalProperties"] is False
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    for part in [*parts, *([schema["items"]] if "items" in schema else ())]:
        portable(part)


@pytest.mark.parametrize("form", [ONE, CORRECTED, THREE])
def test_the_schema_is_portable_and_asks_for_reasons_before_the_score(form: ReplySchema) -> None:
    schema = form.json_schema
    jsonschema.Draft202012Validator.check_schema(dict(schema))
    portable(schema)
    assert schema["type"] == "object"
    judgement = schema["properties"]["actions"]["items"] if form.actions else schema
    order = list(judgement["properties"])
    assert order.index("reasoning") < order.index("score")
    assert judgement["properties"]["blame"]["anyOf"][0]["enum"] == ["solver", "verifier", "nobody"]


def test_a_schema_is_the_same_for_all_actions_and_trajectories_of_a_team() -> None:
    """It is part of the prefix that a provider's cache knows."""
    assert (
        ReplySchema(agents=("a", "b"), actions=2).json_schema is ReplySchema(agents=("a", "b"), actions=5).json_schema
    )
