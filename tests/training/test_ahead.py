"""The loop when rollouts of later iterations go on while learners update: what may begin, what is learned from when."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mappa.runs import RunReader
from mappa.training import Run
from mappa.training.listener import Listener
from mappa_core import ConfigError, GuardStop

HERE = Path(__file__).parent


@pytest.fixture
def start(registry, tmp_path):
    """A run of the doubles on the paced engine."""

    def make(name="run", words=(), **options):
        given = json.dumps(options).replace('"', "")
        places = (f"run.root={tmp_path / 'runs'}", f"run.name={name}", "engine.use=paced", f"engine.options={given}")
        return Run.from_recipe("doubles/tiny", *places, "sampling.concurrency=16", "eval.problems=1", *words,
                               registry=registry)  # fmt: skip

    return make


@pytest.fixture
def engines(registry):
    """The engines that runs were given, and the losses that they will have."""
    return registry.plugins["doubles"].offers["engines"]["paced"].build


def learned(folder):
    """The trajectories that each update learned from, as the last checkpoint has it."""
    with RunReader(folder) as reader:
        _, latest = max(reader.checkpoints.items())
    return json.loads((latest / "policies/updates").read_text())


def played(folder):
    """Steps of training by id: who acted, in which turn, what was written."""
    with sqlite3.connect(folder / "run.db") as db:
        query = "SELECT id, agent, turn, tokens, json_extract(body, '$.reply') FROM steps WHERE id LIKE 'train%'"
        return sorted(db.execute(query).fetchall())


def metrics(folder):
    with RunReader(folder) as reader:
        return [report.metrics() for report in reader.iterations]


def gathered(folder):
    with RunReader(folder) as reader:
        return {event.body["iteration"]: event.body for event in reader.events("gathered")}


def check_whole(folder, staleness, share, iterations):
    """Every trajectory was learned from once, tasks whole, each within the bound, as the events say."""
    updates = learned(folder)
    assert len(updates) == iterations
    counts = Counter(name for names in updates for name in names)
    with RunReader(folder) as reader:
        rows = list(reader.trajectories.where(split="train"))
        assert [row.status for row in rows] == ["done"] * len(rows)
        assert counts == Counter(row.id for row in rows) and set(counts.values()) == {1}
        oldest = {row.id: min(span.version for step in reader.trajectory(row.id).steps
                              for span in step.completion.versions) for row in rows}  # fmt: skip
    of_task = Counter(name.rpartition("/")[0] for name in counts)
    for iteration, names in enumerate(updates):
        assert all(0 <= iteration - oldest[name] <= staleness for name in names)
        here = Counter(name.rpartition("/")[0] for name in names)
        assert all(of_task[task] == count for task, count in here.items())
    decided = gathered(folder)
    if share:
        for iteration, names in enumerate(updates):
            own = {name for name in counts if name.startswith(f"train-{iteration:06d}/")}
            body = decided[iteration]
            assert set(names) == own - set(body["late"]) | set(body["joined"])
            assert len(body["late"]) <= share * len(own)
    else:
        assert decided == {}
        assert [{name[:12] for name in names} for names in updates] == [{f"train-{n:06d}"} for n in range(iterations)]


# --- what may begin ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [0, 1])
def test_rollouts_go_on_during_updates_only_with_staleness(start, engines, staleness):
    start(max_staleness=staleness, update_ms=20).train()
    assert any(engines.made[-1].sampled_during) == bool(staleness)


def test_tasks_and_seeds_of_iterations_are_those_of_the_synchronous_loop(start):
    whole = start("whole").train()
    ahead = start("ahead", max_staleness=2, update_ms=10).train()
    assert played(ahead.folder) == played(whole.folder)
    assert learned(ahead.folder) == learned(whole.folder)


def test_weights_are_as_old_as_the_bound_allows_and_no_older(start):
    trained = start(max_staleness=2, update_ms=60, words=("train.iterations=5",)).train()
    check_whole(trained.folder, 2, 0.0, 5)
    assert [figures["staleness_max"] for figures in metrics(trained.folder)] == [0, 1, 2, 2, 2]
    assert metrics(trained.folder)[4]["staleness_mean"] > 0.0
    synchronous = start("synchronous").train()
    assert {figures["staleness_max"] for figures in metrics(synchronous.folder)} == {0.0}


def test_a_row_beyond_the_bound_is_a_bug_that_raises(start, engines, monkeypatch):
    run = start(max_staleness=1)
    monkeypatch.setattr("mappa.training.rollout_scheduler.RolloutScheduler._start_allowed", let_all_begin)
    with pytest.raises(RuntimeError, match=r"version 0 of its weights, .* version 2 may learn from those of 1 to 2"):
        run.train()


def let_all_begin(self, iteration):
    if self._next is None:
        for number in range(self._iterations):
            self._start(number, list(self._sample_groups(number)))
        self._next = self._iterations


def test_an_evaluation_sees_one_version_while_training_rollouts_go_on(start):
    trained = start(max_staleness=2, words=("eval.every=1", "eval.problems=4")).train()
    with RunReader(trained.folder) as reader:
        rows = list(reader.trajectories.where(split="eval"))
        seen = {(row.iteration, span.version) for row in rows for step in reader.trajectory(row.id).steps
                for span in step.completion.versions}  # fmt: skip
    assert seen == {(n, n) for n in range(5)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_staleness": -1}, "max_staleness is -1; it is at least 0"),
        ({"straggler_share": 0.1}, r"straggler_share=0\.1: .*max_staleness=0 forbids"),
        ({"straggler_share": 1.0, "max_staleness": 1}, "straggler_share is 1; it is at least 0 and below 1"),
        ({"deterministic": True, "max_staleness": 1}, "deterministic=true promises equal results"),
    ],
)
def test_options_that_contradict_each_other_are_refused(start, tmp_path, options, said):
    with pytest.raises(ConfigError, match=said):
        start(**options).train()
    assert not (tmp_path / "runs").exists()


# --- stragglers -------------------------------------------------------------------------------------------------------


def slow_task(trained):
    """A task of the first iteration: what it asks for."""
    return learned(trained.folder)[0][0].split("/")[1].removeprefix("n")


def test_straggler_joins_the_next_iteration_with_its_siblings(start):
    slow = slow_task(start("probe").train())
    trained = start(max_staleness=2, straggler_share=0.5, held={slow: 1}).train()
    check_whole(trained.folder, 2, 0.5, 4)
    body = gathered(trained.folder)[0]
    late = [f"train-000000/n{slow}/{sample:03d}" for sample in (0, 1)]
    assert body["late"] == late
    first, *later = metrics(trained.folder)
    assert (first["rollouts"], first["rollouts/late"], first["rollouts/joined"]) == (2, 2, 0)
    assert sum(one["rollouts/joined"] for one in later) == 2 + sum(one["rollouts/late"] for one in later)


def test_iteration_without_a_straggler_share_waits_for_all_tasks(start):
    slow = slow_task(start("probe").train())
    trained = start(max_staleness=2, slow={slow: 100}).train()
    check_whole(trained.folder, 2, 0.0, 4)


def test_iteration_waits_for_a_straggler_that_would_exceed_the_staleness(start):
    slow = slow_task(start("probe").train())
    trained = start(max_staleness=1, straggler_share=0.5, held={slow: 1}, slow={slow: 100}).train()
    check_whole(trained.folder, 1, 0.5, 4)
    late = gathered(trained.folder)[0]["late"]
    assert late and gathered(trained.folder)[1]["joined"] == late


def test_last_iteration_waits_for_all_stragglers(start):
    slow = slow_task(start("probe").train())
    trained = start(max_staleness=2, straggler_share=0.5, slow={slow: 100}, words=("train.iterations=1",)).train()
    check_whole(trained.folder, 2, 0.5, 1)
    assert gathered(trained.folder) == {0: {"iteration": 0, "late": [], "joined": []}}


# --- guards and what is resumed ---------------------------------------------------------------------------------------


def test_rollouts_collected_ahead_of_a_guard_stop_are_reused_on_resume(start, tmp_path, registry, kept):
    run = start(max_staleness=2, words=("train.max_tool_failure_share=0.2", "coach.options.fails_from=12"))
    with pytest.raises(GuardStop, match="A checkpoint was written"):
        run.train()
    folder = tmp_path / "runs" / "run"
    before = played(folder)
    done = max(kept(folder))
    assert any(row[0] > f"train-{done + 1:06d}" for row in before)
    trained = Run.resume(folder, "coach.max_missing=1.0", registry=registry).train()
    check_whole(trained.folder, 2, 0.0, 4)
    assert [row for row in played(folder) if row in before] == before


class Killed(BaseException):
    pass


class Killer(Listener):
    """Ends a run after so many iterations: at the end of the last, or at the start of the following one."""

    def __init__(self, *, after=None, before=None):
        self._after, self._before = after, before

    def on_iteration_end(self, report):
        if report.iteration == self._after:
            raise Killed

    def on_rollouts_start(self, split, done, rollouts):
        if (split, done) == ("train", self._before):
            raise Killed


def test_stragglers_of_a_checkpoint_are_learned_from_after_a_resume(start, tmp_path, registry, kept):
    slow = slow_task(start("probe").train())
    run = start(max_staleness=2, straggler_share=0.5, held={slow: 2}, words=("checkpoint.every=1",))
    with pytest.raises(Killed):
        run.train(Killer(after=2))
    folder = tmp_path / "runs" / "run"
    decided = gathered(folder)
    late = [f"train-000000/n{slow}/{sample:03d}" for sample in (0, 1)]
    assert max(kept(folder)) == 1
    assert (decided[0]["late"], decided[1]["joined"]) == (late, [])
    trained = Run.resume(folder, registry=registry).train()
    check_whole(trained.folder, 2, 0.5, 4)
    assert set(late) < {name for names in learned(trained.folder)[2:] for name in names}


def test_rollout_begun_before_a_resume_keeps_its_versions(start, tmp_path, registry):
    words = ("checkpoint.every=1",)
    # The doubler answers 6 at once and 12 is what the checker is then asked.
    run = start(max_staleness=1, straggler_share=0.5, held={"12": 1}, slow={"6": 0, "12": 200}, words=words)
    with pytest.raises(Killed):
        run.train(Killer(before=1))
    folder = tmp_path / "runs" / "run"
    late = gathered(folder)[0]["late"]
    assert [name for name, *_ in played(folder) if name.startswith("train-000000/n6")] == [
        f"{name}/000" for name in late
    ]
    trained = Run.resume(folder, registry=registry).train()
    check_whole(trained.folder, 1, 0.5, 4)
    assert gathered(folder)[1]["joined"] == late


class Cut(BaseException):
    """The process is gone: nothing is written any more."""


class Cutter:
    """Lets so many writes of a store through; after that everything is lost."""

    def __init__(self, monkeypatch, store_class):
        self.left = 0
        for name in (
            "begin_trajectory",
            "record_step",
            "record_verdict",
            "end_trajectory",
            "record_iteration",
            "record_event",
        ):
            monkeypatch.setattr(store_class, name, self._counted(getattr(store_class, name)))

    def _counted(self, write):
        def counted(*args, **kwargs):
            self.left -= 1
            if self.left < 0:
                raise Cut
            return write(*args, **kwargs)

        return counted


@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    staleness=st.integers(0, 3),
    share=st.sampled_from([0.0, 0.4, 0.7]),
    cuts=st.lists(st.integers(1, 90), max_size=4),
    every=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_run_cut_off_at_any_write_learns_from_every_trajectory_once(
    registry, store_class, staleness, share, cuts, every, seed
):
    share = share if staleness else 0.0
    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as root:
        cutter = Cutter(monkeypatch, store_class)
        options = f"{{max_staleness: {staleness}, straggler_share: {share}, action_ms: 0.5}}"
        words = ("train.iterations=5", "train.prompts=4", "sampling.concurrency=9", f"checkpoint.every={every}")
        run = Run.from_recipe("doubles/tiny", f"run.root={root}", "run.name=run", "engine.use=paced", "eval.problems=1",
                              f"engine.options={options}", *words, seed=seed, registry=registry)  # fmt: skip
        folder = Path(root) / "run"
        for cut in [*cuts, 10**9]:
            cutter.left = cut + 8  # the first ones go to the start of a run
            try:
                run.train()
            except (Cut, BaseExceptionGroup) as error:
                assert cut < 10**9, error
                assert error_of(error, Cut), error
                run = Run.resume(folder, registry=registry)
        check_whole(folder, staleness, share, 5)


def error_of(error, kind):
    """Whether an error, or any in a group, is of a kind."""
    if isinstance(error, BaseExceptionGroup):
        return any(error_of(one, kind) for one in error.exceptions)
    return isinstance(error, kind)


PROGRAM = """
import runpy, sys
from pathlib import Path
from mappa.testing import load_plugins
from mappa.training import Run

conftest, recipe, root = map(Path, sys.argv[1:4])
doubles = runpy.run_path(str(conftest))["Plugin"](recipe)
registry = load_plugins(only=("engine", "sandbox"), modules={"doubles": doubles})
folder = root / "run"
run = Run.resume(folder, registry=registry) if folder.exists() else Run.from_recipe(
    "doubles/tiny", f"run.root={root}", "run.name=run", "engine.use=paced", *sys.argv[4:], registry=registry)
run.train()
"""


@pytest.mark.soak
def test_run_killed_repeatedly_learns_from_every_trajectory_once(registry, tmp_path):
    recipe = tmp_path / "tiny.yaml"
    options = "engine.options={max_staleness: 2, straggler_share: 0.4, action_ms: 10, update_ms: 30}"
    words = ("train.iterations=12", "train.prompts=5", "sampling.concurrency=16", "eval.problems=1", options)
    command = [sys.executable, "-c", PROGRAM, str(HERE / "conftest.py"), str(recipe), str(tmp_path), *words]
    folder = tmp_path / "run"
    for share in (0.2, 0.5, 0.8):
        with subprocess.Popen(command) as process:
            wait_for_steps(folder, int(share * 12 * 5 * 2 * 2), process)
            process.send_signal(signal.SIGKILL)
    before = played(folder)
    subprocess.run(command, check=True, timeout=120)
    check_whole(folder, 2, 0.4, 12)
    assert [row for row in played(folder) if row in before] == before


def wait_for_steps(folder, count, process):
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if (folder / "run.db").exists() and len(played(folder)) >= count:
            return
        time.sleep(0.01)
    raise AssertionError("the run ended before it could be killed")
