"""Labels are kept beside verdicts, once by labeller."""

import sqlite3

import pytest

from mappa.runs import RunReader
from mappa_core import ReplayError
from mappa_core.records import Label

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
