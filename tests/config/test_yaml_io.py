"""Settings as text: scalars, origins by line, and reading back what was written."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa.config.yaml_io import format_scalar, format_yaml, parse_origins, parse_overrides, parse_yaml
from mappa_core import ConfigError
from mappa_core.config.layers import SettingsNode, iter_leaves, with_origin

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20).filter(lambda text: "${" not in text)
LINES = st.tuples(st.lists(TEXTS, max_size=3), st.sampled_from("\n\r\x85\u2028")).map(
    lambda pair: pair[1].join(pair[0])
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | LINES
KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).filter(
    lambda key: "${" not in key
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.5E3", 1500.0),
        (".5", 0.5),
        ("-3", -3),
        ("0", 0),
        (".inf", float("inf")),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("007", "007"),
        ("2024-10-01", "2024-10-01"),
        ("12:30:45", "12:30:45"),
        ("1_000", "1_000"),
        ("0x1f", "0x1f"),
        ("'3'", "3"),
        ("[1, a]", [1, "a"]),
        ("{a: 1e-3}", {"a": 1e-3}),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(text, value):
    plain = parse_overrides([f"key={text}"]).plain["key"]
    assert plain == value and type(plain) is type(value)


def test_a_character_that_json_escapes_as_a_pair_is_one_character():
    assert parse_overrides([r'a={"\ud83d\ude00": "x \ud83d\ude00"}', r'b="\ud83d \ufeff"']).plain == {
        "a": {"😀": "x 😀"},
        "b": "\ud83d \ufeff",
    }


def test_a_word_may_hold_an_equals_sign():
    assert parse_overrides(["a.b=x=y"]).plain == {"a": {"b": "x=y"}}


def test_the_later_word_wins():
    assert parse_overrides(["a=1", "a.b=2", "c.d=3", "c.e=4"]).plain == {"a": {"b": 2}, "c": {"d": 3, "e": 4}}


def test_origins_are_lines_of_keys():
    tree = parse_yaml("a:\n  b: 1\n  c:\n    - x: 2\n    - x: 3\n\nd: [1,\n  2]\n", "f")
    assert {key: node.origin for key, node in iter_leaves(tree)} == {
        "a.b": "f:2",
        "a.c.0.x": "f:4",
        "a.c.1.x": "f:5",
        "d": "f:7",
    }


def test_an_interpolation_is_refused_wherever_it_stands():
    with pytest.raises(ConfigError, match="f:2"):
        parse_yaml("a:\n  - 'x ${b} y'\n", "f")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: " + "[" * 2_000, 2),
        ("a: 1\nb:\n " + "[" * 70 + "]" * 70, 3),
        ("tasks: &a\n  options: *a\n", 2),
        ("a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10}]\n" for n in range(1, 9)), 1),
    ],
)
def test_settings_that_nest_or_hold_too_much_are_refused_with_their_line(text, line):
    with pytest.raises(
        ConfigError, match=rf"^f:{line}: .*settings nest at most 64 deep and hold at most 100000 values"
    ):
        parse_yaml(text, "f")


def test_an_alias_is_a_copy():
    assert parse_yaml("a: &a {b: [1]}\nc: *a\n", "f").plain == {"a": {"b": [1]}, "c": {"b": [1]}}


@settings(max_examples=60)
@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_written_config_is_read_with_equal_values_and_origins(document):
    tree = with_origin({"first": 1, "rest": document}, "default")
    numbered = SettingsNode(
        {key: with_origin(node.plain, f"a  b:{index}") for index, (key, node) in enumerate(tree.fields.items())}, ""
    )
    text = format_yaml(numbered)
    back = parse_yaml(text, "f")
    assert back.plain == {"first": 1, "rest": document}
    origins = {f"f:{line}": origin for line, origin in parse_origins(text).items()}
    assert {key: origins[node.origin] for key, node in iter_leaves(back)} == {
        key: node.origin for key, node in iter_leaves(numbered)
    }


@given(SCALARS)
def test_a_scalar_is_one_line_that_any_yaml_reader_reads_as_we_do(value):
    text = format_scalar(value)
    assert len(text.splitlines()) <= 1
    assert parse_yaml(f"key: {text}", "f").plain["key"] == value
    assert yaml.safe_load(f"key: {text}")["key"] == value


def test_every_value_stands_on_a_line_of_its_own_with_its_origin():
    tree = SettingsNode(
        {
            "seed": SettingsNode(3, "command line"),
            "shapers": SettingsNode(
                (SettingsNode({"use": SettingsNode("scale", "f:4"), "options": SettingsNode({}, "default")}, "f:4"),),
                "f:3",
            ),
        },
        "default",
    )
    lines = [line.split("  # ") for line in format_yaml(tree).splitlines()]
    assert [[part.rstrip() for part in line] for line in lines] == [
        ["seed: 3", "command line"],
        ["shapers:"],
        ["  - use: scale", "f:4"],
        ["    options: {}", "default"],
    ]
