"""`mappa config`, `mappa plugins` and `mappa doctor`."""

from __future__ import annotations

import json

import pytest

from mappa.cli import main
from mappa.sessions import restore_trusted
from mappa.testing import load_plugins


@pytest.fixture
def out(capsys):
    """Run a command that succeeds and return what it printed."""

    def run(*args):
        code = main(args)
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return run


# --- config -----------------------------------------------------------------------------------------------------------


def test_config_shows_value_and_origin(acme, out):
    text = out("config", "--plugin", "acme", "train.iterations=3")
    assert text.startswith("recipe: acme/tiny\n")
    shown = dict(line.strip().split("  # ") for line in text.splitlines() if "  # " in line)
    shown = {key.strip(): origin for key, origin in shown.items()}
    assert shown["iterations: 3"] == "command line"
    assert shown["learning_rate: 0.001"] == "recipe acme/tiny:22"
    assert shown["prompts: 16"] == "default"


def test_what_config_prints_is_a_config(acme, out, write):
    text = out("config", "--plugin", "acme", "seed=5")
    assert restore_trusted(load_plugins(), write("config.yaml", text)).config.seed == 5


def test_config_as_json_holds_document_origins_and_hash(acme, out, write):
    file = write("mine.yaml", "seed: 8\n")
    shown = json.loads(out("config", "--recipe", "acme/tiny", "--config", str(file), "--name", "007", "--json"))
    assert (shown["plugin"], shown["recipe"]) == ("acme", "tiny")
    assert (shown["config"]["seed"], shown["origins"]["seed"]) == (8, f"{file}:1")
    assert shown["config"]["run"]["name"] == "007"
    assert shown["not_installed"] == {}
    assert len(shown["recipe_hash"]) == 64


def test_config_of_a_recipe_that_needs_more_says_what(acme, capsys):
    assert main(["--block", "gemini", "config", "--plugin", "acme", "--recipe", "paper", "tasks.options.path=x"]) == 0
    captured = capsys.readouterr()
    assert "not installed: coach.use: no coach is called 'gemini'. It comes with mappa-coach-gemini" in captured.err
    assert "model: gemini-2.5-pro" in captured.out


def test_config_of_wrong_input_is_exit_code_2(acme, capsys):
    assert main(["config", "--plugin", "acme", "train.iteratons=3"]) == 2
    assert capsys.readouterr().err.startswith(
        "Error: train.iteratons: not a setting (set by command line). Did you mean"
    )
    assert main(["config", "--plugin", "acne"]) == 2
    assert "no plugin is called 'acne'. Did you mean acme?" in capsys.readouterr().err


# --- plugins ----------------------------------------------------------------------------------------------------------


def test_plugins_shows_versions_offers_recipes_and_what_is_broken(acme, out):
    acme.install("acme_broken")
    text = out("plugins")
    assert "acme  acme-team 2.5.0" in text
    assert "coaches     acme_coach, acme_other" in text
    assert "acme/tiny" in text and "commands    mappa acme\n" in text
    assert "broken      ModuleNotFoundError: No module named 'acme_that_was_never_installed'" in text
    assert "Traceback" not in text
    assert "Traceback" in out("plugins", "--traceback")


def test_plugins_sets_every_kind_apart_from_its_names(acme, out):
    hook = "@hookimpl\ndef mappa_prompt_optimizers():\n    yield Offer('still', lambda options: None)\n"
    acme.write("optimizing", f"from mappa_core import Offer, hookimpl\n\n\n{hook}")
    assert "prompt_optimizers still" in out("plugins")


def test_plugins_as_json(acme, out):
    acme.install("acme_broken")
    shown = json.loads(out("plugins", "--json"))
    assert shown["plugins"]["acme"]["version"] == "2.5.0"
    assert shown["plugins"]["acme"]["engines"] == ["acme_engine"]
    assert shown["plugins"]["core"]["package"] == "mappa-core"
    assert shown["broken"]["broken"]["reason"].startswith("ModuleNotFoundError")
