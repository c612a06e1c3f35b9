"""The figures of an iteration: what outgrew the window counts in them as in an evaluation."""

from __future__ import annotations

import pytest

from mappa.training.iteration_figures import measure_outcomes, measure_strata
from mappa_core import Failure, Task, Trajectory

OUTGROWN = Failure(kind="PromptTooLong", message="80 > 64", quoted={"step": 80})
TOO_LONG_A_TASK = Failure(kind="PromptTooLong", message="80 > 64")
LOST = Failure(kind="ToolError", message="no sandbox")
MEASURES = "correct", ("parsed", "fair")


def rollout(task, sample, outcome, error=None, *, stratum="easy"):
    return Trajectory(
        id=f"{task}/{sample}", task=Task(id=task, prompt="?", stratum=stratum), sample=sample, iteration=0,
        outcome=outcome, error=error,
    )  # fmt: skip


ROLLOUTS = [
    rollout("a", 0, {"correct": 1.0, "parsed": 1.0, "fair": 0.5}),
    rollout("a", 1, {}, OUTGROWN),
    # `fair` is undefined of this task, so what outgrew the window has none either.
    rollout("b", 0, {"correct": 0.5, "parsed": 1.0}, stratum="hard"),
    rollout("b", 1, {}, OUTGROWN, stratum="hard"),
]


def test_what_outgrew_the_window_counts_0_as_in_an_evaluation(build_evaluation):
    found = measure_outcomes(ROLLOUTS, *MEASURES, "unsolved")
    # Of four rollouts 1, 0, 0.5 and 0; parsed 1, 0, 1 and 0; fair 0.5 and 0 of the task that has it; of those parsed
    # 1 and 0.5.
    assert found.accuracy == 0.375
    assert found.figures == {"parsed": 0.5, "fair": 0.25, "correct_among_parsed": 0.75}
    assert found.unsolved == 2
    evaluation = build_evaluation(ROLLOUTS, metric=MEASURES[0], figures=MEASURES[1], iteration=0)
    assert found.accuracy == evaluation.interval.mean
    means = {name: evaluation.with_metric(name).interval.mean for name in evaluation.figures}
    assert means == found.figures


def test_each_stratum_counts_its_own():
    easy, hard = measure_strata(ROLLOUTS, *MEASURES, "unsolved").values()
    assert (easy.accuracy, easy.unsolved) == (0.5, 1)
    assert (hard.accuracy, hard.unsolved) == (0.25, 1)


def test_what_is_unknown_is_left_out():
    found = measure_outcomes(ROLLOUTS, *MEASURES, "unknown")
    assert (found.accuracy, found.figures["fair"], found.unsolved) == (0.75, 0.5, 0)


@pytest.mark.parametrize("error", [TOO_LONG_A_TASK, LOST])
def test_what_the_team_did_not_make_long_is_left_out(error):
    found = measure_outcomes([ROLLOUTS[0], rollout("a", 2, {}, error)], *MEASURES, "unsolved")
    assert (found.accuracy, found.unsolved) == (1.0, 0)


def test_an_iteration_of_which_nothing_fitted_is_wrong_and_not_unknown():
    found = measure_outcomes(ROLLOUTS[1:2], *MEASURES, "unsolved")
    assert (found.accuracy, found.figures["parsed"], found.figures["fair"]) == (0.0, 0.0, 0.0)
    assert measure_outcomes(ROLLOUTS[1:2], *MEASURES, "unknown").accuracy is None
