"""Runs that lose a process of their engine, skip steps that are not finite, or fill the disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mappa.runs import RunReader
from mappa.testing import ScriptedEngine
from mappa.training import Run
from mappa.training.skipped_steps import count_consecutive_skips
from mappa_core import Experience, GuardStop
from mappa_core.engine import EngineError, EngineLost, Process

HERE = Path(__file__).parent


@pytest.fixture
def start(registry, tmp_path):
    """A run of the doubles on the paced engine."""

    def make(*settings, options="", name="run"):
        words = (
            f"run.root={tmp_path / 'runs'}",
            f"run.name={name}",
            "engine.use=paced",
            f"engine.options={{{options}}}",
        )
        return Run.from_recipe("doubles/tiny", *words, "eval.problems=1", *settings, registry=registry)

    return make


@pytest.fixture
def engines(registry):
    """The engines that runs were given, and the losses that they will have."""
    return registry.plugins["doubles"].offers["engines"]["paced"].build


def events(folder, kind):
    with RunReader(folder) as reader:
        return [event.body for event in reader.events(kind)]


# --- a lost engine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_run_that_loses_its_engine_goes_on_from_its_last_checkpoint_in_the_same_process(start, engines, staleness):
    engines.losses += [4, 1]
    trained = start(options=f"max_staleness: {staleness}").train()
    assert (trained.summary.status, trained.summary.iterations) == ("done", 4)
    assert len(engines.made) == 3 and engines.losses == []
    assert [[name[:12] for name in names[::4]] for names in engines.made[-1].learned] == [
        [f"train-{number:06d}"] for number in range(4)
    ]
    assert events(trained.folder, "engine_lost") == [
        {"number": number, "actor": "learner-0", "error": "learner 0 was killed"} for number in (1, 2)
    ]
    assert [body["iteration"] for body in events(trained.folder, "resumed")] == [2]


def test_engine_lost_too_often_stops_the_run_and_the_run_can_be_resumed(start, engines, tmp_path, registry, kept):
    engines.losses += [3, 3, 3]
    with pytest.raises(GuardStop, match=r"lost 2 times \(train.max_restarts=1\), the last time: learner 0 was killed"):
        start("train.max_restarts=1").train()
    folder = tmp_path / "runs" / "run"
    with RunReader(folder) as reader:
        assert reader.summary.status == "failed"
    assert kept(folder) == (2,)
    assert Run.resume(folder, "train.max_restarts=2", registry=registry).train().summary.status == "done"
    assert len(events(folder, "engine_lost")) == 3


class Defect(EngineError):
    """What an engine cannot go on after, though no process of it is lost."""


@pytest.mark.parametrize("moments", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_whatever_the_engine_dies_of_and_when_the_run_learns_the_same(start, engines, moments):
    iterations = moments + 2
    settings = (f"train.iterations={iterations}", "checkpoint.every=1", "train.max_restarts=60")
    undisturbed = start(*settings, options="deterministic: true", name="undisturbed").train()
    learned, calls = engines.made[-1].learned, dict(engines.calls)
    random = np.random.default_rng(0)
    engines.calls.clear()
    deaths = [
        (method, int(number) + 1, fault)
        for method in ("sample", "update", "publish", "save")
        for number, fault in zip(
            random.choice(calls[method], moments, replace=False),
            [Defect(f"{method} broke"), EngineLost(f"{method} was killed", actor="one")] * moments,
            strict=False,
        )
    ]
    engines.faults = {(method, number): fault for method, number, fault in deaths}
    assert len(engines.faults) == 4 * moments
    trained = start(*settings, options="deterministic: true").train()
    assert (trained.summary.status, trained.summary.iterations) == ("done", iterations)
    assert engines.faults == {}
    assert trained.summary.engine_losses == len(events(trained.folder, "engine_lost")) == 4 * moments
    assert engines.made[-1].learned == learned
    assert undisturbed.summary.engine_losses == 0


def test_every_process_that_the_engine_replaced_is_an_event(start, monkeypatch):
    def processes(engine):
        return (Process(role="sampler", pid=1 + engine.updates, host="here", lost=("it was killed",) * engine.updates),)

    monkeypatch.setattr(ScriptedEngine, "processes", property(processes))
    trained = start("train.iterations=2").train()
    assert events(trained.folder, "process_lost") == [{"error": "it was killed"}] * 2
    assert trained.summary.engine_losses == 2


def test_a_process_lost_in_the_last_evaluation_is_an_event(start, engines, monkeypatch):
    start(name="undisturbed").train()
    last = engines.calls["sample"]
    engines.calls.clear()

    def processes(engine):
        ended = ("it was killed",) if engines.calls["sample"] == last else ()
        return (Process(role="sampler", pid=1, host="here", lost=ended),)

    monkeypatch.setattr(ScriptedEngine, "processes", property(processes))
    trained = start().train()
    assert events(trained.folder, "process_lost") == [{"error": "it was killed"}]
    assert trained.summary.engine_losses == 1


def test_a_fault_that_repeats_ends_the_run_after_three_restarts(start, engines):
    engines.faults = {("update", number): Defect("a bug of its own") for number in range(1, 10)}
    with pytest.raises(GuardStop, match=r"lost 4 times \(train.max_restarts=3\), the last time: a bug of its own"):
        start().train()
    assert engines.calls["update"] == 4


# --- steps that are not finite ----------------------------------------------------------------------------------------


def test_rows_of_a_skipped_step_are_stored_and_the_run_continues(start, engines):
    trained = start(options="skips: [2]").train()
    assert trained.summary.status == "done"
    bodies = events(trained.folder, "skipped")
    assert [(body["iteration"], body["policy"], body["steps"]) for body in bodies] == [
        (2, "doubler", 2), (2, "checker", 2)
    ]  # fmt: skip
    with RunReader(trained.folder) as reader:
        rows = [reader.trajectory(row.id) for row in reader.trajectories.where(split="train", iteration=1)]
    steps = {step.id: step for row in rows for step in row.steps if step.agent == "doubler"}
    kept = np.load(trained.folder / bodies[0]["file"], allow_pickle=False)
    assert sorted(kept["steps"]) == sorted(steps)
    absent = {
        "old_logprobs", "ref_logprobs", "teacher_logprobs", "values", "demonstrations", "mask_tokens", "mask_offsets",
    }  # fmt: skip
    assert set(Experience.__dataclass_fields__) - set(kept.files) == absent
    for row, name in enumerate(kept["steps"]):
        span = slice(*kept["offsets"][row : row + 2])
        np.testing.assert_array_equal(kept["tokens"][span], steps[str(name)].completion.tokens)
        assert np.unique(kept["advantages"][span]).tolist() == [kept["reward"][row]]


def test_too_many_skipped_steps_in_a_row_stop_the_run_with_a_checkpoint(start, tmp_path, registry, kept):
    run = start("checkpoint.every=10", options="skips: [1, 2]")
    with pytest.raises(GuardStop, match=r"'doubler': 4 optimiser steps in a row were skipped \(train.max_skipped=3\)"):
        run.train()
    folder = tmp_path / "runs" / "run"
    assert kept(folder) == (2,)
    assert sorted(path.name for path in (folder / "skipped").iterdir()) == [
        f"00000{number}-{policy}.npz" for number in (1, 2) for policy in ("checker", "doubler")
    ]
    assert Run.resume(folder, registry=registry).train().summary.status == "done"


def test_taken_step_ends_a_series_of_skips_and_an_empty_iteration_does_not():
    def iteration(taken, skipped):
        return {"a": {"steps": taken, "skipped": skipped}}

    assert count_consecutive_skips([iteration(0, 2), iteration(0, 1)], "a") == 3
    assert count_consecutive_skips([iteration(0, 2), iteration(1, 1)], "a") == 1
    assert count_consecutive_skips([iteration(0, 2), iteration(0, 0), {}, iteration(0, 1)], "a") == 3
    assert count_consecutive_skips([iteration(0, 2), iteration(1, 0)], "a") == 0
    assert count_consecutive_skips([iteration(0, 2)], "b") == 0


# --- a full disk ------------------------------------------------------------------------------------------------------

PROGRAM = """
import resource, runpy, sys
from pathlib import Path
import mappa.cli.options as options
import mappa.cli.train as train
from mappa.cli import main
from mappa.testing import load_plugins

conftest, recipe, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
doubles = runpy.run_path(str(conftest))["Plugin"](recipe)
registry = load_plugins(only=("engine", "sandbox"), modules={"doubles": doubles})
train.load_registry = lambda: registry
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main(sys.argv[4:]))
"""


def test_full_disk_ends_the_run_with_an_error_and_the_run_can_be_resumed(registry, tmp_path):
    folder, settings = tmp_path / "run", ("engine.use=paced", "engine.options={max_staleness: 1}", "eval.problems=1")
    command = [sys.executable, "-c", PROGRAM, str(HERE / "conftest.py"), str(tmp_path / "tiny.yaml")]
    words = ("train", "--plugin", "doubles", "--quiet", f"run.root={tmp_path}", "run.name=run", "train.iterations=400")
    full = subprocess.run([*command, "1500000", *words, *settings], capture_output=True, text=True, timeout=200)
    assert full.returncode == 2, full.stderr
    assert "run.db" in full.stderr and f"go on by --resume {folder}" in full.stderr
    assert "Traceback" not in full.stderr
    with RunReader(folder) as reader:
        done = len(list(reader.iterations))
    assert done >= 2
    again = Run.resume(folder, f"train.iterations={done + 2}", registry=registry).train()
    assert (again.summary.status, again.summary.iterations) == ("done", done + 2)
