"""Counterfactual rollouts inside a run: they reward, and touch nothing else."""

from __future__ import annotations

import sqlite3

import pytest

from mappa.runs import RunReader
from mappa.training import Run
from mappa.training.listener import Listener
from mappa_core import ConfigError

TEXTS = "{doubler: '0', checker: '0'}"
DEFAULT = (
    "credit.counterfactual.use=default",
    f"credit.counterfactual.default_actions={TEXTS}",
    "shapers=[{use: difference}]",
)


@pytest.fixture
def start(registry, tmp_path):
    def start(*settings, name="run"):
        words = (f"run.root={tmp_path}", f"run.name={name}", *settings)
        return Run.from_recipe("doubles/tiny", *words, registry=registry)

    return start


def of(folder, split):
    with RunReader(folder) as reader:
        return [reader.trajectory(row.id) for row in reader.trajectories.where(split=split)]


def metrics(folder):
    with RunReader(folder) as reader:
        return [
            {name: value for name, value in report.metrics().items() if not name.startswith("seconds/")}
            for report in reader.iterations
        ]


def traces(folder):
    """Everything recorded but times."""
    with sqlite3.connect(folder / "run.db") as db:
        steps = db.execute("SELECT id, agent, turn, tokens FROM steps ORDER BY id").fetchall()
        verdicts = db.execute("SELECT id, step, score FROM verdicts ORDER BY id").fetchall()
        ends = db.execute("SELECT id, split, outcome, error FROM trajectories ORDER BY id").fetchall()
    return steps, verdicts, ends, metrics(folder)


def _apart_from_rewards(found):
    return {name: value for name, value in found.items() if not name.startswith(("counterfactual/", "policy/"))}


def test_counterfactuals_change_nothing_of_a_run_but_its_rewards(start, counterfactual_credit):
    plain, weighed = start(name="plain").train(), start(*DEFAULT, name="weighed").train()
    before, after = metrics(plain.folder), metrics(weighed.folder)
    for one, other in zip(before, after, strict=True):
        assert _apart_from_rewards(other) == _apart_from_rewards(one)
        assert (other["counterfactual/rollouts"], other["counterfactual/settled"], other["counterfactual/lost"]) == (
            8,
            8,
            0,
        )
    for split in ("train", "eval"):
        assert [one.outcome for one in of(plain.folder, split)] == [one.outcome for one in of(weighed.folder, split)]
        assert [one.verdicts == () for one in of(weighed.folder, split)] == [
            one.verdicts == () for one in of(plain.folder, split)
        ]
    assert weighed.summary.coach == plain.summary.coach and weighed.summary.eval == plain.summary.eval
    played = of(weighed.folder, "counterfactual")
    assert len(played) == 4 * 8 and all(one.verdicts == () for one in played)
    # 0 is wrong wherever it stands, so both actions are worth what the team got.
    for one in of(weighed.folder, "train"):
        assert [counterfactual_credit(one, place, "correct").value for place in (0, 1)] == [one.outcome["correct"]] * 2


def test_run_killed_during_counterfactuals_resumes_to_equal_records(
    start, registry, tmp_path, monkeypatch, store_class
):
    whole = start(*DEFAULT, "train.iterations=2", "checkpoint.every=1", name="whole").train()
    real = store_class.record_step

    class Killed(BaseException):
        pass

    for number, killed_at in enumerate((6, 16)):
        seen = []

        def step(self, trajectory, one, seen=seen, killed_at=killed_at):
            real(self, trajectory, one)
            seen += [one.id] if trajectory.startswith("counterfactual/") else []
            if len(seen) == killed_at:
                raise Killed

        monkeypatch.setattr(store_class, "record_step", step)
        with pytest.raises(BaseException):  # noqa: B017 - a group that holds the kill
            start(*DEFAULT, "train.iterations=2", "checkpoint.every=1", name=f"killed{number}").train()
        monkeypatch.setattr(store_class, "record_step", real)
        folder = tmp_path / f"killed{number}"
        Run.resume(folder, registry=registry).train()
        assert traces(folder) == traces(whole.folder)


def test_resume_after_an_update_without_checkpoint_plays_no_counterfactual_again(start, registry, tmp_path):
    class Killed(BaseException):
        pass

    class Killer(Listener):
        def on_iteration_end(self, report):
            if report.iteration == 3:
                raise Killed

    whole = start(*DEFAULT, "checkpoint.every=4", name="whole").train()
    with pytest.raises(Killed):
        start(*DEFAULT, "checkpoint.every=4").train(Killer())
    Run.resume(tmp_path / "run", registry=registry).train()
    assert traces(tmp_path / "run") == traces(whole.folder)


@pytest.mark.parametrize("staleness", ["{max_staleness: 2, straggler_share: 0.4}"])
def test_counterfactuals_belong_to_the_iteration_that_learns_from_their_trajectory(start, staleness):
    trained = start(*DEFAULT, f"engine={{use: paced, options: {staleness}}}", "train.iterations=6").train()
    found = metrics(trained.folder)
    assert [one["counterfactual/settled"] for one in found] == [2 * one["rollouts"] for one in found]
    assert len(of(trained.folder, "counterfactual")) == sum(one["counterfactual/rollouts"] for one in found)


def test_listener_hears_the_bound_on_counterfactuals_before_the_start(start):
    heard = []

    class Ears(Listener):
        def on_counterfactuals(self, extra):
            heard.append(extra)

    start(*DEFAULT, "train.iterations=1").train(Ears())
    start("train.iterations=1", name="plain").train(Ears())
    assert [one.rollouts for one in heard] == [None]  # the workflow does not bound its turns


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("shapers=[{use: difference}]",), "difference needs counterfactual rollouts"),
        (("credit.counterfactual.use=default",), "has no default action of doubler, checker"),
        (("credit.counterfactual={use: resample, agents: [doublr]}",), "agents: 'doublr' is no agent"),
        (("credit.counterfactual.use=redo",), "must be one of none, sibling, resample, default"),
        (("credit.counterfactual.share=0",), "must be above 0 and at most 1"),
        (("credit.counterfactual.samples=0",), "at least 1"),
    ],
)  # fmt: skip
def test_invalid_counterfactual_settings_are_refused_before_anything_is_written(start, tmp_path, settings, said):
    with pytest.raises(ConfigError, match=said):
        start(*settings).train()
    assert not (tmp_path / "run").exists()
