"""Offers that are made of other offers, and choices that only some configs make."""

from __future__ import annotations

import pytest

from mappa.config.compose import compose
from mappa.testing import load_plugins
from mappa_core import ConfigError, PluginError, Use

PAIR = """
from dataclasses import dataclass, field
from mappa_core import Use

@dataclass
class One:
    points: float = 5.0

@dataclass
class Pair:
    members: list[Use] = field(default_factory=list)
    judge: Use | None = None
    name: str = "pair"

def build(options, make):
    return options.name, [make(member) for member in options.members], options.judge and make(options.judge)

@hookimpl
def mappa_coaches():
    yield Offer("one", lambda options: ("one", options.points), One)
    yield Offer("pair", build, Pair, composite=True)
"""


@pytest.fixture
def registry(acme):
    acme.write("pairs", PAIR)
    return load_plugins()


def settings(*words):
    return ("coach.use=pair", *words)


def test_the_options_of_parts_are_those_of_their_offers_at_any_depth(registry):
    inner = "{use: pair, options: {name: inner, members: [{use: one}]}}"
    words = settings(f"coach.options.members=[{{use: one, options: {{points: 7}}}}, {inner}]")
    coach = compose(registry, "acme", overrides=words).config.coach
    assert isinstance(coach.options.members[0], Use) and coach.options.members[0].options.points == 7.0
    built = registry.build("coaches", coach.use, coach.options)
    assert built == ("pair", [("one", 7.0), ("inner", [("one", 5.0)], None)], None)


def test_optional_part_is_built_unless_null(registry):
    coach = compose(registry, "acme", overrides=settings("coach.options.judge={use: one}")).config.coach
    assert registry.build("coaches", coach.use, coach.options)[2] == ("one", 5.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("coach.options.members=[{use: oen}]", r"coach.options.members.0.use: no coach is called 'oen'.*one"),
        ("coach.options.members=[{use: one, options: {pionts: 1}}]", r"members.0.options.pionts: not a setting"),
        ("coach.options.judge={use: one, options: {points: many}}", r"judge.options.points: 'many' is not a number"),
    ],
)
def test_error_in_a_part_names_its_whole_key(registry, words, said):
    with pytest.raises((ConfigError, PluginError), match=said):
        compose(registry, "acme", overrides=settings(words))


def test_a_part_of_a_package_that_is_not_installed_is_absent_and_not_unknown(acme):
    acme.write("pairs", PAIR)
    registry = load_plugins(only=("acme", "pairs"))
    composed = compose(registry, "acme", overrides=settings("coach.options.members=[{use: gemini}]"))
    with pytest.raises(PluginError, match=r"coach.options.members.0.use: .*mappa-coach-gemini"):
        composed.require_installed()


def test_the_coach_of_hindsight_and_policies_behind_an_api_have_typed_options(registry):
    words = ("coach.hindsight={use: one, options: {points: 3}}", "policies.default={kind: api, use: acme_wire}")
    config = compose(registry, "acme", overrides=words).config
    assert config.coach.hindsight.options.points == 3.0
    assert type(config.policies["default"].options) is registry.offer("policies", "acme_wire").options


def test_policy_behind_an_api_requires_a_provider(registry):
    with pytest.raises(ConfigError, match=r"policies.default.use: no value; name one of acme_wire"):
        compose(registry, "acme", overrides=("policies.default.kind=api",))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("coach.cassette.mode=sometimes", "off, record, replay, auto"),
        ("coach.spend_usd=0", "above 0"),
    ],
)
def test_contradictory_settings_of_coaches_are_refused(registry, word, said):
    with pytest.raises(ConfigError, match=said):
        compose(registry, "acme", overrides=(word,))
