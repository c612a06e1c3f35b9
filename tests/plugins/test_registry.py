"""Asking the registry: offers, recipes, and what is said where something is not there."""

from __future__ import annotations

import re

import pytest

from mappa_core import PluginError
from mappa_core.plugins import load_plugins


def test_build_takes_an_instance_of_the_options_or_their_defaults(acme):
    registry = load_plugins()
    options = registry.offer("shapers", "acme_scale").options(high=4.0)
    assert registry.build("shapers", "acme_scale", options).options.high == 4.0
    assert registry.build("shapers", "acme_scale").options.high == 10.0


def test_build_refuses_the_options_of_another_offer(acme):
    registry = load_plugins()
    options = registry.offer("shapers", "acme_scale").options()
    with pytest.raises(TypeError, match="takes NoOptions, not ScaleOptions"):
        registry.build("estimators", "acme_estimator", options)


def test_an_offer_that_ends_the_process_while_it_is_built_is_named_with_its_package(site):
    source = "def leave(options):\n    exit(3)\n@hookimpl\ndef mappa_tools():\n    return [Offer('a', leave)]"
    site.write("leaving", source)
    with pytest.raises(PluginError, match=r"the tool 'a' \(written-leaving\) called exit: SystemExit\(3\)"):
        load_plugins().build("tools", "a")


def test_an_unknown_offer_is_answered_with_close_matches_or_all_there_is(acme):
    registry = load_plugins()
    with pytest.raises(PluginError, match=r"no workflow is called 'acme_teem'\. Did you mean acme_team\?"):
        registry.offer("workflows", "acme_teem")
    with pytest.raises(PluginError, match=r"no transport is called 'zzz'\. There is: .*acme_wire"):
        registry.offer("transports", "zzz")


def test_an_unknown_offer_is_answered_with_the_package_that_brings_it(site):
    with pytest.raises(PluginError, match=re.escape('pip install "mappa-coach-gemini"')):
        load_plugins(only=()).offer("coaches", "gemini")


def test_a_broken_plugin_is_named_where_an_offer_is_missing(site):
    site.install("acme_broken")
    with pytest.raises(PluginError, match=r"plugin 'broken' \(acme-broken\) is broken: ModuleNotFoundError"):
        load_plugins().offer("coaches", "of_the_broken_one")


def test_the_package_of_an_offer_that_is_installed_is_not_absent(site):
    assert load_plugins(only=()).package_to_install("coaches", "gemini") == "mappa-coach-gemini"
    assert load_plugins(only=()).package_to_install("coaches", "unheard_of") is None
    site.write("of_theirs", "@hookimpl\ndef mappa_coaches():\n    return [Offer('gemini', str)]")
    assert load_plugins(only=("of_theirs",)).package_to_install("coaches", "gemini") is None


def test_tiny_is_the_default_recipe(acme):
    registry = load_plugins()
    assert {"tiny", "paper"} <= registry.plugin("acme").recipes.keys()
    recipe = registry.recipe("acme")
    assert (recipe.plugin, recipe.name, recipe.file.name) == ("acme", "tiny", "tiny.yaml")


def test_an_unknown_recipe_or_plugin_is_answered_with_close_matches(acme):
    registry = load_plugins()
    with pytest.raises(PluginError, match=r"plugin 'acme' has no recipe 'papr'\. Did you mean paper"):
        registry.recipe("acme", "papr")
    with pytest.raises(PluginError, match=r"no plugin is called 'acne'\. Did you mean acme\?"):
        registry.recipe("acne")


def test_a_recipe_of_a_broken_plugin_says_why(site):
    site.install("acme_broken")
    with pytest.raises(PluginError, match=r"'broken' \(acme-broken\) is broken: ModuleNotFoundError.*mappa plugins"):
        load_plugins().recipe("broken")


def test_the_registry_cannot_be_changed(acme):
    registry = load_plugins()
    with pytest.raises(AttributeError):
        registry.plugins = {}
    with pytest.raises(TypeError):
        registry.plugins["acme"].offers["tools"]["mine"] = None
