"""Labels are kept beside verdicts, once by labeller; runs of earlier schemas have none until they are written to."""

import runpy
import sqlite3
from pathlib import Path

import pytest

from mappa.runs import RunReader
from mappa.store.folder import RunFolder
from mappa.store.schema import DATABASE_SCHEMA
from mappa.store.writer import Store
from mappa_core.errors import ReplayError
from mappa_core.records import Label

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_0_1_0" / "build.py"
GUILT = Label(kind="guilt", trajectory="t0", step="t0/1", agent="writer", reason="Adds where it should multiply.")
STEP = Label(kind="quality", trajectory="t0", step="t0/1", value=-1.0)
WHOLE = Label(kind="quality", trajectory="t0", value=0.0, labeller="rule")


@pytest.fixture
def labelled(run, task, make_step):
    for name in ("t0", "t1"):
        run.store.begin_trajectory("train", name, task, 0 if name == "t0" else 1, 0)
        run.store.record_step(name, make_step(name, 1))
    for label in (GUILT, STEP, WHOLE):
        run.store.record_label(label)
    return run


def test_what_is_recorded_is_what_was_said(labelled):
    other = Label(kind="quality", trajectory="t1", step="t1/1", value=1.0)
    labelled.store.record_label(other)
    with RunReader(labelled.path) as reader:
        assert reader.labels() == [GUILT, STEP, WHOLE, other]
        assert reader.labels("t1") == [other]
        assert reader.labels("t2") == []


def test_a_labeller_says_one_thing_about_a_step(labelled):
    labelled.store.record_label(STEP)
    with pytest.raises(ReplayError, match="the label of t0/1 is recorded already, and it is another one"):
        labelled.store.record_label(Label(kind="quality", trajectory="t0", step="t0/1", value=1.0))
    labelled.store.record_label(Label(kind="quality", trajectory="t0", step="t0/1", value=1.0, labeller="second"))
    with RunReader(labelled.path) as reader:
        assert [one.value for one in reader.labels("t0")] == [None, -1.0, 0.0, 1.0]


def test_a_label_belongs_to_a_trajectory_of_the_run(labelled):
    with pytest.raises(sqlite3.IntegrityError):
        labelled.store.record_label(Label(kind="quality", trajectory="elsewhere", value=1.0))


def test_no_reader_of_trajectories_sees_a_label(labelled):
    """Coaches are asked, and learn, from trajectories: a label that is not on one cannot reach them."""
    with RunReader(labelled.path) as reader:
        assert "multiply" not in repr(reader.trajectory("t0"))
        assert "multiply" not in repr([*reader.trajectories, *reader.steps, *reader.verdicts])
    assert "multiply" not in repr(labelled.store.load_recorded("train", 0))


def test_a_run_of_schema_2_is_read_without_labels_and_takes_them_once_it_is_written_to(run: RunFolder, task):
    run.store.begin_trajectory("train", "t0", task, 0, 0)
    run.close()
    with sqlite3.connect(run.path / "run.db") as database:
        database.executescript("DROP TABLE labels; PRAGMA user_version = 2")
    with RunReader(run.path) as reader:
        assert reader.labels() == []
    store = Store(run.path / "run.db")
    store.record_label(WHOLE)
    store.close()
    with RunReader(run.path) as reader:
        assert reader.labels() == [WHOLE]
        assert [row.id for row in reader.trajectories] == ["t0"]


def test_a_run_of_0_1_0_takes_labels_too(tmp_path):
    old = runpy.run_path(str(FIXTURE))["build"](tmp_path / "old")
    with RunReader(old) as reader:
        assert reader.labels() == []
        trajectory = next(iter(reader.trajectories)).id
    store = Store(old / "run.db")
    store.record_label(Label(kind="quality", trajectory=trajectory, value=1.0))
    store.close()
    with RunReader(old) as reader:
        assert [one.trajectory for one in reader.labels()] == [trajectory]
    with sqlite3.connect(old / "run.db") as database:
        assert database.execute("PRAGMA user_version").fetchone() == (DATABASE_SCHEMA,)
