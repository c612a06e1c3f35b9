"""`mappa sweep`: seeds times settings as runs of their own, and what is wrong input."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from mappa.cli import main
from mappa.commands import load_registry
from mappa.look.cli.sweep import sweep_notes
from mappa.look.cli.sweep_progress import IterationProgress, open_display, seconds_left, watch_runs
from mappa.look.sweep import (
    Sweep,
    SweepArm,
    SweepRun,
    SweepRunner,
    build_arms,
    collect_results,
    create_sweep,
    expand_grid,
    launch_locally,
    load_sweep,
    read_arms,
)
from mappa.runs import RunReader
from mappa.sessions import compose
from mappa_core import ConfigError, RunError


@pytest.fixture
def doubles(site, monkeypatch):
    """The team that doubles numbers, also for processes of their own."""
    site.install("acme_doubles")
    monkeypatch.setenv("PYTHONPATH", site.python_path)


@pytest.fixture
def inside(monkeypatch):
    """Runs of a sweep are trained in this process, each in a thread."""

    async def launch(arguments, log):
        log.touch()
        return await asyncio.to_thread(main, arguments)

    monkeypatch.setattr("mappa.look.sweep.launch_locally", launch)


SHORT = ("--plugin", "doubles", "train.iterations=1", "train.prompts=2", "train.samples=1", "eval.problems=4")


@pytest.mark.slow
def test_a_sweep_ends_with_what_failed_shown_and_goes_on_with_that_alone(doubles, tmp_path, capsys):
    folder = tmp_path / "sweep"
    vary = ("--vary", "coach.options.right=[10.0, 9.0]", "--seeds", "0", "--jobs", "2")
    code = main(["sweep", "--folder", str(folder), *vary, *SHORT, "coach.options.wrong=1.0"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert "arm2-s0 (coach.options.right=9.0, seed 0) done" in captured.err and "[2 of 2 done]" in captured.err
    assert "coach.options.right=9.0, coach.options.right=10.0: the runs do not differ significantly;" in captured.out
    assert "No setting is named the best" in captured.out
    assert "figures hold for other problems, not for other seeds" in captured.out
    assert (folder / "sweep.html").read_text().count("<svg") == 1
    with RunReader(folder / "arm2-s0") as reader:
        assert reader.summary.seed == 0
    assert "right: 9.0" in (folder / "arm2-s0" / "config.yaml").read_text()

    # What is done is not run again; a run that fails is shown, and the others go on.
    written = (folder / "arm1-s0" / "run.db").stat().st_mtime_ns
    summary = folder / "arm2-s0" / "summary.json"
    summary.write_text(summary.read_text().replace('"done"', '"stopped"'))
    (folder / "arm2-s0" / "config.yaml").write_text("recipe: doubles/tiny\n")
    code = main(["sweep", "--resume", str(folder), "--json"])
    captured = capsys.readouterr()
    assert code == 2 and captured.err == ""
    document = json.loads(captured.out)
    assert [run["status"] for run in document["runs"]] == ["done", "failed"]
    assert document["runs"][1]["error"].startswith("Error: coach.use, tasks.use, workflow.use: no value")
    assert [arm["name"] for arm in document["compared"]["arms"]] == ["coach.options.right=10.0"]
    assert (folder / "arm1-s0" / "run.db").stat().st_mtime_ns == written
    assert load_sweep(folder).runs_with_status("failed")[0].folder == "arm2-s0"


def test_per_action_and_outcome_are_compared_by_one_command_that_shows_how_far_it_is(
    doubles, inside, tmp_path, capsys, monkeypatch
):
    folder = tmp_path / "sweep"
    words = ("--arms", "process,outcome", "--seeds", "0", "--jobs", "2")
    assert main(["sweep", "--folder", str(folder), *words, *SHORT, "train.iterations=3"]) == 0
    captured = capsys.readouterr()
    assert "do not differ significantly" in captured.out and "shapers" not in captured.out
    assert "outcome-s0 (outcome, seed 0) done" in captured.err
    with RunReader(folder / "outcome-s0") as reader:
        assert reader.settings["shapers.0.use"] == "outcome"
    assert main(["compare", str(folder / "process-s0"), str(folder / "outcome-s0")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert {"shapers.0.use=outcome", "shapers.0.use=scale"} <= {line.strip().partition(" ")[0] for line in told}

    # While runs are under way, what is seen of their folders is shown.
    monkeypatch.setattr("mappa.look.cli.sweep_progress.POLL_S", 0.01)
    planned = load_sweep(folder)
    planned = planned.with_run(replace(planned.runs[0], status="running"))

    async def seen(display):
        runner = SimpleNamespace(sweep=planned)
        async with watch_runs(runner, folder, display):
            while not display.progress:
                await asyncio.sleep(0.01)

    for terminal in (False, True):
        console = Console(file=StringIO(), force_terminal=terminal, width=80)
        with open_display(console, 1, quiet=False) as display:
            display.on_change(planned, planned.runs[0])
            asyncio.run(seen(display))
            console.file.truncate(0)
            display.show(planned, planned.runs[0])
            if terminal:
                display.live.refresh()
            shown = console.file.getvalue()
        pattern = r"process +0 +3/3 +[\d.]+ % +0:00" if terminal else r"process-s0 \(process\)  iteration 3/3  accuracy"
        assert re.search(pattern, shown), shown


def test_time_left_counts_runs_that_have_not_begun_as_the_others():
    runs = tuple(
        SweepRun(arm="a", seed=seed, folder=f"a-s{seed}", status=status)
        for seed, status in enumerate(("done", "running", "running", "waiting"))
    )
    sweep = Sweep(plugin="p", recipe="r", blocked=(), arms=(SweepArm(name="a", title="a", words=()),), runs=runs)
    assert seconds_left(sweep, {}, 1) is None
    progress = {
        "a-s0": IterationProgress(iteration=10, iterations=10, seconds=2.0),
        "a-s1": IterationProgress(iteration=5, iterations=10, seconds=4.0),
        "a-s2": IterationProgress(iteration=0, iterations=10),
    }
    # Half of 40 s, and twice the mean of 20 and 40 s.
    assert seconds_left(sweep, progress, 1) == 20 + 30 + 30
    assert seconds_left(sweep, progress, 2) == 40
    assert seconds_left(sweep, progress, 8) == 30


def test_a_sweep_chooses_by_the_tasks_that_checkpoints_are_chosen_on(doubles, inside, tmp_path, capsys):
    folder = tmp_path / "sweep"
    words = ("train.samples=[1, 2]", "--seeds", "3", "checkpoint.best=true")
    assert main(["sweep", "--folder", str(folder), "--vary", *words, "--quiet", "--json", *SHORT]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["chosen"] == {"setting": "train.samples=1", "selection_mean": 1.0}
    with RunReader(folder / "arm1-s3") as reader:
        own = reader.summary.eval
    assert own.n + own.selection.n == 4 and document["compared"]["problems"] == own.n
    assert document["compared"]["arms"][0]["mean"]["mean"] == own.after.mean


def test_a_sweep_chooses_nothing_before_all_runs_are_done(doubles, inside, tmp_path):
    """A mean over fewer seeds, as of a setting whose other runs failed, is the highest by chance more often."""
    folder = tmp_path / "sweep"
    words = ("train.samples=[1, 2]", "--seeds", "3,4", "checkpoint.best=true")
    assert main(["sweep", "--folder", str(folder), "--vary", *words, "--quiet", *SHORT]) == 0
    sweep = load_sweep(folder)
    assert collect_results(folder, sweep).chosen is not None
    results = collect_results(folder, sweep.with_run(replace(sweep.runs[0], status="failed", error="out of memory")))
    assert results.chosen is None and len(results.compared.arms) == 2
    assert sweep_notes(results)[-1] == "No setting is named the best before all runs are done."


def test_runs_that_cannot_be_compared_or_read_are_shown_on_the_page_with_the_reason(doubles, inside, tmp_path, capsys):
    folder, vary = tmp_path / "sweep", ("--vary", "coach.options.right=[10.0, 9.0]", "--seeds", "0")
    assert main(["sweep", "--folder", str(folder), *vary, *SHORT, "--quiet"]) == 0
    task = ('"reference":"42"', '"reference":"43"')
    with sqlite3.connect(folder / "arm2-s0" / "run.db") as db:
        db.execute("UPDATE trajectories SET task = replace(task, ?, ?)", task)
    capsys.readouterr()
    assert main(["sweep", "--resume", str(folder), "--quiet"]) == 2
    reason = "1 tasks of the same id have another content, for example n21"
    assert (
        f"not compared: {folder}/arm1-s0 and {folder}/arm2-s0 cannot be compared: {reason}" in capsys.readouterr().out
    )
    assert reason in (folder / "sweep.html").read_text()
    assert main(["sweep", "--resume", str(folder), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["compared"] is None and reason in document["not_compared"]

    database = folder / "arm2-s0" / "run.db"
    database.write_bytes(database.read_bytes()[:100] + b"x" * 8000)
    (damaged,) = load_sweep(folder).runs_with_status("failed")
    assert damaged.folder == "arm2-s0" and "run.db" in damaged.error
    assert main(["sweep", "--resume", str(folder), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert [run["status"] for run in document["runs"]] == ["done", "failed"]
    assert [arm["name"] for arm in document["compared"]["arms"]] == ["coach.options.right=10.0"]


# --- arms -------------------------------------------------------------------------------------------------------------


def test_values_may_hold_commas_and_lists():
    arms = build_arms({}, ["train.betas=[[0.9, 0.95], [0.9, 0.99]]", "a.b=['x, y', z]"])
    assert [arm.name for arm in arms] == ["arm1", "arm2", "arm3", "arm4"]
    assert arms[1].title == "train.betas=[0.9, 0.95] a.b=z"
    assert [arm.words for arm in arms[:2]] == [
        ("train.betas=[0.9, 0.95]", "a.b=x, y"),
        ("train.betas=[0.9, 0.95]", "a.b=z"),
    ]
    assert [(arm.title, arm.words) for arm in build_arms({}, [])] == [("all", ())]


def test_named_arms_are_the_two_that_everybody_asks_for_and_files(tmp_path):
    (tmp_path / "large.yaml").write_text("train: {learning_rate: 2e-4, betas: [0.9, 0.99]}\nshapers: [{use: scale}]\n")
    named = read_arms(["process", "outcome", str(tmp_path / "large.yaml")])
    assert named == {
        "process": ("shapers=[{use: scale}]",),
        "outcome": ("shapers=[{use: outcome}]",),
        "large": ("train.learning_rate=0.0002", "train.betas=[0.9, 0.99]", "shapers=[{use: scale}]"),
    }
    assert [(arm.name, arm.title) for arm in build_arms(named, [])] == [(name, name) for name in named]
    both = build_arms(named, ["train.samples=[2, 4]"])
    assert [arm.name for arm in both[:3]] == ["process-1", "process-2", "outcome-1"]
    assert both[3].title == "outcome train.samples=4" and both[3].words == (*named["outcome"], "train.samples=4")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["proces"], "an arm is process, outcome or a YAML file of settings"),
        (["process", "process"], "process comes twice"),
        (["own.yaml"], r"seed \(set by own.yaml:1\): every run of a sweep has its own"),
    ],
)
def test_what_is_no_arm_is_refused(names, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("seed: 3\n")
    with pytest.raises(ConfigError, match=message):
        read_arms(names)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.prompts"], r"write KEY=\[VALUE, VALUE\]"),
        (["train.prompts=4,8"], r"write KEY=\[VALUE, VALUE\]"),
        (["train.prompts=[4]"], r"write KEY=\[VALUE, VALUE\]"),
        (["train.prompts=[4, 8]", "train.prompts=[2, 3]"], "comes twice"),
        (["train.prompts=[4, 4]"], "one setting twice"),
        (["train.prompts=[4"], "not valid YAML"),
        (["seed=[0, 1]"], "seeds are named by --seeds"),
        (["run.name=[a, b]"], "every run of a sweep has its own"),
    ],
)
def test_setting_without_a_list_of_values_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        expand_grid(words)


def test_wrong_input_writes_nothing(doubles, tmp_path, capsys):
    folder = tmp_path / "sweep"
    for words, message in (
        (("--vary", "train.promts=[1, 2]"), "train.promts: not a setting"),
        (("--vary", "train.prompts=[0, 2]"), "train.prompts: must be at least 1"),
        (
            ("--vary", "train.learning_rate=[1, 1.0]"),
            "train.learning_rate=1 and train.learning_rate=1.0 are one setting twice",
        ),
        (("--vary", "eval.samples=[1, 2]"), "for they differ in eval.samples (1 and 2)"),
        (("--vary", "eval.temperature=[1.0, 0.5]"), "for they differ in eval.temperature (1.0 and 0.5)"),
        (("--vary", "eval.problems=[4, 2]"), "for they evaluate other tasks (eval.problems)"),
        (("--vary", "eval.split=[eval, train]"), "for they evaluate other tasks (eval.split)"),
        (("--vary", "checkpoint.best=[true, false]"), "for they choose their checkpoint on other tasks"),
        (("--vary", "eval.selection=[0.5, 0.25]", "checkpoint.best=true"), "choose their checkpoint on other tasks"),
        (("--seeds", "0,one"), "--seeds 0,one: write whole numbers"),
        (("--seeds", "0,0"), "a seed stands there twice"),
        (("--name", "x"), "--folder DIR"),
    ):
        assert main(["sweep", "--folder", str(folder), *SHORT, *words]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
        assert not folder.exists()
    assert main(["sweep", "--resume", str(folder)]) == 2
    assert "is not the folder of a sweep" in " ".join(capsys.readouterr().err.split())
    assert main(["sweep", "--resume", str(folder), "--seeds", "0"]) == 2
    assert "leave everything out but --jobs" in " ".join(capsys.readouterr().err.split())
    folder.mkdir()
    assert main(["sweep", "--folder", str(folder), *SHORT]) == 2
    assert "--resume" in capsys.readouterr().err


def test_arms_whose_evaluations_come_to_the_same_are_compared(doubles, tmp_path):
    for number, words in enumerate(
        (
            ("eval.problems=[4, 9]",),  # there are four
            ("checkpoint.best=[true, false]", "eval.selection=null"),
            ("eval.selection=[0.5, 0.25]",),
            ("eval.every=[0, 1]",),
        )
    ):
        vary, *settings = words
        registry = load_registry()
        composed = compose(registry, "doubles", overrides=settings)
        folder = tmp_path / str(number)
        assert len(create_sweep(folder, composed, registry, arms=build_arms({}, [vary]), seeds=[0]).runs) == 2


def test_sweep_on_ray_without_ray_starts_nothing(doubles, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mappa_engine.cluster.requirements.installed_version", lambda library: None)
    assert main(["sweep", "--folder", str(tmp_path / "sweep"), "--ray", "auto", *SHORT]) == 2
    assert "--ray cannot start here (ray: not installed)" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "sweep").exists()


def test_arm_folder_with_a_run_is_resumed_and_an_empty_folder_is_started(tmp_path):
    run = SweepRun(arm="arm1", seed=4, folder="arm1-s4")
    arms = (SweepArm(name="arm1", title="a", words=("a=[1, 2]",)),)
    sweep = Sweep(plugin="p", recipe="r", blocked=("torch",), arms=arms, runs=(run,))
    running = SweepRunner(tmp_path, sweep, jobs=1, on_change=lambda now, run: None, launch=launch_locally)
    words = running.arguments(run)
    place = [f"run.root={tmp_path}", "run.name=arm1-s4", "seed=4"]
    config = ["--config", str(tmp_path / "config.yaml")]
    assert words == ["--block", "torch", "train", "--quiet", *config, "a=[1, 2]", *place]
    (tmp_path / "arm1-s4").mkdir()
    assert running.arguments(run)[2:] == ["train", "--quiet", "--resume", str(tmp_path / "arm1-s4")]


def test_a_sweep_of_a_newer_version_is_refused(tmp_path):
    (tmp_path / "sweep.json").write_text('{"schema": 99}')
    with pytest.raises(RunError, match="99"):
        load_sweep(tmp_path)


def test_a_sweep_of_a_stranger_starts_nothing_until_it_is_trusted(doubles, inside, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "sweep"
    assert main(["sweep", "--folder", str(folder), "--seeds", "0", *SHORT, "--quiet"]) == 0
    shutil.rmtree(folder / "all-s0" if (folder / "all-s0").exists() else folder / "arm1-s0")
    # Of one's own it goes on, whatever became of its runs.
    assert main(["sweep", "--resume", str(folder), "--quiet"]) == 0
    capsys.readouterr()
    for name, old, new in (("config.yaml", "right: 10.0", "right: 9.0"), ("sweep.json", "arm1-s0", "arm9-s0")):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))
        assert main(["sweep", "--resume", str(folder), "--quiet"]) == 2
        said = capsys.readouterr().err
        assert "sweep.json was not written here by you" in said and new in said and "--trust" in said
        (folder / name).write_text(text)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert main(["sweep", "--resume", str(folder), "--quiet"]) == 2
    assert main(["sweep", "--resume", str(folder), "--quiet", "--trust"]) == 0
    assert main(["sweep", "--resume", str(folder), "--quiet"]) == 0


def test_runs_of_a_sweep_get_the_file_of_their_plugin(tmp_path, monkeypatch):
    (tmp_path / "solo_file.py").write_text(
        "from mappa import coach\nfrom mappa_core import Role, Workflow\n"
        "class Solo(Workflow):\n    agents = {'one': Role(brief='Acts.')}\n    async def run(self, stage): pass\n"
        "@coach\ndef judge_solo(scene): return 5\n"
        "tasks = [{'prompt': 'x'}]\nsettings = {'policies.default.model': 'm'}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    folder = tmp_path / "sweep"
    launched = []

    async def launch(arguments, log):
        launched.append(arguments)
        log.touch()
        return 2

    monkeypatch.setattr("mappa.look.sweep.launch_locally", launch)
    assert main(["sweep", "--plugin", "./solo_file.py", "--seeds", "0", "--folder", str(folder), "--quiet"]) == 2
    assert main(["sweep", "--resume", str(folder), "--quiet"]) == 2
    for arguments in launched:
        assert arguments[arguments.index("--plugin") + 1] == str(tmp_path / "solo_file.py")
    assert len(launched) == 2 and load_sweep(folder).file == str(tmp_path / "solo_file.py")
