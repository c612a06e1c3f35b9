"""What an evaluation says: of its metric and further figures, of strata, and with tasks that come in clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mappa.evaluation import heldout
from mappa.evaluation.heldout import build_evaluation
from mappa.evaluation.statistics import paired_gain, share_interval
from mappa.store.summary import FigureSummary
from mappa_core import ConfigError, Failure, RunError, Task, Trajectory

PROMPT = Failure(kind="PromptTooLong", message="too long")
LOST = Failure(kind="ToolError", message="no sandbox")


def rollout(task, outcome, *, sample=0, stratum="all", cluster=None, error=None):
    return Trajectory(
        id=f"{task}/{sample}", task=Task(id=task, prompt="?", stratum=stratum, cluster=cluster), sample=sample,
        iteration=0, outcome=outcome, error=error,
    )  # fmt: skip


def evaluated(*rollouts, figures=("fair",)):
    return build_evaluation(rollouts, metric="success", figures=figures, iteration=0)


def test_figures_stand_beside_the_metric_sample_by_sample():
    found = evaluated(
        rollout("a", {"success": 1.0, "fair": 0.75}),
        rollout("a", {"success": 0.0, "fair": 0.0}, sample=1),
        rollout("b", {"success": 1.0, "fair": 0.5}),
        rollout("b", {}, sample=1, error=PROMPT),
        rollout("c", {"success": 1.0, "fair": 0.25}),
        rollout("c", {}, sample=1, error=LOST),
    )
    assert found.measures == ("success", "fair") and found.problems == ("a", "b", "c")
    np.testing.assert_equal(found.figures["fair"], [[0.75, 0.0], [0.5, 0.0], [0.25, np.nan]])
    np.testing.assert_equal(found.values, [[1.0, 0.0], [1.0, 0.0], [1.0, np.nan]])
    assert found.with_metric("fair").by_problem.tolist() == [0.375, 0.25, 0.25]
    assert found.with_metric("fair").interval == share_interval([0.375, 0.25, 0.25])
    assert found.with_metric("success") is found
    assert found.failures == {"PromptTooLong": 1, "ToolError": 1}


def test_where_no_outcome_is_recorded_what_broke_off_does_not_make_a_share_of_0():
    plays = [rollout("a", {}), rollout("b", {}), rollout("c", {}, error=PROMPT)]
    found = build_evaluation(plays, metric="success", iteration=0, require_metric=False)
    assert (found.known, found.interval, found.failures) == (0, None, {"PromptTooLong": 1})
    known = build_evaluation(
        [*plays, rollout("d", {"success": 1.0})], metric="success", iteration=0, require_metric=False
    )
    assert (known.known, known.interval.mean) == (2, 0.5)
    assert evaluated(plays[2], figures=()).by_problem.tolist() == [0.0], "where all broke off, all failed"


THREE = [rollout(name, {"success": 1.0}) for name in "abc"]


@pytest.fixture
def one_lost():
    """Four problems, one of them without a value."""
    return evaluated(*THREE, rollout("d", {}, error=LOST), figures=())


def test_a_problem_without_a_value_is_not_counted_as_known(one_lost):
    assert (one_lost.known, len(one_lost.problems)) == (3, 4)


def test_the_line_of_an_evaluation_counts_problems_without_a_value(one_lost, evaluation_line):
    assert evaluation_line(one_lost).startswith("held-out after 0 iterations: success 100.0 % ")
    assert " over 3 of 4 problems; not finished: 1 ToolError" in evaluation_line(one_lost)


def test_the_line_of_a_whole_evaluation_counts_its_problems_alone(evaluation_line):
    assert " over 3 problems" in evaluation_line(evaluated(*THREE))


def test_the_document_of_an_evaluation_counts_problems_without_a_value(one_lost, evaluation_json):
    document = evaluation_json(one_lost)
    assert (document["problems"], document["known_problems"]) == (4, 3)


def test_the_table_of_an_evaluation_counts_problems_without_a_value(one_lost, printed_counts):
    assert printed_counts(one_lost) == ["3 of 4"]


def test_the_summary_counts_problems_without_a_value(one_lost, summary_of):
    assert summary_of([one_lost]).known == (3,)


@pytest.mark.parametrize(("known", "said"), [((), ""), ((4, 4), ""), ((3, 3), "3 of "), ((4, 3), "4 and 3 of ")])
def test_known_problems_are_named_where_some_are_missing(known, said, format_problem_count):
    assert format_problem_count(4, 2, known) == f"{said}4 problems in 2 clusters"


@pytest.mark.parametrize("value", [85.0, -0.1])
def test_a_metric_or_figure_that_is_no_share_is_refused(value):
    for outcome in ({"success": value, "fair": 1.0}, {"success": 1.0, "fair": value}):
        with pytest.raises(ConfigError, match=rf"a/0: the workflow records (success|fair)={value:g}: make it a share"):
            evaluated(rollout("a", outcome))
    evaluated(rollout("a", {"success": 1.0, "fair": 0.0, "points": value}))  # nothing is computed of others


def test_task_without_a_figure_is_excluded_from_its_mean():
    found = evaluated(
        rollout("a", {"success": 1.0}),
        rollout("a", {}, sample=1, error=PROMPT),
        rollout("b", {"success": 1.0, "fair": 0.5}),
        rollout("b", {"success": 1.0, "fair": 1.0}, sample=1),
    )
    np.testing.assert_equal(found.figures["fair"], [[np.nan, np.nan], [0.5, 1.0]])
    assert found.interval.mean == 0.75
    assert found.with_metric("fair").interval.mean == 0.75
    only = evaluated(rollout("a", {"success": 1.0}))
    assert (
        only.with_metric("fair").interval is None
        and only.with_metric("fair").gain_over(only.with_metric("fair")) is None
    )


def answered(*right):
    """An evaluation of one problem per value: 1 or 0 for an answer that was parsed, None for one that was not."""
    return evaluated(
        *(
            rollout(str(place), {"success": float(value or 0), "parsed": float(value is not None)})
            for place, value in enumerate(right)
        ),
        figures=("parsed",),
    )


def test_format_and_skill_are_told_apart():
    found = answered(1, 0, None, 1, None)
    assert found.measures == ("success", "parsed", "success_among_parsed")
    np.testing.assert_equal(found.figures["success_among_parsed"][:, 0], [1.0, 0.0, np.nan, 1.0, np.nan])
    assert found.interval.mean == 0.4 and found.with_metric("parsed").interval.mean == 0.6
    assert found.with_metric("success_among_parsed").interval == share_interval([1.0, 0.0, 1.0])


def test_a_trajectory_that_was_not_finished_has_no_parsed_answer_and_a_lost_one_is_missing():
    found = evaluated(
        rollout("a", {"success": 0.0, "parsed": 1.0}),
        rollout("a", {}, sample=1, error=PROMPT),
        rollout("a", {}, sample=2, error=LOST),
        figures=("parsed",),
    )
    np.testing.assert_equal(found.figures["parsed"], [[1.0, 0.0, np.nan]])
    np.testing.assert_equal(found.figures["success_among_parsed"], [[0.0, np.nan, np.nan]])


def test_the_gain_of_skill_is_paired_on_the_problems_that_were_parsed_before_and_after(summary_of):
    before, after = answered(0, 1, None, None), answered(1, 1, 1, None)
    figures = summary_of([before, after]).figures
    assert figures["parsed"].gain == paired_gain([1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0])
    assert figures["success_among_parsed"].gain == paired_gain([0.0, 1.0], [1.0, 1.0])
    assert (figures["parsed"].paired, figures["success_among_parsed"].paired) == (None, 2)
    nothing = summary_of([answered(None, None), answered(None, 1)]).figures["success_among_parsed"]
    assert (nothing.before, nothing.gain) == (None, None) and nothing.after.mean == 1.0


def test_a_workflow_that_does_not_say_what_was_parsed_has_no_such_figures():
    assert evaluated(rollout("a", {"success": 1.0, "parsed": 1.0}), figures=()).measures == ("success",)


def test_figures_of_a_stored_evaluation_are_derived_again():
    found = answered(1, None)
    rollouts = [rollout(str(place), {"success": value, "parsed": value}) for place, value in enumerate((1.0, 0.0))]
    again = evaluated(*rollouts, figures=tuple(found.figures))
    np.testing.assert_equal(dict(again.figures), dict(found.figures))


def test_a_metric_that_was_not_recorded_is_a_fault_of_the_workflow():
    with pytest.raises(KeyError, match="without recording 'success'"):
        evaluated(rollout("a", {"fair": 1.0}))


def test_evaluation_without_its_trajectories_is_an_error():
    with pytest.raises(RunError, match="the evaluation of iteration 3 has no trajectories"):
        build_evaluation([], metric="success", iteration=3)


def test_missing_samples_are_excluded():
    found = evaluated(rollout("a", {"success": 1.0, "fair": 1.0}), rollout("b", {"success": 0.0, "fair": 0.0}),
                      rollout("a", {"success": 0.0, "fair": 0.0}, sample=1))  # fmt: skip
    np.testing.assert_equal(found.values, [[1.0, 0.0], [0.0, np.nan]])
    assert found.by_problem.tolist() == [0.5, 0.0]


def four(*values, clusters=("x", "x", "y", None)):
    names, strata = "abcd", ("even", "odd", "even", "odd")
    return evaluated(*(
        rollout(name, {"success": value, "fair": value / 2}, stratum=stratum, cluster=cluster)
        for name, value, stratum, cluster in zip(names, values, strata, clusters, strict=True)
    ))  # fmt: skip


def test_intervals_go_by_clusters_and_a_task_without_one_stands_for_itself():
    before, after = four(0.0, 0.25, 0.5, 0.5), four(1.0, 0.5, 0.75, 1.0)
    assert before.cluster_count == 3
    assert after.interval.mean == 0.8125
    found = after.gain_over(before)
    assert found == paired_gain([0.0, 0.25, 0.5, 0.5], [1.0, 0.5, 0.75, 1.0], clusters="xxyz")
    assert found != paired_gain([0.0, 0.25, 0.5, 0.5], [1.0, 0.5, 0.75, 1.0])
    assert after.with_metric("fair").gain_over(before.with_metric("fair")).mean == pytest.approx(found.mean / 2)


def test_a_task_is_not_of_the_cluster_that_is_named_like_it():
    assert four(0, 0, 0, 0, clusters=("d", None, None, None)).cluster_count == 4


def test_an_evaluation_where_nothing_succeeds_has_a_width_by_clusters():
    assert four(0.0, 0.0, 0.0, 0.0, clusters=("x", "x", "y", "y")).interval == share_interval([0.0, 0.0])
    assert four(0.0, 0.0, 0.0, 0.0, clusters=(None,) * 4).interval == share_interval([0.0] * 4)


def test_strata_keep_their_figures_and_clusters():
    parts = four(1.0, 0.5, 0.75, 0.0).by_stratum()
    assert list(parts) == ["even", "odd"]
    assert parts["even"].problems == ("a", "c") and parts["even"].cluster_count == 2
    assert parts["odd"].with_metric("fair").by_problem.tolist() == [0.25, 0.0]
    assert evaluated(rollout("a", {"success": 1.0, "fair": 1.0})).by_stratum() == {}


def test_the_summary_holds_every_measure_by_stratum(summary_of):
    before, after = four(0.0, 0.25, 0.5, 0.5), four(1.0, 0.5, 0.75, 1.0)
    found = summary_of([before, before, after])
    fair = before.with_metric("fair"), after.with_metric("fair")
    gain = fair[1].gain_over(fair[0])
    assert (found.n, found.clusters) == (4, 3)
    assert found.figures == {"fair": FigureSummary(before=fair[0].interval, after=fair[1].interval, gain=gain)}
    odd = found.strata["odd"]
    assert odd.n == 2 and odd.gain.mean == pytest.approx(0.375)
    assert odd.figures["fair"].gain.mean == pytest.approx(0.1875)
    alone = summary_of([before])
    assert alone.after is None and alone.figures["fair"].gain is None and alone.strata["even"].after is None


class Speaking:
    """A workflow whose final answer is the text of the last step."""

    def answer(self, steps):
        return steps[-1]


def test_several_samples_are_fair_or_raw():
    rollouts = [
        rollout("a", {"success": 1.0, "fair": 1.0}),
        rollout("a", {"success": 0.0, "fair": 0.0}, sample=1),
        rollout("a", {}, sample=2, error=PROMPT),
        rollout("a", {}, sample=3, error=LOST),
        rollout("b", {}, error=PROMPT),
    ]
    found = evaluated(*rollouts)
    assert (found.avg_at(1), found.raw.avg_at(1)) == (pytest.approx((1 / 3 + 0) / 2), 0.5)
    assert (found.pass_at(2), found.raw.pass_at(2)) == (pytest.approx(2 / 3), 1.0)
    assert found.majority_at(1) is None
    with pytest.raises(ValueError, match="@3 needs at least 3 samples"):
        found.raw.pass_at(3)
    said = [replace(one, steps=(text,)) for one, text in zip(rollouts, ("4", "5", "4", "4", "6"), strict=True)]
    answers = heldout._answers(said, Speaking(), found)
    assert answers == (("4", "5", None, None), (None, None, None, None))
    known = replace(found, answers=answers)
    assert known.majority_at(1) == pytest.approx((1 / 3 + 0) / 2) and known.raw.majority_at(2) == 0.5
