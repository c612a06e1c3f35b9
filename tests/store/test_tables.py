"""Tables of a run as data frames, and folders that are no run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mappa import runs
from mappa_core import ConfigError, RunError

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def folder(recorded_run, tmp_path_factory) -> Path:
    return recorded_run(tmp_path_factory.mktemp("runs"))


def test_every_table_is_a_data_frame(folder):
    with runs.open(folder) as run:
        for table in (run.trajectories, run.steps, run.verdicts, run.iterations, run.evaluations):
            frame, arrow = table.to_pandas(), table.to_arrow()
            assert len(frame) == len(arrow) == len(list(table)) > 0
            assert list(frame.columns) == arrow.column_names


def test_row_of_an_action_has_its_sample_and_verdict(folder):
    with runs.open(folder) as run:
        frame = run.steps.where(split="train").to_pandas()
        first = next(iter(run.steps.where(split="train")))
    row = frame.iloc[0]
    assert (row.step, row.agent, row.text) == (first.step.id, first.step.agent, first.step.completion.text)
    assert (row.score, row.completion_tokens) == (first.verdict.score, len(first.step.completion.tokens))
    assert {"iteration", "split", "stratum", "blame", "finish", "outcome_correct"} <= {*frame.columns}


def test_verdicts_of_an_iteration_are_those_of_its_trajectories(folder):
    with runs.open(str(folder)) as run:
        rows = list(run.trajectories.where(split="train", iteration=1))
        expected = [verdict for row in rows for verdict in run.trajectory(row.id).verdicts]
        assert [row.verdict for row in run.verdicts.where(split="train", iteration=1)] == expected != []


def test_halves_of_surrogate_pairs_do_not_break_a_frame():
    class Odd:
        def columns(self):
            return {"text": "half \ud83d"}

    assert runs.Table(lambda: [Odd()]).to_arrow().to_pylist() == [{"text": "half ?"}]


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("to_arrow", "pyarrow")])
def test_a_missing_package_is_named(folder, monkeypatch, method, package):
    monkeypatch.setitem(sys.modules, package, None)
    with runs.open(folder) as run, pytest.raises(ConfigError, match=rf'needs {package}: pip install "mappa\[data\]"'):
        getattr(run.steps, method)()


def test_settings_checkpoints_and_summary(folder):
    run = runs.open(folder)
    assert run.settings["train.iterations"] == 8 and "train:" in run.config
    assert [*run.checkpoints] == [] and run.summary.status == "done"
    run.close()


def test_a_folder_of_runs_is_no_run(folder, tmp_path):
    with pytest.raises(RunError, match=f"open one of them, such as {folder}"):
        runs.open(folder.parent)
    with pytest.raises(RunError, match=r"it has no run\.db"):
        runs.open(tmp_path)


def test_a_damaged_run_is_refused(recorded_run, tmp_path):
    damaged = recorded_run(tmp_path)
    (damaged / "run.db").write_bytes(b"no database" * 1000)
    with pytest.raises(RunError, match="it is not a database"):
        runs.open(damaged)


def test_table_of_a_closed_reader_is_an_error_that_says_so(folder):
    with runs.open(folder) as run:
        steps = run.steps
    with pytest.raises(RunError, match="is closed"):
        list(steps)
