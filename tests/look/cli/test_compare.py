"""`mappa compare`: what is found of runs, how they are grouped, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.runs import RunReader
from mappa.sessions import Run
from mappa.testing import load_plugins


@pytest.fixture(scope="module")
def runs(module_site, tmp_path_factory) -> Path:
    """Runs of two coaches, two seeds each, and some that are not like them."""
    module_site.install("acme_doubles")
    root = tmp_path_factory.mktemp("runs")
    registry = load_plugins(only=("look", "doubles", "engine", "sandbox"))

    def train(name, *settings):
        words = (f"run.root={root}", f"run.name={name}", "train.iterations=1", "eval.problems=4", *settings)
        Run.from_recipe("doubles/tiny", *words, registry=registry).train()

    for seed in (0, 1):
        train(f"strict{seed}", f"seed={seed}")
        train(f"moody{seed}", f"seed={seed}", "coach.use=moody", "coach.options.noise=0.0")
    train("fewer", "eval.problems=2")
    train("chosen", "checkpoint.best=true")
    train("often", "eval.samples=2")
    train("cold", "eval.temperature=0.0")
    return root


def said(capsys, *words) -> str:
    assert main(["compare", *map(str, words)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys, *words) -> str:
    assert main(["compare", *map(str, words)]) == 2
    return " ".join(capsys.readouterr().err.split())


FOUR = ("strict0", "strict1", "moody0", "moody1")


def test_runs_that_differ_in_nothing_but_their_seed_are_one_arm(runs, capsys):
    document = json.loads(said(capsys, "--root", runs, "--json", *FOUR))
    strict, moody = document["arms"]
    assert strict["seeds"] == moody["seeds"] == [0, 1]
    assert strict["runs"] == [str(runs / "strict0"), str(runs / "strict1")]
    assert strict["name"].startswith("coach.use=strict") and "coach.options.noise=0.0" in moody["name"]
    (pair,) = document["pairs"]
    assert pair["finding"] == "no significant difference"
    assert (pair["difference"]["mean"], pair["p"], pair["p_adjusted"], pair["h"]) == (0.0, 1.0, 1.0, 0.0)
    assert (pair["wins"], pair["losses"], pair["ties"]) == (0, 0, 4)
    assert pair["over_seeds"] and document["pooled"] == {}
    with RunReader(runs / "strict0") as reader:
        assert strict["mean"]["mean"] == reader.summary.eval.after.mean == 0.5


def test_arms_may_be_named_by_a_setting_or_by_hand(runs, capsys):
    text = said(capsys, "--root", runs, "--by", "coach.use", *FOUR)
    assert "coach.use=moody, coach.use=strict: no significant difference" in text
    named = said(capsys, "--root", runs, "--arm", "old=strict0", "--arm", "new=moody0", "--arm", "newer=moody1")
    untold = "the runs do not differ significantly; of the settings this cannot be told from one seed of each"
    assert f"new, old: {untold}" in named and f"newer, new: {untold}" in named
    assert "adjusted for 3 comparisons (Holm)" in named and "not for other seeds" in named
    against = ("--arm", "old=strict0", "--arm", "new=moody0", "--arm", "newer=moody1", "--against", "old")
    assert len(json.loads(said(capsys, "--root", runs, "--json", *against))["pairs"]) == 2


def test_significant_difference_is_reported(runs, tmp_path, capsys):
    better = shutil.copytree(runs / "moody0", tmp_path / "better")
    # As if the other coach had taught the odd numbers, too, which the script of this team never learns.
    import sqlite3

    with sqlite3.connect(better / "run.db") as db:
        db.execute("UPDATE trajectories SET outcome = '{\"correct\": 1.0}' WHERE split = 'eval' AND iteration = 1")
    document = json.loads(said(capsys, "--arm", f"old={runs / 'strict0'}", "--arm", f"new={better}", "--json"))
    (pair,) = document["pairs"]
    assert (pair["one"], pair["difference"]["mean"], pair["wins"], pair["ties"]) == ("new", 0.5, 2, 2)
    # Half of 4 against all of 4. Wilson's bound of the half is 0.370 away at t = 1.905 (three degrees of freedom), that
    # of the whole 0.337 at z = 1.426, both of this chance; together they are 0.5 away.
    assert pair["p"] == pytest.approx(0.1539, abs=1e-4)
    assert pair["h"] == pytest.approx(1.5708, abs=1e-4)


def test_runs_evaluated_differently_are_refused_with_the_reason(runs, capsys):
    root = ("--root", runs, "strict0")
    assert "they evaluated other tasks (2 of" in refused(capsys, *root, "fewer")
    part = refused(capsys, *root, "chosen")
    assert "other tasks" in part and "chose its best checkpoint on a part of the tasks" in part
    assert "other samples (eval.samples: 1 and 2 of a task)" in refused(capsys, *root, "often")
    assert "other samples (eval.temperature: 1.0 and 0.0)" in refused(capsys, *root, "cold")


def test_invalid_comparison_is_refused(runs, tmp_path, capsys):
    root = ("--root", runs)
    assert "there is but one setting to compare" in refused(capsys, *root, "strict0", "strict1")
    assert "both of seed 0 in the arm a" in refused(
        capsys, *root, "--arm", "a=strict0", "--arm", "a=moody0", "--arm", "b=moody1"
    )
    assert "--by coach.used: no run has this setting. Did you mean" in refused(
        capsys, *root, "--by", "coach.used", *FOUR
    )
    assert "name the runs" in refused(capsys) and "name the runs" in refused(capsys, "--arm", "a=x", "strict0")
    assert "write NAME=RUN" in refused(capsys, "--arm", "strict0")
    assert "--against x: no arm is named so" in refused(capsys, *root, *FOUR, "--against", "x")
    assert "--measure fair:" in refused(capsys, *root, *FOUR, "--measure", "fair")
    assert "not a run folder" in refused(capsys, *root, "strict0", "nowhere")
    stopped = shutil.copytree(runs / "moody0", tmp_path / "stopped")
    summary = stopped / "summary.json"
    summary.write_text(summary.read_text().replace('"done"', '"stopped"'))
    assert "did not come to its end (it is stopped)" in refused(capsys, *root, "strict0", stopped)


def test_other_content_or_another_grader_is_refused(runs, tmp_path, capsys):
    import sqlite3

    def changed(name, old, new):
        folder = shutil.copytree(runs / "moody0", tmp_path / name)
        with sqlite3.connect(folder / "run.db") as db:
            db.execute("UPDATE trajectories SET task = replace(task, ?, ?)", (old, new))
        return folder

    other = changed("text", '"prompt":"21"', '"prompt":"22"')
    assert "1 tasks of the same id have another content, for example n21" in refused(
        capsys, "--root", runs, "strict0", other
    )
    grader = shutil.copytree(runs / "moody0", tmp_path / "grader")
    config = grader / "config.yaml"
    config.write_text(config.read_text().replace("use: doubles", "use: triples"))
    assert "another grader (workflow.use: doubles and triples)" in refused(capsys, "--root", runs, "strict0", grader)


def test_settings_that_an_arm_pools_are_named(runs, capsys):
    document = json.loads(said(capsys, "--root", runs, "--json", "--arm", "a=strict0", "--arm", "a=moody1",
                               "--arm", "b=moody0"))  # fmt: skip
    assert document["pooled"]["coach.use"] == ["strict", "moody"]
    text = said(capsys, "--root", runs, "--arm", "a=strict0", "--arm", "a=moody1", "--arm", "b=moody0")
    assert "pooled in one arm: coach.use of strict, moody" in text


def test_runs_are_compared_without_the_plugins_that_they_used(runs, capsys):
    words = [str(one) for one in (runs / "strict0", runs / "strict1", runs / "moody0")]
    assert main(["--block", "doubles", "compare", *words, "--json"]) == 0
    assert [arm["seeds"] for arm in json.loads(capsys.readouterr().out)["arms"]] == [[0, 1], [0]]


def test_limits_that_change_no_result_make_no_arm(runs, tmp_path, capsys):
    other = shutil.copytree(runs / "strict1", tmp_path / "other")
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("max_restarts: 3", "max_restarts: 5").replace("kl: 0.5", "kl: 0.6"))
    assert "there is but one setting to compare" in refused(capsys, runs / "strict0", other)
