"""Finding, loading and checking plugins, through the metadata of really installed distributions."""

from __future__ import annotations

import sys

import pytest

from mappa_core import Offer, PluginError, hookimpl
from mappa_core.errors import Terminated
from mappa_core.plugins import CORE, HOOK_NAMES, KIND_NAMES, find_entry_points, load_plugins


def test_every_hook_of_an_offer_has_a_kind():
    derived, others = {"mappa_policies"}, {"mappa_recipes", "mappa_checks"}
    assert {f"mappa_{kind}" for kind in KIND_NAMES} - derived == set(HOOK_NAMES) - others


def test_an_installed_plugin_offers_one_of_every_kind(acme):
    plugin = load_plugins().plugins["acme"]
    assert (plugin.package, plugin.version) == ("acme-team", "2.5.0")
    assert {kind for kind, offers in plugin.offers.items() if offers} == set(KIND_NAMES)
    assert sorted(plugin.recipes) == ["loop", "paper", "paper-outcome", "tiny"]


def test_core_offers_through_the_same_hooks_and_is_a_plugin_like_others(acme):
    registry = load_plugins()
    assert registry.plugins[CORE].package == "mappa-core"
    assert "local" in registry.names("engines")
    assert registry.versions["acme-team"] == "2.5.0"


def test_plugin_installed_after_a_load_is_found_by_the_next_load(site):
    assert "acme" not in load_plugins().plugins
    site.install("acme")
    assert "acme" in load_plugins().plugins


def test_block_leaves_a_plugin_out_and_only_leaves_out_all_others(acme):
    acme.write("other", "")
    assert "acme" not in load_plugins(block=["acme"]).plugins
    assert set(load_plugins(only=["acme"]).plugins) == {CORE, "acme"}


@pytest.mark.parametrize("how", [{"block": ["acmee"]}, {"only": ["acmee"]}])
def test_block_and_only_refuse_a_name_that_is_not_installed(acme, how):
    with pytest.raises(PluginError, match=r"no plugin is called 'acmee'\. Did you mean acme\?"):
        load_plugins(**how)


def test_finding_plugins_imports_none_of_them(acme):
    assert "acme" in [point.name for point in find_entry_points()]
    assert "acme_team" not in sys.modules


def test_loading_a_plugin_imports_nothing_that_its_factories_import(acme):
    registry = load_plugins()
    assert "acme_team.heavy" not in sys.modules
    registry.build("losses", "acme_loss")
    assert "acme_team.heavy" in sys.modules


def test_a_plugin_that_cannot_be_imported_is_listed_as_broken_and_stops_nobody_else(acme):
    acme.install("acme_broken")
    registry = load_plugins()
    broken = registry.broken["broken"]
    assert "acme" in registry.plugins and "broken" not in registry.plugins
    assert (broken.package, broken.version) == ("acme-broken", "0.0.1")
    assert broken.reason == "ModuleNotFoundError: No module named 'acme_that_was_never_installed'"
    assert "import acme_that_was_never_installed" in broken.traceback


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("@hookimpl\ndef mappa_tasks():\n    raise KeyError('lost')", "KeyError: 'lost'"),
        (
            "@hookimpl\ndef mappa_tasks():\n    yield 3",
            "TypeError: mappa_tasks gave 3, which is no Offer: a hook gives Offer(name, build, options)",
        ),
        (
            "@hookimpl\ndef mappa_tools():\n    return [Offer('a', str), Offer('a', int)]",
            "ValueError: mappa_tools offers 'a' twice: recipes choose by name, so rename one of them",
        ),
        ("exit()", "SystemExit: None"),
        ("@hookimpl\ndef mappa_tasks():\n    raise SystemExit(3)", "SystemExit: 3"),
        ("class Gone(BaseException): ...\nraise Gone('for good')", "Gone: for good"),
        ("mappa_api = 99", "ImportError: it needs plugin API 99 and this mappa-core has 1; upgrade mappa-core"),
    ],
)
def test_a_plugin_whose_hooks_fail_is_broken(site, source, reason):
    site.write("faulty", source)
    assert load_plugins().broken["faulty"].reason == reason


@pytest.mark.parametrize("signal", [KeyboardInterrupt, Terminated])
def test_a_signal_to_the_process_is_no_fault_of_the_plugin_that_is_being_loaded(site, monkeypatch, signal):
    site.write("slow", "import sys\nraise sys.stopped_by")
    monkeypatch.setattr(sys, "stopped_by", signal, raising=False)
    with pytest.raises(signal):
        load_plugins()


def test_a_plugin_for_an_older_api_loads(site):
    site.write("old", "mappa_api = 0")
    assert "old" in load_plugins().plugins


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("@hookimpl\ndef mappa_coachs():\n    return []", r"'typo' \(written-typo\): unknown hook 'mappa_coachs'"),
        ("@hookimpl\ndef mappa_tasks(stage):\n    return []", r"'typo' \(written-typo\): .*mappa_tasks"),
        ("def mappa_tasks():\n    return []", r"'typo' \(written-typo\): mappa_tasks is not marked with @hookimpl"),
    ],
)
def test_a_hook_that_would_never_be_called_is_an_error(site, source, message):
    site.write("typo", source)
    with pytest.raises(PluginError, match=message):
        load_plugins()


def test_an_optional_hook_of_a_newer_core_is_allowed(site):
    site.write("newer", "@hookimpl(optionalhook=True)\ndef mappa_dreams():\n    return []")
    assert "newer" in load_plugins().plugins


def test_a_name_offered_twice_names_both_packages_and_the_way_out(acme):
    acme.write("copy", "@hookimpl\ndef mappa_tools():\n    return [Offer('acme_tool', str)]", package="acme-copy")
    with pytest.raises(PluginError, match=r"tool 'acme_tool': acme-team and acme-copy.*mappa --block copy"):
        load_plugins()
    assert "acme_tool" in load_plugins(block=["copy"]).names("tools")


def test_two_kinds_may_share_a_name(acme):
    acme.write("wires", "@hookimpl\ndef mappa_tools():\n    return [Offer('acme_coach', str)]")
    assert "acme_coach" in load_plugins().names("tools")


def test_core_makes_a_coach_and_a_policy_of_every_transport(acme):
    registry = load_plugins()
    for kind in ("transports", "coaches", "policies"):
        assert "acme_wire" in registry.plugins["acme"].offers[kind]
    options = registry.offer("coaches", "acme_wire").options(budget=5000)
    assert registry.build("coaches", "acme_wire", options).providers[0].model == "acme-1"


def test_a_transport_that_takes_the_name_of_a_coach_is_refused(acme):
    acme.write("wires", "@hookimpl\ndef mappa_transports():\n    return [Offer('acme_coach', str)]")
    with pytest.raises(PluginError, match="coach 'acme_coach': acme-team and written-wires"):
        load_plugins()
    source = "\n".join(
        f"@hookimpl\ndef mappa_{kind}():\n    return [Offer('w', str)]" for kind in ("coaches", "transports")
    )
    acme.write("mine", source, package="twice")
    with pytest.raises(PluginError, match=r"plugin 'mine' \(twice\) offers 'w' as coach and as transport"):
        load_plugins(block=("acme", "wires"))


def test_two_packages_with_one_plugin_name_are_an_error(acme):
    acme.write("acme", "", package="acme-clone")
    with pytest.raises(PluginError, match=r"two packages have a plugin called 'acme': acme-\w+ and acme-\w+"):
        load_plugins()


def test_no_plugin_may_call_itself_core(site):
    site.write("core", "", package="usurper")
    with pytest.raises(PluginError, match="'core': mappa-core and usurper"):
        load_plugins()


class Notebook:
    """Hooks that were written in a notebook."""

    @staticmethod
    @hookimpl
    def mappa_tools():
        return [Offer("mine", str)]


def test_hooks_of_this_process_are_a_plugin_too():
    registry = load_plugins(modules={"notebook": Notebook})
    assert registry.plugins["notebook"].package == "notebook (of this process)"
    assert "mine" in registry.names("tools")


def test_hooks_of_this_process_cannot_take_the_name_of_a_plugin(acme):
    with pytest.raises(PluginError, match=r"there is a plugin called 'acme' already \(acme-team\)"):
        load_plugins(modules={"acme": Notebook})
