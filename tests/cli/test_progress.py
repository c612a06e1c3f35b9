"""How far a training is: on a terminal of 80 columns, and in a log without one."""

from __future__ import annotations

import io
from typing import get_args

import pytest
from rich.progress import Progress

from mappa.cli import progress
from mappa.cli.console import Console
from mappa.cli.progress import PHASE_LABELS, Dashboard, LineProgress
from mappa.store.iteration_report import CounterfactualFigures, IterationReport, OutcomeFigures
from mappa.training.listener import Listener, LoopPhase
from mappa.training.tracker_threads import TrackerThreads
from mappa_core import Task, Trajectory, Verdict

ENDED = Trajectory(id="t", task=Task(id="t", prompt="p"), sample=0, iteration=0)


@pytest.fixture
def clock(monkeypatch):
    """The seconds that have passed, in a list of one."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: seconds[0])
    return seconds


def test_a_log_says_every_minute_how_far_a_slow_run_is(clock):
    file = io.StringIO()
    listener = LineProgress(Console(file=file), 40)
    listener.on_phase_start("evaluate", 0)
    listener.on_rollouts_start("eval", 0, 224)
    for second in range(0, 150, 10):
        clock[0] = float(second)
        listener.on_step(None)
    assert file.getvalue().splitlines() == [
        "evaluating, after iteration 0: 0/224 rollouts, 7 actions, 1:00",
        "evaluating, after iteration 0: 0/224 rollouts, 13 actions, 2:00",
    ]


def test_a_fast_run_says_nothing_between_its_iterations(clock):
    file = io.StringIO()
    listener = LineProgress(Console(file=file), 40)
    listener.on_phase_start("collect", 0)
    listener.on_rollouts_start("train", 0, 2)
    clock[0] = 59.0
    listener.on_step(None)
    listener.on_rollout_end(ENDED)
    assert file.getvalue() == ""


def test_a_terminal_shows_phase_counts_and_time_in_one_line_of_80_columns(clock):
    file = io.StringIO()
    dashboard = Dashboard(Console(file=file, width=80, height=24, force_terminal=True), 40)
    clock[0] = 3725.0
    assert dashboard.describe() == "starting, 1:02:05"
    dashboard.on_phase_start("collect", 2)
    dashboard.on_rollouts_start("train", 2, 16)
    for _ in range(1200):
        dashboard.on_step(None)
        dashboard.on_verdict(None)
    line = "collecting, iteration 3: 0/16 rollouts, 1,200 actions, 1,200 verdicts, 1:02:05"
    assert dashboard.describe() == line and len(line) < 80
    Console(file=file, width=80).print(dashboard.live.get_renderable())
    assert line in file.getvalue()
    for _ in range(16):
        dashboard.on_rollout_end(ENDED)
    assert dashboard.describe().startswith("collecting, iteration 3: 16/16 rollouts"), "the loop says what it does"
    dashboard.on_phase_start("judge", 2)
    assert dashboard.describe().startswith("judging, iteration 3: 16/16 rollouts")
    dashboard.on_phase_start("save", 2)
    assert dashboard.describe().startswith("saving, after iteration 2: ")


def test_every_phase_of_the_loop_has_a_label():
    assert set(PHASE_LABELS) == set(get_args(LoopPhase))


def test_a_listener_hears_of_actions_and_verdicts_once_they_are_recorded():
    heard = []

    class Store:
        def record_step(self, trajectory_id, step):
            heard.append(("stored", step))

        def record_verdict(self, verdict):
            heard.append(("stored", verdict))

    class Ears(Listener):
        def on_step(self, step):
            heard.append(("step", step))

        def on_verdict(self, verdict):
            heard.append(("verdict", verdict))

    verdict = Verdict(status="scored", score=10.0, step="t/000")
    recorder = TrackerThreads([], listener=Ears()).recorder(Store())
    recorder.record_step("t", "a step")
    recorder.record_verdict(verdict)
    assert heard == [("stored", "a step"), ("step", "a step"), ("stored", verdict), ("verdict", verdict)]


@pytest.mark.parametrize("total", [None, 4])
def test_no_time_is_said_to_be_left_where_the_total_is_unknown(total):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    bars = Progress(*progress._columns(), console=console)
    bars.add_task("rollouts", total=total)
    console.print(bars.get_renderable())
    assert ("left" in console.file.getvalue()) == (total is not None)


def test_an_iteration_says_what_outgrew_the_window():
    report = IterationReport(
        iteration=1,
        rollouts=8,
        outcomes=OutcomeFigures(accuracy=0.375, unsolved=2),
        failed_rollouts={"PromptTooLong": 3, "ToolError": 1},
        overflowed=2,
        counterfactuals=CounterfactualFigures(rollouts=12, lost=0, overflowed=5, settled=7),
    )
    assert report.metrics()["rollouts/overflowed"] == 2.0
    line = progress.iteration_headline(report)
    assert "4 rollouts failed (3 PromptTooLong, 1 ToolError), 2 of them count as unsolved" in line
    assert "5 of 12 counterfactual rollouts outgrew the window" in line
    assert "outgrew" not in progress.iteration_headline(IterationReport(iteration=1, rollouts=8))
