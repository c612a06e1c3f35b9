"""Packages with plugins: those in the directory offer what it says, and each fault of a broken one is named."""

from __future__ import annotations

import json
import re

import pytest

from mappa.cli import main
from mappa.look.plugin_check import check_package
from mappa_core import InputError

BROKEN = {
    "a library that is missing": ("import no_such_library\n", "No module named 'no_such_library'"),
    "a misspelled hook": (
        "@hookimpl\ndef mappa_coachs():\n    return []\n",
        "unknown hook 'mappa_coachs'",
    ),
    "a hook without its marker": (
        "def mappa_coaches():\n    return []\n",
        "mappa_coaches is not marked with @hookimpl",
    ),
    "a name that is taken": (
        "@hookimpl\ndef mappa_shapers():\n    yield Offer('scale', lambda options: None)\n",
        "two packages offer the shaper 'scale': mappa-core and",
    ),
    "a later API": ("mappa_api = 99\n", "it needs plugin API 99"),
    "a recipe with an unknown key": (
        "from pathlib import Path\n@hookimpl\ndef mappa_recipes():\n"
        "    file = Path(__file__).with_name('bad.yaml')\n"
        "    file.write_text('train: {itrations: 3}')\n    return {'bad': file}\n",
        "itrations",
    ),
    "a name in capitals": (
        "@hookimpl\ndef mappa_shapers():\n    yield Offer('Scale Up', lambda options: None)\n",
        "'Scale Up' is no name in lower case",
    ),
}


def test_a_package_of_strangers_meets_its_contract(site, capsys):
    site.install("acme_press")
    assert main(["plugins", "check", "acme-press"]) == 0
    assert re.match(r"acme-press \S+: meets plugin API 1 of mappa-core \S+ \(1 plugin, ", capsys.readouterr().out)
    assert main(["plugins", "check", "acme-press", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faults"] == []


def test_a_recipe_that_extends_itself_is_a_fault(acme, capsys):
    assert main(["plugins", "check", "acme-team"]) == 2
    assert "recipe acme/loop extends itself" in capsys.readouterr().out


@pytest.mark.parametrize(("source", "said"), BROKEN.values(), ids=BROKEN)
def test_each_fault_of_a_broken_package_is_named(site, source, said, capsys):
    site.write("sick", source, package="sick-package")
    assert main(["plugins", "check", "sick-package"]) == 2
    shown = capsys.readouterr()
    first, *faults = (shown.out + shown.err).splitlines()
    assert first == "sick-package 1.0: 1 fault" and said in faults[0], (first, faults)


def test_package_without_plugins_is_an_error(capsys):
    with pytest.raises(InputError, match="no distribution 'mappa-nowhere' here"):
        check_package("mappa-nowhere")
    faults = check_package("click").faults
    assert "no entry point of the group `mappa`" in faults[0] and "does not require mappa-core" in faults[1]
