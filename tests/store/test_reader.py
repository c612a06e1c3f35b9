from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mappa.runs import RunReader
from mappa.store.folder import RunFolder
from mappa_core import Failure, RunError, Step, Task, Trajectory, Verdict
from mappa_core.codec import to_json

Make = Callable[..., Step]
Judge = Callable[..., Verdict]


@pytest.fixture
def filled(
    run: RunFolder, task: Task, make_step: Make, make_verdict: Judge, finished: Callable[..., Trajectory]
) -> RunFolder:
    """Six trajectories of two iterations: done, failed and open ones."""
    for number in range(6):
        identity, iteration = f"t{number}", number // 3
        run.store.begin_trajectory("train", identity, task, number, iteration)
        for position in range(2):
            run.store.record_step(identity, make_step(identity, position))
            run.store.record_verdict(make_verdict(f"{identity}/{position}", float(number + position)))
        if number % 3 == 0:
            run.store.end_trajectory(finished(identity, sample=number, iteration=iteration))
        if number % 3 == 1:
            run.store.end_trajectory(finished(identity, outcome={}, error=Failure(kind="ToolError", message="lost")))
    return run


def test_trajectories_come_in_pages_and_by_iteration(filled: RunFolder) -> None:
    with RunReader(filled.path) as reader:
        assert [row.id for row in list(reader.trajectories)[:4]] == ["t0", "t1", "t2", "t3"]
        assert [row.id for row in list(reader.trajectories)[4:]] == ["t4", "t5"]
        assert [row.id for row in list(reader.trajectories.where(split="train", iteration=1))[1:]] == ["t4", "t5"]
        assert list(reader.trajectories.where(split="eval")) == []


def test_row_has_the_status_of_its_trajectory(filled: RunFolder) -> None:
    with RunReader(filled.path) as reader:
        done, failed, still_open = list(reader.trajectories)[:3]
    assert (done.status, done.outcome, done.error, done.seconds) == ("done", {"correct": 1.0}, None, 1.5)
    assert (failed.status, failed.error) == ("failed", Failure(kind="ToolError", message="lost"))
    assert (still_open.status, still_open.outcome, still_open.seconds) == ("open", {}, None)
    assert (still_open.task, still_open.stratum, still_open.sample, still_open.steps) == ("sum-7", "sum", 2, 2)


def test_the_latest_verdicts_are_those_of_the_newest_finished_trajectories(filled: RunFolder) -> None:
    with RunReader(filled.path) as reader:
        found = reader.latest_verdicts("train", limit=5)
        whole = reader.verdict(found[0].verdict.step, found[0].verdict.id)
        with pytest.raises(RunError, match="no verdict 'other'"):
            reader.verdict(found[0].verdict.step, "other")
    assert [(row.trajectory, row.verdict.score, dict(row.outcome)) for row in found] == [
        ("t4", 4.0, {}), ("t4", 5.0, {}), ("t3", 3.0, {"correct": 1.0}), ("t3", 4.0, {"correct": 1.0}), ("t1", 1.0, {}),
    ]  # fmt: skip
    assert (whole.step, whole.score) == ("t4/0", 4.0)


def test_the_latest_verdicts_on_an_action_come_by_arrival(filled: RunFolder, make_verdict: Judge) -> None:
    for number, name in enumerate("zayb"):
        filled.store.record_verdict(make_verdict("t4/0", float(number), id=name, phase="again"))
    with RunReader(filled.path) as reader:
        found = [row.verdict for row in reader.latest_verdicts("train", limit=9) if row.verdict.step == "t4/0"]
        assert [one.id for one in found][-4:] == list("zayb")
        assert [one.id for one in found] == [row.verdict.id for row in reader.verdicts if row.verdict.step == "t4/0"]


def test_a_query_reads_and_cannot_write(filled: RunFolder) -> None:
    with RunReader(filled.path) as reader:
        assert reader.query("SELECT agent, count(*) FROM steps WHERE agent = ? GROUP BY 1", "solver") == [("solver", 6)]
        with pytest.raises(RunError, match=r"run\.db"):
            reader.query("DELETE FROM steps")
        with pytest.raises(RunError, match="no such column: unknown"):
            reader.query("SELECT unknown FROM steps")
        with pytest.raises(RunError, match=r"syntax error.*SELEC agent"):
            reader.query("SELEC agent FROM steps")
        for wrong in ("SELECT 1; SELECT 2", "SELECT ?"):
            with pytest.raises(RunError, match=r"run\.db"):
                reader.query(wrong)
    assert len(list(RunReader(filled.path).steps)) == 12


def test_trajectory_is_read_as_it_was_written(
    filled: RunFolder, task: Task, make_step: Make, make_verdict: Judge
) -> None:
    with RunReader(filled.path) as reader:
        trajectory = reader.trajectory("t3")
    assert trajectory.task == task
    assert (trajectory.sample, trajectory.iteration, trajectory.outcome) == (3, 1, {"correct": 1.0})
    assert [to_json(step) for step in trajectory.steps] == [to_json(make_step("t3", 0)), to_json(make_step("t3", 1))]
    assert trajectory.verdicts == (make_verdict("t3/0", 3.0), make_verdict("t3/1", 4.0))


def test_an_unknown_trajectory_is_refused(run: RunFolder) -> None:
    with RunReader(run.path) as reader, pytest.raises(RunError, match="no trajectory 'nobody'"):
        reader.trajectory("nobody")


def test_counts_are_by_status(filled: RunFolder) -> None:
    with RunReader(filled.path) as reader:
        assert reader.counts() == {"done": 2, "failed": 2, "open": 2}
        assert reader.counts("train", 0) == {"done": 1, "failed": 1, "open": 1}
        assert reader.counts("eval") == {}


def test_tables_narrow_to_a_split_and_an_iteration(filled: RunFolder) -> None:
    with RunReader(filled.path) as reader:
        steps = list(reader.steps.where(split="train", iteration=0))
        assert {row.trajectory for row in steps} == {"t0", "t1", "t2"} and len(list(reader.steps)) == 2 * len(steps)
        assert to_json([row.step for row in steps[:2]]) == to_json(reader.trajectory("t0").steps)
        assert list(reader.verdicts.where(split="eval")) == []


def test_the_last_verdict_with_a_score_counts(filled: RunFolder) -> None:
    filled.store.record_verdict(Verdict(status="failed", error="timeout", id="x", step="t0/0", coach="rules"))
    filled.store.record_verdict(Verdict(status="scored", score=9.0, id="y", step="t0/1"))
    with RunReader(filled.path) as reader:
        first, second, *_ = reader.steps
    assert (first.verdict.score, second.verdict.score) == (0.0, 9.0)


def test_a_reader_sees_what_a_run_writes_meanwhile_and_does_not_stop_it(
    run: RunFolder, task: Task, make_step: Make
) -> None:
    with RunReader(run.path) as reader:
        run.store.begin_trajectory("train", "t0", task, 0, 0)
        for position in range(20):
            run.store.record_step("t0", make_step("t0", position))
            assert len(reader.trajectory("t0").steps) == position + 1
        with reader._database.snapshot():
            reader._database.rows("SELECT count(*) FROM steps")
            run.store.record_step("t0", make_step("t0", 20))
            run.store.flush()
            assert reader._database.rows("SELECT count(*) FROM steps") == [(20,)]
        assert len(reader.trajectory("t0").steps) == 21


def test_a_run_can_close_while_it_is_read(run: RunFolder, task: Task) -> None:
    run.store.begin_trajectory("train", "t0", task, 0, 0)
    with RunReader(run.path) as reader:
        assert reader.counts() == {"open": 1}
        run.close()
        assert reader.counts() == {"open": 1}
    with RunReader(run.path) as reader:
        assert reader.counts() == {"open": 1}


def test_a_reader_cannot_write(run: RunFolder) -> None:
    with RunReader(run.path) as reader, pytest.raises(RunError, match="cannot be written to"):
        reader._database.rows("DELETE FROM meta")


def test_a_copied_folder_of_a_closed_run_can_be_read(filled: RunFolder, tmp_path: Path) -> None:
    filled.close()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "run.db").write_bytes((filled.path / "run.db").read_bytes())
    with RunReader(tmp_path / "copy") as reader:
        assert len(list(reader.trajectories)) == 6
