"""Trackers hear of everything in its order, go on with the same run, and can neither stop nor delay it."""

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mappa.runs import RunReader
from mappa.testing import MemoryRecorder
from mappa.training.run import Run
from mappa.training.tracker_threads import TrackerThreads
from mappa_core import TrackedRun, Tracker

RUN = TrackedRun(id="ab" * 16, name="first", folder=Path("/nowhere"), plugin="p", recipe="tiny", seed=0)


def start(registry, root, *settings):
    words = (f"run.root={root}", "trackers=[{use: notes}]", "train.iterations=2", *settings)
    return Run.from_recipe("doubles/tiny", *words, registry=registry)


def notes(registry):
    return registry.plugins["doubles"].offers["trackers"]["notes"].build.made


class Slow(Tracker):
    """Waits until it is let go."""

    def __init__(self, *, fails_at_start=False):
        self.go = threading.Event()
        self.calls = []
        self.threads = set()
        self._fails_at_start = fails_at_start

    def __getattribute__(self, name):
        if name not in ("start", "log", "action", "verdict", "rollout", "close"):
            return super().__getattribute__(name)

        def call(*what):
            self.go.wait(20)
            self.calls.append(name)
            self.threads.add(threading.get_ident())
            if name == "start" and self._fails_at_start:
                raise SystemExit("no network")

        return call

    def log(self, iteration, metrics): ...


def test_a_run_is_told_with_its_actions_verdicts_rollouts_and_figures(registry, tmp_path):
    before = time.time()
    trained = start(registry, tmp_path, "eval.every=1").train()
    (one,) = notes(registry)
    (run,) = one.runs
    with RunReader(trained.folder) as reader:
        rows = list(reader.trajectories)
        trajectories = {row.id: reader.trajectory(row.id) for row in rows}
        assert [(at, metrics) for at, metrics in one.logged if "accuracy" in metrics] == [
            (report.iteration, report.metrics()) for report in reader.iterations
        ]
    assert (run.name, run.folder, run.done, run.seed) == (trained.folder.name, trained.folder, 0, 0)
    assert (run.plugin, run.recipe, run.config["train"]["iterations"]) == ("doubles", "tiny", 2)
    assert {split for split, _, _ in one.rollouts} == {"train", "eval"}
    assert sorted(trajectory.id for _, trajectory, _ in one.rollouts) == sorted(trajectories)
    heard = {step.id: trajectory for trajectory, step, _ in one.actions}
    recorded = {step.id: trajectory.id for trajectory in trajectories.values() for step in trajectory.steps}
    assert heard == recorded
    verdicts = {verdict.id: trajectory for trajectory, verdict, _ in one.verdicts}
    assert verdicts == {v.id: t.id for t in trajectories.values() for v in t.verdicts} and verdicts
    times = [ended for *_, ended in one.actions]
    assert times == sorted(times) and before <= times[0] <= times[-1] <= time.time()
    evaluated = [(at, metrics) for at, metrics in one.logged if "eval/accuracy" in metrics]
    assert [at for at, _ in evaluated] == [0, 1, 2]
    means = [evaluation.interval.mean for evaluation in trained.evaluations]
    assert [metrics["eval/accuracy"] for _, metrics in evaluated] == means
    assert one.ending == "done"


def test_resumed_run_keeps_its_id_and_sends_only_new_records(registry, tmp_path):
    first = start(registry, tmp_path, "eval.every=1").train()
    Run.resume(first.folder, "train.iterations=3", registry=registry).train()
    before, after = notes(registry)
    assert after.runs[0].id == before.runs[0].id and len(after.runs[0].id) == 32
    assert (before.runs[0].done, after.runs[0].done) == (0, 2)
    assert after.heard == [3]
    assert [at for at, metrics in after.logged if "eval/accuracy" in metrics] == [3]
    assert not {step.id for _, step, _ in before.actions} & {step.id for _, step, _ in after.actions}
    assert {name.split("/")[0] for name, *_ in after.actions} == {"train-000002", "eval-000003"}


def test_trackers_are_told_that_a_run_was_stopped(registry, tmp_path):
    class Stopping:
        def __getattr__(self, name):
            def hear(*what):
                if name == "on_iteration_end":
                    raise asyncio.CancelledError

            return hear

    with pytest.raises(asyncio.CancelledError):
        start(registry, tmp_path).train(Stopping())
    assert notes(registry)[0].ending == "stopped"


def test_run_does_not_wait_for_a_hanging_tracker():
    slow, patience = Slow(), 0.05
    tracking = TrackerThreads([("slow", slow)], max_queued=3, close_timeout_s=patience)
    tracking.start(RUN)
    tracking.log(1, {"accuracy": 1.0})
    for _ in range(5):
        tracking.send_record("action", "t", None)
    tracking.log(2, {"accuracy": 1.0})
    (trouble,) = tracking.close("done")
    assert trouble.left_busy and trouble.failures == 0
    # One call is with the tracker already, or still waits: of three places two or three are free.
    assert trouble.dropped in (3, 4)
    slow.go.set()
    tracking._threads[0].join(5)
    assert slow.calls[0] == "start" and slow.calls[-2:] == ["log", "close"] and slow.calls.count("log") == 2
    assert len(slow.threads) == 1


def test_tracker_whose_start_fails_is_closed_and_gets_no_records():
    slow = Slow(fails_at_start=True)
    slow.go.set()
    tracking = TrackerThreads([("slow", slow)])
    tracking.start(RUN)
    tracking.log(1, {})
    (trouble,) = tracking.close("failed")
    assert slow.calls == ["start", "close"]
    assert (trouble.failures, trouble.error, trouble.left_busy) == (1, "start: SystemExit: no network", False)


def test_run_without_trackers_writes_directly_to_its_store():
    store = MemoryRecorder()
    assert TrackerThreads([]).recorder(store) is store


def test_run_with_a_metrics_tracker_writes_directly_to_its_store():
    class Metrics(Tracker):
        def log(self, iteration, metrics): ...

    store = MemoryRecorder()
    assert TrackerThreads([("metrics", Metrics())]).recorder(store) is store


def test_default_tracker_is_started_unless_the_recipe_configures_it(registry, tmp_path):
    plugin = registry.plugins["doubles"]
    notes_offer = replace(plugin.offers["trackers"]["notes"], default=True)
    offers = {**plugin.offers, "trackers": {"notes": notes_offer}}
    registry = replace(registry, plugins={**registry.plugins, "doubles": replace(plugin, offers=offers)})
    for number, settings in enumerate((["trackers=[]"], [])):
        start(registry, tmp_path, "train.iterations=1", *settings).train()
        assert len(notes(registry)) == number + 1


def test_when_a_tracker_is_closed_the_folder_of_the_run_is_complete(registry, tmp_path, monkeypatch):
    seen = []

    def close(self, ending):
        with RunReader(self.runs[0].folder) as reader:
            seen.append((ending, reader.summary.status, len(list(reader.iterations))))

    monkeypatch.setattr(type(registry.build("trackers", "notes")), "close", close)
    start(registry, tmp_path / "runs", f"store.scratch={tmp_path / 'scratch'}").train()
    assert seen == [("done", "done", 2)]


def test_every_figure_of_a_run_is_in_the_documented_set(registry, tmp_path, documented_metric):
    start(registry, tmp_path, "eval.every=1", "checkpoint.best=true", "eval.selection=0.5", "eval.problems=8").train()
    (one,) = notes(registry)
    names = {name for _, metrics in one.logged for name in metrics}
    assert {name for name in names if documented_metric(name) is None} == set()
    assert {"selection/accuracy", "eval/accuracy", "accuracy", "seconds/collect"} <= names
