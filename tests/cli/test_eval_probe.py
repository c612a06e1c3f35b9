"""`mappa eval --probe`: whether there is something to learn, asked of the tasks and in the way of a training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.runs import RunReader


@pytest.fixture
def told(module_site, tmp_path, capsys):
    """What a command prints on standard output, of the team that doubles even numbers alone."""
    module_site.install("acme_doubles")

    def tell(*words):
        assert main([*map(str, words), f"run.root={tmp_path}"]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return tell


def test_training_tasks_are_played_as_in_training_and_the_finding_is_named(told):
    found = json.loads(told("eval", "--plugin", "doubles", "--probe", 8, "--json", "sampling.temperature=0.7"))
    # Its tasks are 2 to 9; half of them are always solved, the others never.
    assert (found["problems"], found["rollouts"], found["mean"]) == (8, 16, 0.5)
    probe = found["probe"]
    assert (probe["samples"], probe["team"]["groups"], probe["team"]["differing"]) == (2, 8, 0)
    assert {name: agent["finding"] for name, agent in probe["agents"].items()} == {
        "doubler": "no spread", "checker": "no spread",
    }  # fmt: skip
    assert probe["agents"]["doubler"]["pass_at_k"]["mean"] == probe["agents"]["doubler"]["pass_at_1"]["mean"] == 0.5
    assert probe["agents"]["checker"]["says"].startswith("no spread: siblings differ in 0 of 8 groups")
    with RunReader(Path(found["folder"])) as reader:
        settings = reader.settings
    assert (settings["eval.split"], settings["eval.temperature"], settings["eval.coach"]) == ("train", 0.7, True)


def test_what_is_found_is_printed_as_a_table_and_in_words(told):
    text = told("eval", "--plugin", "doubles", "--probe", 4, "eval.samples=3")
    assert "probed, 3 samples of each: correct 50.0 %" in text and "pass@3" in text
    assert "team: no spread: siblings differ in 0 of 4 groups" in text
    assert "doubler: no spread: siblings differ in 0 of 4 groups" in text


def test_a_stored_run_is_probed_with_its_weights(told, tmp_path):
    told("train", "--plugin", "doubles", "--quiet", "--name", "run", "train.iterations=1", "checkpoint.best=true")
    found = json.loads(told("eval", "--run", tmp_path / "run", "--probe", 2, "--json"))
    assert (found["iteration"], found["problems"], found["probe"]["samples"]) == (1, 2, 2)
