from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mappa
from mappa.runs import RunReader
from mappa.store.folder import RunFolder
from mappa.store.iteration_report import IterationReport
from mappa.store.writer import Store
from mappa_core import Failure, ReplayError, RunError, Step, Task, Trajectory, Usage, Verdict
from mappa_core.codec import to_json

Make = Callable[..., Step]
Judge = Callable[..., Verdict]


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(folder / "run.db") as connection:
        return connection.execute(query).fetchall()


def test_records_are_read_as_they_were_written(
    run: RunFolder, task: Task, make_step: Make, make_verdict: Judge, finished: Callable[..., Trajectory]
) -> None:
    steps = tuple(make_step("t0", position) for position in range(3))
    verdicts = tuple(make_verdict("t0/1", score, id=f"v{-score}") for score in (2.0, 9.0, 4.0))
    run.store.begin_trajectory("train", "t0", task, 0, 4)
    run.store.begin_trajectory("train", "t1", task, 1, 4)
    for step in steps:
        run.store.record_step("t0", step)
    for verdict in verdicts:
        run.store.record_verdict(verdict)
    error = Failure(kind="PromptTooLong", message="too long", quoted={"t0/1": 9})
    run.store.end_trajectory(finished("t0", iteration=4, error=error))

    recorded = run.store.load_recorded("train", 4)
    assert list(recorded) == ["t0", "t1"]
    ended, begun = recorded["t0"].trajectory, recorded["t1"].trajectory
    assert [to_json(step) for step in ended.steps] == [to_json(step) for step in steps]
    assert ended.verdicts == verdicts
    assert recorded["t0"].finished
    assert ended.outcome == {"correct": 1.0}
    assert ended.error == error
    assert ended.seconds == 1.5
    assert not recorded["t1"].finished
    assert (begun.steps, begun.outcome, begun.seconds) == ((), {}, 0.0)
    assert run.store.load_recorded("eval", 4) == {} == run.store.load_recorded("train", 5)


def test_repeated_write_changes_nothing(
    run: RunFolder, task: Task, make_step: Make, make_verdict: Judge, finished: Callable[..., Trajectory]
) -> None:
    def write() -> None:
        run.store.begin_trajectory("train", "t0", task, 0, 0)
        for step in recorded.steps if recorded else [make_step("t0", position) for position in range(2)]:
            run.store.record_step("t0", step)
        run.store.record_verdict(make_verdict("t0/0"))
        run.store.end_trajectory(finished())
        run.store.record_iteration(IterationReport(iteration=1, tokens=5))

    recorded = None
    write()
    before = [rows(run.path, f"SELECT * FROM {table}") for table in ("trajectories", "steps", "verdicts", "iterations")]
    blobs = rows(run.path, "SELECT address FROM blobs")
    recorded = run.store.load_recorded("train", 0)["t0"].trajectory
    write()
    after = [rows(run.path, f"SELECT * FROM {table}") for table in ("trajectories", "steps", "verdicts", "iterations")]
    assert after == before
    assert rows(run.path, "SELECT address FROM blobs") == blobs


def test_a_long_conversation_is_stored_once(run: RunFolder, task: Task, make_step: Make) -> None:
    """Each prompt begins with the one before. Whole, 60 of them would take 2.2 MB."""
    tokens = np.random.default_rng(0).integers(0, 150_000, 60 * 300, dtype=np.int32)
    run.store.begin_trajectory("train", "t0", task, 0, 0)
    steps = [make_step("t0", position) for position in range(60)]
    for step in steps:
        prompt = tokens[: 300 * (step.position + 1)]
        completion = replace(step.completion, prompt_tokens=prompt)
        run.store.record_step("t0", replace(step, completion=completion))
    ((size,),) = rows(run.path, "SELECT sum(length(data)) FROM blobs")
    assert isinstance(size, int) and size < tokens.nbytes + 60 * 4096
    found = run.store.load_recorded("train", 0)["t0"].trajectory.steps
    assert all(np.array_equal(one.completion.prompt_tokens, tokens[: 300 * (one.position + 1)]) for one in found)


def test_second_record_with_a_known_id_is_refused_and_the_first_is_kept(
    run: RunFolder, task: Task, make_step: Make, make_verdict: Judge
) -> None:
    run.store.begin_trajectory("train", "t0", task, 0, 0)
    run.store.record_step("t0", make_step())
    run.store.record_verdict(make_verdict())
    with pytest.raises(ReplayError, match="trajectory t0"):
        run.store.begin_trajectory("train", "t0", replace(task, prompt="another"), 0, 0)
    with pytest.raises(ReplayError, match="trajectory t0"):
        run.store.begin_trajectory("eval", "t0", task, 0, 0)
    with pytest.raises(ReplayError, match="step t0/0"):
        run.store.record_step("t0", make_step(text="I guess. "))
    with pytest.raises(ReplayError, match="verdict t0/0/rules/live"):
        run.store.record_verdict(make_verdict(score=1.0))
    recorded = run.store.load_recorded("train", 0)["t0"].trajectory
    assert recorded.verdicts == (make_verdict(),)
    assert recorded.steps[0].completion.text.startswith("I add them.")


def test_a_verdict_that_took_another_time_is_the_same_verdict(
    run: RunFolder, task: Task, make_step: Make, make_verdict: Judge
) -> None:
    run.store.begin_trajectory("train", "t0", task, 0, 0)
    run.store.record_step("t0", make_step())
    run.store.record_verdict(make_verdict(seconds=1.0))
    run.store.record_verdict(make_verdict(seconds=2.0))
    assert run.store.load_recorded("train", 0)["t0"].trajectory.verdicts == (make_verdict(seconds=1.0),)


def test_record_without_its_parent_raises(
    run: RunFolder, make_step: Make, make_verdict: Judge, finished: Callable[..., Trajectory]
) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        run.store.record_step("t0", make_step())
    with pytest.raises(sqlite3.IntegrityError):
        run.store.record_verdict(make_verdict())
    with pytest.raises(ValueError, match="t0 ends but never began"):
        run.store.end_trajectory(finished())
    assert rows(run.path, "SELECT count(*) FROM blobs") == [(0,)]


def test_a_step_that_could_not_be_written_can_be_written_later_with_all_its_blobs(
    run: RunFolder, task: Task, make_step: Make
) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        run.store.record_step("t0", make_step())
    run.store.begin_trajectory("train", "t0", task, 0, 0)
    run.store.record_step("t0", make_step())
    assert to_json(run.store.load_recorded("train", 0)["t0"].trajectory.steps[0]) == to_json(make_step())


def test_two_steps_at_one_position_are_a_bug(run: RunFolder, task: Task, make_step: Make) -> None:
    run.store.begin_trajectory("train", "t0", task, 0, 0)
    run.store.record_step("t0", make_step())
    with pytest.raises(sqlite3.IntegrityError):
        run.store.record_step("t0", make_step(id="t0/other"))


def test_a_prompt_that_a_hundred_actions_share_is_stored_once(run: RunFolder, task: Task, make_step: Make) -> None:
    system = make_step().messages[0].content
    for number in range(100):
        run.store.begin_trajectory("train", f"t{number}", task, number, 0)
        run.store.record_step(f"t{number}", make_step(f"t{number}", number % 3))
    stored = [data for (data,) in rows(run.path, "SELECT data FROM blobs")]
    assert stored.count(system.encode()) == 1
    assert stored.count(task.prompt.encode()) == 1
    assert sum(data.startswith(b"I add them.") for data in stored) == 1
    assert not any(system in str(body) for (body,) in rows(run.path, "SELECT body FROM steps"))


def test_columns_hold_the_values_that_queries_filter_by(
    run: RunFolder, task: Task, make_step: Make, make_verdict: Judge
) -> None:
    run.store.begin_trajectory("train", "t0", task, 2, 5)
    run.store.record_step("t0", make_step())
    api = replace(make_step().completion, prompt_tokens=None, tokens=None, logprobs=None)
    run.store.record_step("t0", make_step("t0", 4, completion=api, policy="paid"))
    run.store.record_verdict(make_verdict(blame="nobody"))
    assert rows(run.path, "SELECT split, iteration, sample, task_id, stratum, finished FROM trajectories") == [
        ("train", 5, 2, "sum-7", "sum", 0)
    ]
    assert rows(run.path, "SELECT id, trajectory, position, agent, turn, policy, tokens, finish FROM steps") == [
        ("t0/0", "t0", 0, "solver", 0, "default", 200, "stop"),
        ("t0/4", "t0", 4, "executor", 1, "paid", None, "stop"),
    ]
    assert rows(run.path, "SELECT step, coach, phase, status, score, blame FROM verdicts") == [
        ("t0/0", "rules", "live", "scored", 7.5, "nobody")
    ]
    assert rows(run.path, "SELECT json_extract(body, '$.agent') FROM steps") == [("solver",), ("executor",)]


def test_metrics_that_are_not_finite_survive(run: RunFolder) -> None:
    metrics = {"loss": math.nan, "grad_norm": math.inf, "kl": -0.5}
    run.store.record_iteration(IterationReport(iteration=1, policies={"solver": metrics}))
    with RunReader(run.path) as reader:
        (report,) = reader.iterations
    found = report.policies["solver"]
    assert math.isnan(found["loss"])
    assert (found["grad_norm"], found["kl"]) == (math.inf, -0.5)


def test_an_iteration_done_again_replaces_its_metrics(run: RunFolder) -> None:
    run.store.record_iteration(IterationReport(iteration=2, tokens=1, rollouts=1))
    run.store.record_iteration(IterationReport(iteration=1, tokens=0))
    run.store.record_iteration(IterationReport(iteration=2, tokens=2))
    with RunReader(run.path) as reader:
        assert list(reader.iterations) == [
            IterationReport(iteration=1, tokens=0),
            IterationReport(iteration=2, tokens=2),
        ]


def test_events_keep_their_order_and_body(run: RunFolder) -> None:
    run.store.record_event("checkpoint", iteration=1)
    run.store.record_event("evaluation", mean=0.5, low=math.nan)
    run.store.record_event("checkpoint", iteration=2)
    with RunReader(run.path) as reader:
        assert [event.kind for event in reader.events()] == ["checkpoint", "evaluation", "checkpoint"]
        assert [event.body for event in reader.events("checkpoint")] == [{"iteration": 1}, {"iteration": 2}]
        (evaluation,) = reader.events("evaluation")
    assert evaluation.body["mean"] == 0.5
    assert math.isnan(evaluation.body["low"])
    assert evaluation.time > 1.7e9


@pytest.mark.parametrize("schema", [2, 99])
def test_another_schema_is_refused_by_writer_and_reader_with_the_version_that_wrote_it(
    run: RunFolder, schema: int
) -> None:
    run.close()
    for change, writer in (
        ("UPDATE meta SET value = '7.1.2' WHERE name = 'mappa'", "Mappa 7.1.2; this is Mappa .* schema 1 alone"),
        ("DELETE FROM meta WHERE name = 'mappa'", "a version of Mappa that it does not name"),
    ):
        with sqlite3.connect(run.path / "run.db") as connection:
            connection.execute(change)
            connection.execute(f"PRAGMA user_version = {schema}")
        for opened in (RunFolder.open, RunReader):
            with pytest.raises(RunError, match=f"run.db has schema {schema} and was written by {writer}"):
                opened(run.path)


def test_a_run_says_which_version_made_it(run: RunFolder) -> None:
    with sqlite3.connect(run.path / "run.db") as connection:
        query = "SELECT value FROM meta WHERE name = 'mappa'"
        assert connection.execute(query).fetchone() == (mappa.__version__,)


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "run.db") as connection:
        connection.execute("CREATE TABLE results (value)")
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(RunError, match="no database of a run"):
        RunReader(tmp_path)


def test_a_file_that_is_no_database_of_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("not a database, but long enough to be looked at as one" * 10)
    with pytest.raises(RunError, match="not a database"):
        RunReader(tmp_path)
    (tmp_path / "run.db").write_bytes(b"")
    with pytest.raises(RunError, match="no database of a run"):
        RunReader(tmp_path)
    (tmp_path / "run.db").unlink()
    with pytest.raises(RunError, match=r"is not a run folder: it has no run\.db"):
        RunReader(tmp_path)


def test_a_lost_blob_is_named(run: RunFolder, task: Task, make_step: Make) -> None:
    run.store.begin_trajectory("train", "t0", task, 0, 0)
    run.store.record_step("t0", make_step())
    with sqlite3.connect(run.path / "run.db") as connection:
        connection.execute("DELETE FROM blobs")
    with pytest.raises(RunError, match=r"damaged: the blob [0-9a-f]{32} is missing"):
        run.store.load_recorded("train", 0)


def test_a_closed_run_is_one_file(run: RunFolder, task: Task) -> None:
    run.store.begin_trajectory("train", "t0", task, 0, 0)
    run.close()
    assert [path.name for path in run.path.glob("run.db*")] == ["run.db"]


class TestScratch:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        folder = tmp_path / "far"
        folder.mkdir()
        Store.create(folder / "run.db")
        return folder / "run.db"

    @pytest.fixture
    def scratch(self, tmp_path: Path) -> Path:
        return tmp_path / "near"

    def trajectories(self, path: Path) -> list[str]:
        with RunReader(path.parent) as reader:
            return [row.id for row in reader.trajectories]

    def test_the_copy_is_renewed_by_flush_and_close(self, path: Path, scratch: Path, task: Task) -> None:
        store = Store(path, scratch=scratch)
        store.begin_trajectory("train", "t0", task, 0, 0)
        assert self.trajectories(path) == []
        store.flush()
        assert self.trajectories(path) == ["t0"]
        store.begin_trajectory("train", "t1", task, 1, 0)
        assert self.trajectories(path) == ["t0"]
        store.close()
        assert self.trajectories(path) == ["t0", "t1"]
        assert [found.name for found in path.parent.iterdir()] == ["run.db"]
        assert list(scratch.iterdir()) == []

    def test_after_a_kill_the_live_database_is_taken_up_again(self, path: Path, scratch: Path, task: Task) -> None:
        killed = Store(path, scratch=scratch)
        killed.begin_trajectory("train", "t0", task, 0, 0)
        killed.flush()
        killed.begin_trajectory("train", "t1", task, 1, 0)
        again = Store(path, scratch=scratch)
        assert list(again.load_recorded("train", 0)) == ["t0", "t1"]

    def test_scratch_database_older_than_the_published_copy_is_discarded(
        self, path: Path, scratch: Path, task: Task, tmp_path: Path
    ) -> None:
        killed = Store(path, scratch=scratch)
        killed.begin_trajectory("train", "stale", task, 0, 0)
        killed.flush()
        elsewhere = Store(path, scratch=tmp_path / "another machine")
        elsewhere.begin_trajectory("train", "new", task, 1, 0)
        elsewhere.close()
        again = Store(path, scratch=scratch)
        assert list(again.load_recorded("train", 0)) == ["stale", "new"]

    def test_a_live_database_is_left_behind_after_a_run_without_scratch(
        self, path: Path, scratch: Path, task: Task
    ) -> None:
        Store(path, scratch=scratch).begin_trajectory("train", "stale", task, 0, 0)
        direct = Store(path)
        direct.begin_trajectory("train", "new", task, 1, 0)
        direct.close()
        assert list(Store(path, scratch=scratch).load_recorded("train", 0)) == ["new"]


def test_spending_excludes_replayed_verdicts_and_keeps_unknown_prices(
    run: RunFolder, task: Task, make_step: Make, make_verdict: Judge
) -> None:
    dear, unknown = Usage(calls=2, prompt_tokens=9, usd=0.25), Usage(calls=1)
    run.store.begin_trajectory("train", "t0", task, 0, 0)
    step = make_step("t0", 0)
    run.store.record_step("t0", replace(step, completion=replace(step.completion, usage=dear)))
    run.store.record_step("t0", make_step("t0", 1))
    for number, changes in enumerate(({"usage": dear}, {"usage": dear, "replayed": True}, {"usage": unknown}, {})):
        run.store.record_verdict(make_verdict("t0/0", id=f"v{number}", **changes))
    assert sorted(run.store.paid_usages(), key=lambda usage: usage.calls) == [
        Usage(calls=1), Usage(calls=2, usd=0.25), Usage(calls=2, usd=0.25)
    ]  # fmt: skip
