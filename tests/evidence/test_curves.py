"""Rollouts to an accuracy: on straight lines, never made up, and the same for both arms."""

import math

import numpy as np
import pytest
from curves import Curve, comparison_cells
from curves import compare_curves as compare
from process_vs_outcome import needs_more

ROLLOUTS = np.array([0, 100, 200, 300])


def curve(*accuracy_by_seed, rate=1e-3, problems=200):
    """A curve whose problems are solved from easy to hard."""
    shares = np.array(accuracy_by_seed)
    values = (np.arange(problems) < shares[..., None] * problems).astype(float)
    return Curve(rate=rate, rollouts=ROLLOUTS, values=values, seconds=1.0)


def test_the_target_is_reached_on_a_straight_line_between_evaluations():
    assert curve([0.1, 0.3, 0.7, 0.8]).rollouts_to(0.6) == pytest.approx(175)


def test_the_first_time_counts_where_accuracy_falls_again():
    assert curve([0.1, 0.6, 0.2, 0.9]).rollouts_to(0.35) == pytest.approx(50)


def test_a_target_that_is_met_at_the_start_takes_no_rollouts():
    assert curve([0.5, 0.4, 0.4, 0.4]).rollouts_to(0.5) == 0


def test_a_target_that_is_never_met_takes_infinitely_many():
    assert curve([0.1, 0.2, 0.3, 0.4]).rollouts_to(0.5) == math.inf


def test_seeds_are_averaged_before_the_target_is_looked_for():
    both = curve([0.0, 0.2, 0.4, 0.4], [0.0, 0.4, 0.8, 0.8])
    assert both.rollouts_to(0.6) == pytest.approx(200)
    assert both.of_seed(0).rollouts_to(0.6) == math.inf
    assert both.of_seed(1).rollouts_to(0.6) == pytest.approx(150)


def test_a_lost_problem_is_left_out():
    one = curve([0.0, 0.5, 1.0, 1.0], problems=4)
    one.values[0, 1, 3] = np.nan
    assert one.accuracy == pytest.approx([0, 2 / 3, 1, 1])


def test_an_arm_that_needs_twice_as_many_is_found_to_do_so():
    found = compare("hard", 0.6, {"process": curve([0, 0.8, 0.8, 0.8]), "outcome": curve([0, 0.4, 0.8, 0.8])})
    assert found.rollouts["process"].mean == pytest.approx(75)
    assert found.ratio.mean == pytest.approx(2)
    assert 1 < found.ratio.low < 2 < found.ratio.high < 2.5
    assert found.by_seed == {"process": (pytest.approx(75),), "outcome": (pytest.approx(150),)}


def test_equal_arms_need_equally_many_in_every_draw():
    same = curve([0.1, 0.3, 0.7, 0.8])
    found = compare("hard", 0.6, {"process": same, "outcome": same})
    assert (found.ratio.mean, found.ratio.low, found.ratio.high) == (1, 1, 1)


def test_an_arm_that_never_arrives_has_no_finite_number():
    found = compare("hard", 0.6, {"process": curve([0, 0.8, 0.8, 0.8]), "outcome": curve([0, 0.1, 0.1, 0.1])})
    assert found.rollouts["outcome"].mean == found.ratio.mean == found.ratio.high == math.inf


def test_where_neither_arm_arrives_there_is_no_ratio():
    low = curve([0, 0.1, 0.1, 0.1])
    assert compare("hard", 0.6, {"process": low, "outcome": low}).ratio is None


def test_where_only_the_process_arm_never_arrives_the_table_says_so():
    found = compare("hard", 0.6, {"process": curve([0, 0.1, 0.1, 0.1]), "outcome": curve([0, 0.8, 0.8, 0.8])})
    assert found.ratio.mean == 0
    assert comparison_cells(found)[2] == "never [never, never] (never)"
    assert comparison_cells(found)[4] == "process never [process never, process never]"


def test_a_target_that_no_arm_has_to_learn_has_no_ratio():
    known = curve([0.7, 0.8, 0.8, 0.8])
    assert compare("hard", 0.6, {"process": known, "outcome": known}).ratio is None


@pytest.mark.parametrize(
    ("process", "outcome", "standing"),
    [
        ([0, 0.8, 0.8, 0.8], [0, 0.4, 0.8, 0.8], "held"),
        ([0, 0.8, 0.8, 0.8], [0, 0.1, 0.1, 0.1], "held"),
        ([0.1, 0.3, 0.7, 0.8], [0.1, 0.3, 0.7, 0.8], "not held"),
        ([0, 0.1, 0.1, 0.1], [0, 0.8, 0.8, 0.8], "not held"),
        ([0, 0.1, 0.1, 0.1], [0, 0.1, 0.1, 0.1], "open"),
    ],
)
def test_the_claim_holds_where_all_of_the_interval_is_above_one(process, outcome, standing):
    assert needs_more(compare("hard", 0.6, {"process": curve(process), "outcome": curve(outcome)})) == standing
