"""A contract for trackers: a whole run is logged from another thread, with odd values, and parts of it twice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from mappa.testing.fakes import fake_completion, fake_step
from mappa_core.protocols import Ending, TrackedRun, Tracker
from mappa_core.records import Failure, Message, Step, Task, ToolCall, ToolResult, Trajectory, Usage, Verdict

ENDED = 1_700_000_000.0  # Seconds since the epoch.
HOSTILE = '<script>"\N{SNOWMAN}\x00\ud7ff\n' + "x" * 5000  # Markup, control characters, great length.
METRICS = {"score/mean": 4.5, "score/mean/agent one": -0.0, "loss": math.nan, "kl": math.inf, "lr": 1e-300, "n": 3.0}
_ENDINGS: Sequence[Ending] = get_args(Ending)


class TrackerContract:
    """Subclass it and implement `tracker`, without a server or network: it may write to the folder of the run."""

    def tracker(self) -> Tracker:
        """Create a tracker."""
        raise NotImplementedError

    @pytest.fixture
    def run(self, tmp_path: Path) -> TrackedRun:
        folder = tmp_path / "run"
        folder.mkdir()
        config = {"train": {"iterations": 2, "epochs": None}, "agents": [], "coach": {"api_key_env": "NAME"}}
        return TrackedRun(
            id="0f" * 16, name="run", folder=folder, plugin="p", recipe="tiny", seed=0, done=0, config=config
        )

    @pytest.mark.parametrize("ending", _ENDINGS)
    def test_a_whole_run_is_logged(self, run: TrackedRun, ending: Ending) -> None:
        """Leave out what your service cannot store (NaN, no tokens, no score); never turn it into a number."""
        _track(self.tracker(), run, ending)

    def test_a_run_that_never_started_is_closed(self) -> None:
        """`close` is also called if `start` was not, or raised. Open nothing in `__init__`; check what is open."""
        _track(self.tracker(), None, "failed")

    def test_a_run_goes_on_in_another_process(self, run: TrackedRun) -> None:
        """After a resume continue the run of the same `TrackedRun.id`; let metrics logged again replace old ones."""
        _track(self.tracker(), run, "stopped")
        _track(self.tracker(), replace(run, done=1), "done")

    def test_concurrent_runs_do_not_mix(self, run: TrackedRun) -> None:
        """A sweep has several runs in one process. Keep all state on the tracker, none in globals."""
        other_run = replace(run, id="f0" * 16, name="other", folder=run.folder.parent / "other")
        other_run.folder.mkdir()
        first, second = self.tracker(), self.tracker()
        # A thread each, as every tracker of a run has.
        with ThreadPoolExecutor(1) as first_thread, ThreadPoolExecutor(1) as second_thread:
            waiting = [
                first_thread.submit(_log_run, first, run),
                second_thread.submit(_log_run, second, other_run),
                first_thread.submit(first.close, "done"),
                second_thread.submit(second.close, "done"),
            ]
            for call in waiting:
                call.result()


def _track(tracker: Tracker, run: TrackedRun | None, ending: Ending) -> None:
    """Make all calls in one thread of the tracker's own, as in a run; None: it never started."""
    with ThreadPoolExecutor(1) as thread:
        if run is not None:
            thread.submit(_log_run, tracker, run).result()
        thread.submit(tracker.close, ending).result()


def _log_run(tracker: Tracker, run: TrackedRun) -> None:
    """Make all tracker calls of a run in order, except `close`."""
    tracker.start(run)
    tracker.log(0, {"eval/correct": 0.5})
    for trajectory in (_trajectory("a", None), _trajectory("b", Failure(kind="ToolError", message=HOSTILE))):
        for step in trajectory.steps:
            tracker.action(trajectory.id, step, ENDED)
        for verdict in trajectory.verdicts:
            tracker.verdict(trajectory.id, verdict, ENDED + 1)
        tracker.rollout("train", trajectory, ENDED + 2)
    tracker.log(1, METRICS)
    tracker.log(1, {"eval/correct": 1.0})
    tracker.log(2, METRICS)


def _trajectory(name: str, error: Failure | None) -> Trajectory:
    steps = (_step(name, 0, tokens=3), _step(name, 1, tokens=None))
    spent = Usage(calls=1, prompt_tokens=5, usd=None)
    verdicts = (
        Verdict(status="scored", score=7.5, reasoning=HOSTILE, blame="nobody", usage=spent, step=steps[0].id, id="v1"),
        Verdict(status="abstained", reasoning="prose", step=steps[1].id, id="v2", members=(Verdict.failed("late"),)),
        Verdict(status="failed", error=HOSTILE, step=steps[1].id, id="v3", phase="after"),
    )
    outcome = {} if error else {"correct": 1.0}
    task = Task(id=f"task {name}", prompt=HOSTILE, reference=None, meta={"deep": [1, None]})
    base = Trajectory(id=name, task=task, sample=0, iteration=0, steps=steps)
    return replace(base, verdicts=verdicts, outcome=outcome, error=error)


def _step(name: str, position: int, tokens: int | None) -> Step:
    behind_api = {} if tokens else {"finish": "abort", "usage": Usage(calls=1, usd=0.001)}
    completion = fake_completion(HOSTILE, tokens, seconds=0.25, **behind_api)
    step = fake_step(f"{name}/{position}", "agent one", completion, turn=position, position=position, policy="default")
    return replace(
        step,
        messages=(Message(role="system", content=""), Message(role="user", content=HOSTILE)),
        reply=replace(step.reply, reasoning="thought"),
        tools=("look",),
        calls=(ToolCall(name="look", arguments={"word": HOSTILE}),),
        results=(ToolResult(tool="look", status="error", stderr=HOSTILE, seconds=0.5),),
    )
