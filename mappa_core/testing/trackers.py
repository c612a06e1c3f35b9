"""A contract for trackers to subclass: a whole run is told, odd values and all, from another thread, and told again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from mappa_core.protocols import Ending, TrackedRun, Tracker
from mappa_core.records import (
    Completion,
    Failure,
    Message,
    Step,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Usage,
    Verdict,
    VersionSpan,
)

ENDED = 1_700_000_000.0
"""Seconds since the epoch."""
HOSTILE = '<script>"\N{SNOWMAN}\x00\ud7ff\n' + "x" * 5000
"""What agents say: markup, control characters, a great deal of it."""
METRICS = {"score/mean": 4.5, "score/mean/agent one": -0.0, "loss": math.nan, "kl": math.inf, "lr": 1e-300, "n": 3.0}
ENDINGS: Sequence[Ending] = get_args(Ending)
Call = Callable[[Tracker], None]


class TrackerContract:
    """Subclass it and write `tracker`, without a server and without a network: the folder of the run is there to write
    to."""

    def tracker(self) -> Tracker:
        """A fresh tracker."""
        raise NotImplementedError

    @pytest.fixture
    def run(self, tmp_path: Path) -> TrackedRun:
        folder = tmp_path / "run"
        folder.mkdir()
        config = {"train": {"iterations": 2, "epochs": None}, "agents": [], "coach": {"api_key_env": "NAME"}}
        return TrackedRun(
            id="0f" * 16, name="run", folder=folder, plugin="p", recipe="tiny", seed=0, done=0, config=config
        )

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_a_whole_run_is_told(self, run: TrackedRun, ending: Ending) -> None:
        """Figures that are NaN or infinite, actions without tokens, verdicts without a score and trajectories that
        broke off are parts of a run. Leave out what your service cannot hold; never turn it into a number."""
        _told(self.tracker, lambda tracker: _tell(tracker, run), lambda tracker: tracker.close(ending))

    def test_a_run_that_never_started_is_closed(self) -> None:
        """`close` comes also where `start` was not called, or raised. Open nothing in `__init__`, and look before you
        close."""
        _told(self.tracker, lambda tracker: tracker.close("failed"))

    def test_a_run_goes_on_in_another_process(self, run: TrackedRun) -> None:
        """After a resume a new tracker is given the same `TrackedRun.id`, and iterations that were told are told again.
        Go on with the run of that id, and let the new figures replace the old ones."""
        _told(self.tracker, lambda tracker: _tell(tracker, run), lambda tracker: tracker.close("stopped"))
        again = replace(run, done=1)
        _told(self.tracker, lambda tracker: _tell(tracker, again), lambda tracker: tracker.close("done"))

    def test_two_runs_are_told_at_once(self, run: TrackedRun) -> None:
        """A sweep has several runs in one process. Keep everything on the tracker, nothing in globals of your module or
        of your service's client."""
        other = replace(run, id="f0" * 16, name="other", folder=run.folder.parent / "other")
        other.folder.mkdir()
        one, two = self.tracker(), self.tracker()
        with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
            waiting = [first.submit(_tell, one, run), second.submit(_tell, two, other)]
            waiting += [first.submit(one.close, "done"), second.submit(two.close, "done")]
            for call in waiting:
                call.result()


def _told(build: Callable[[], Tracker], *calls: Call) -> None:
    """Built here, and called from one thread of its own, as in a run."""
    tracker = build()
    with ThreadPoolExecutor(1) as thread:
        for call in calls:
            thread.submit(call, tracker).result()


def _tell(tracker: Tracker, run: TrackedRun) -> None:
    """All that is told of a run but its end, in its order."""
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
    return Trajectory(
        id=name, task=task, sample=0, iteration=0, steps=steps, verdicts=verdicts, outcome=outcome, error=error
    )


def _step(name: str, position: int, tokens: int | None) -> Step:
    known = tokens is not None
    completion = Completion(
        text=HOSTILE,
        prompt_tokens=np.arange(2, dtype=np.int32) if known else None,
        tokens=np.arange(tokens or 0, dtype=np.int32) if known else None,
        logprobs=np.full(tokens or 0, -1.0, dtype=np.float32) if known else None,
        finish="stop" if known else "abort",
        versions=(VersionSpan(version=0, start=0, end=tokens),) if tokens is not None else (),
        usage=None if known else Usage(calls=1, usd=0.001),
        seconds=0.25,
    )
    return Step(
        id=f"{name}/{position}",
        agent="agent one",
        turn=position,
        position=position,
        policy="default",
        messages=(Message(role="system", content=""), Message(role="user", content=HOSTILE)),
        reply=Message(role="assistant", content=HOSTILE, reasoning="thought"),
        completion=completion,
        tools=("look",),
        calls=(ToolCall(name="look", arguments={"word": HOSTILE}),),
        results=(ToolResult(tool="look", status="error", stderr=HOSTILE, seconds=0.5),),
    )
