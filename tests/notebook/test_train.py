"""A training of objects of a notebook: its result, its errors, and that it is a run like any other."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
import traceback
from xml.etree import ElementTree

import pytest

import mappa
from mappa.cli import main
from mappa.commands import RunProgress
from mappa.runs import RunReader
from mappa_core import ConfigError, GuardStop, PluginError


def test_the_result_has_figures_tables_blame_and_a_picture(trained, tmp_path):
    assert (trained.summary.status, trained.summary.iterations, trained.summary.seed) == ("done", 2, 0)
    # All held-out numbers are above 20, where the script is wrong.
    assert trained.before.mean == trained.after.mean == trained.gain.mean == 0.0
    assert [report.iteration for report in trained.iterations] == [1, 2]
    assert [row.iteration for row in trained.evaluations] == [0, 2]
    with RunReader(trained.folder) as run:
        outcomes = [row.outcome["correct"] for row in run.trajectories.where(split="train")]
    assert 0 < outcomes.count(0.0) == trained.failures < len(outcomes) == 8
    # The coach blames the doubler whenever it is wrong, and the checker never.
    assert trained.blame == {"doubler": trained.failures, "checker": 0}
    picture = trained.plot()
    saved = ElementTree.parse(picture.save(tmp_path / "run.svg")).getroot()
    texts = ["".join(text.itertext()) for text in saved.iter("{http://www.w3.org/2000/svg}text")]
    assert {"━ doubler━ checker", "iteration", "100 %"} <= set(texts)
    assert picture._repr_html_().startswith("<img ")


def test_it_shows_itself(trained):
    first, held_out, blame = repr(trained).splitlines()
    assert first == f"TrainedRun('{trained.folder}'): doubles/plain, seed 0, done after 2 iterations"
    assert held_out.startswith("  held-out correct: 0.0 % [0.0, 49.0] -> 0.0 % [0.0, 49.0], gain ")
    assert blame == f"  to blame in {trained.failures} failed rollouts: doubler in {trained.failures}"
    tables = ElementTree.fromstring(f"<div>{trained._repr_html_()}</div>")
    rows = [["".join(cell.itertext()) for cell in row] for row in tables.iter("tr")]
    assert ["doubler", str(trained.failures)] in rows and ["checker", "0"] in rows
    assert "doubles/plain" in repr(mappa.TrainedRun.read(trained.folder))
    assert mappa.TrainedRun.read(trained.folder) == trained


def test_its_folder_is_a_run_for_every_command(trained, capsys):
    for arguments in (["runs", "show"], ["observe"], ["report"], ["config", "--config"]):
        target = trained.folder / "config.yaml" if arguments[0] == "config" else trained.folder
        assert main([*arguments, str(target)]) in ((2,) if arguments[0] == "config" else (0,)), arguments
    capsys.readouterr()
    assert main(["train", "--resume", str(trained.folder)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "objects" in said and "mappa.train(resume=" in said


def test_origins_say_that_a_call_set_a_value(trained):
    config = (trained.folder / "config.yaml").read_text()
    assert "iterations: 2" in config and "# mappa.train" in config


def test_a_run_goes_on_with_its_objects(settings, objects, tmp_path):
    first = mappa.train(**objects, **settings, seed=3)
    longer = mappa.train(resume=first, train={"iterations": 3}, progress=False)
    assert longer.folder == first.folder and longer.summary.iterations == 3
    with pytest.raises(ConfigError, match="was made of objects of a script or a notebook"):
        mappa.train(resume=first.folder, train={"iterations": 4}, progress=False)
    again = mappa.train(resume=str(first.folder), **objects, train={"iterations": 4}, progress=False)
    assert again.summary.iterations == 4
    with pytest.raises(ConfigError, match=r"train\.prompts: 2 -> 3"):
        mappa.train(resume=again, train={"prompts": 3}, progress=False)
    with pytest.raises(ConfigError, match="goes on with its own recipe"):
        mappa.train("mathchat/tiny", resume=again)


def test_without_a_coach_a_team_learns_from_its_outcomes(settings, objects):
    trained = mappa.train(workflow=objects["workflow"], tasks=objects["tasks"], **settings)
    assert trained.summary.coach.verdicts == 0 and trained.blame == {}
    with RunReader(trained.folder) as run:
        assert (run.settings["coach.reward.live"], run.settings["shapers.0.use"]) == (0, "outcome")
        assert "shapers.1.use" not in run.settings


@pytest.mark.parametrize(
    ("named", "word"),
    [
        ({"train": {"iteration": 3}}, "train.iteration=3"),
        ({"train": {"iterations": "many"}}, "train.iterations=many"),
        ({"estimator": {"use": "grop"}}, "estimator.use=grop"),
        ({"workflw": {"use": "x"}}, "workflw.use=x"),
    ],
)
def test_errors_are_those_of_the_command_line(capsys, named, word):
    with pytest.raises((ConfigError, PluginError)) as caught:
        mappa.train("mathchat/tiny", **named)
    assert main(["train", "--plugin", "mathchat", "--dry-run", word]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    told = " ".join(str(caught.value).replace("mappa.train", "command line").split())
    assert told in printed
    # Neither a script nor a notebook shows what Mappa did before it found the error.
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames[1:]] == ["call"]
    assert caught.value._render_traceback_() == [f"{type(caught.value).__name__}: {caught.value}"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "name a recipe"),
        ({"tasks": None}, "a workflow without a recipe needs tasks: a list of rows"),
        ({"model": None}, "a workflow without a recipe needs a model: model=…"),
        ({"workflow": 3}, "no workflow"),
        ({"tasks": 3}, "tasks: int holds no tasks"),
        ({"tasks": [1, 2]}, "tasks are a list of Task, or of rows"),
        ({"coach": {"use": lambda: 3}}, "a coach is a function of a scene"),
        ({"estimator": {"use": len}}, "estimator.use: <built-in function len> is no name"),
        ({"seed": object()}, "seed: .* is no setting"),
        ({"model": "a", "policies": {"default": {"model": "b"}}}, "say the same thing twice"),
        ({"tools": [lambda x: x]}, "needs a type"),
    ],
)
def test_what_is_no_workflow_task_or_coach_is_refused(settings, objects, given, said):
    changed = {**objects, **settings, **given} if given else settings
    with pytest.raises((ConfigError, PluginError, ValueError), match=said):
        mappa.train(**changed)


async def test_it_works_within_a_running_event_loop(settings, objects):
    assert mappa.train(**objects, **settings, seed=4).summary.status == "done"


@pytest.mark.parametrize("in_loop", [True, False])
def test_an_interrupt_leaves_a_run_that_can_go_on(settings, objects, in_loop):
    interrupted = []

    def interrupting(scene):
        if not interrupted:
            interrupted.append(scene)
            os.kill(os.getpid(), signal.SIGINT)
        else:
            # As a coach behind an API: while it waits, the thread that the interrupt is meant for can take its turn.
            time.sleep(0.05)
        return 5

    given = {**objects, "coach": interrupting}

    def train():
        return mappa.train(**given, **{**settings, "train": {"iterations": 40, "prompts": 2}}, seed=5)

    async def train_in_loop():
        return train()

    with pytest.raises(KeyboardInterrupt) as caught:
        # As a notebook does: `asyncio.run` would take the signal for itself.
        asyncio.new_event_loop().run_until_complete(train_in_loop()) if in_loop else train()
    said = str(caught.value)
    assert said.startswith("nothing is lost; go on with mappa.train(resume='") and "the same objects" in said
    folder = said.split("'")[1]
    assert mappa.TrainedRun.read(folder).summary.status == "stopped"
    assert mappa.train(resume=folder, **given, progress=False).summary.status == "done"
    shutil.rmtree(folder)


def test_a_guard_says_how_to_go_on(settings, objects):
    def broken(scene):
        raise ConnectionError("the coach is away")

    with pytest.raises(GuardStop) as caught:
        mappa.train(**{**objects, "coach": broken}, **settings)
    assert caught.value.__notes__[0].startswith("nothing is lost; go on with mappa.train(resume=")


def test_a_listener_of_ones_own_is_told_what_happens(settings, objects):
    class Phases(RunProgress):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_phase_start(self, phase, done):
            self.seen.append((phase, done))

    listener = Phases()
    mappa.train(**objects, **{**settings, "progress": listener}, seed=6)
    assert ("collect", 1) in listener.seen and ("update", 0) in listener.seen


def test_a_judgement_by_a_function_is_added_and_compared(settings, objects, capsys):
    trained = mappa.train(**objects, **settings, seed=7)

    def kind(scene):
        return 9, "It meant well."

    judged = mappa.judge(trained, coach=kind, limit=2, progress=False)
    assert (judged.coach, judged.counts.scored, judged.rollouts) == ("kind", 4, 2)
    with RunReader(trained.folder) as run:
        assert {row.verdict.score for row in run.verdicts if row.verdict.phase == "again"} == {9.0}
    assert "kind: 4 verdicts (4 scored, 0 abstained, 0 failed)" in repr(judged)
    with pytest.raises(ConfigError, match="was made of objects"):
        mappa.judge(trained.folder, coach=kind)
    again = mappa.judge(trained.folder, coach=kind, workflow=objects["workflow"], tasks=objects["tasks"], limit=1)
    assert again.counts.scored == 2


def test_names_alone_need_no_recipe(settings, objects):
    numbers = "tests.notebook.conftest:TASKS"
    given = {"workflow": "doubles-by-name", "tasks": {"use": "function", "options": {"function": numbers}}}
    with pytest.raises(PluginError, match="no workflow is called 'doubles-by-name'"):
        mappa.train(**given, **settings)
    given["workflow"] = {"use": "function", "options": {"function": "tests.notebook.conftest:Doubles"}}
    trained = mappa.train(**given, **settings, seed=8)
    assert trained.summary.plugin == "cell"
    longer = mappa.train(resume=trained.folder, train={"iterations": 3}, progress=False)
    assert longer.summary.iterations == 3


def test_a_recipe_of_a_package_without_objects_is_that_of_the_command(tmp_path):
    with pytest.raises(PluginError, match="no recipe 'tyni'"):
        mappa.train("mathchat/tyni")
    with pytest.raises(ConfigError, match="name a recipe"):
        mappa.train(tasks="words", model="none")


def test_runs_are_compared_and_drawn(trained, settings, objects):
    other = mappa.train(**objects, **settings, shapers=["scale", {"use": "outcome_mix"}])
    compared = mappa.compare(trained, other.folder)
    assert [len(arm.runs) for arm in compared.arms] == [1, 1]
    assert "held-out correct, 4 problems, 1 samples of each" in repr(compared)
    assert ElementTree.fromstring(f"<div>{compared._repr_html_()}</div>").findall("table")
    # The settings that name the arms are too long for a picture.
    assert compared.plot().svg.count('class="series') == 2 and "━ A</tspan>" in compared.plot().svg
    named = mappa.compare(mixed=[other], judged=trained)
    assert [arm.name for arm in named.arms] == ["mixed", "judged"] and "━ judged</tspan>" in named.plot().svg
    with pytest.raises(ConfigError, match="name the runs, and how they are grouped"):
        mappa.compare(trained, judged=other)
