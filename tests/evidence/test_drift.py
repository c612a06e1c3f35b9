"""The promises of the drift monitor, over fewer simulated runs than docs/evidence/drift.py plays.

A bound holds here if the runs are what they may be by chance in one test of a thousand.
"""

import numpy as np
import pytest
from drift import DUE, EPOCHS, Case, Result, constant, curves, none, promises, published, simulate
from scipy.stats import binom

RUNS = 40


def at_most(share):
    return binom.ppf(0.999, RUNS, share) / RUNS


def at_least(share):
    return binom.ppf(0.001, RUNS, share) / RUNS


def test_without_a_gap_alarms_are_rare():
    assert simulate(Case(name="none"), RUNS, 0).any <= at_most(0.05)


def test_the_published_gap_is_found_by_the_third_epoch():
    found = simulate(Case(name="published", gap=published), RUNS, 0, epochs=DUE)
    assert found.curves[0, DUE - 1] >= at_least(0.9)


@pytest.mark.parametrize(("gap", "bound"), [(constant, at_most), (published, at_least)])
def test_of_acknowledged_gaps_that_which_grows_is_found(gap, bound):
    found = simulate(Case(name="acknowledged", gap=gap, acknowledged=True), RUNS, 0)
    assert (found.first[:, 0] == EPOCHS).all()
    widening = found.curves[1, -1]
    assert widening <= at_most(0.05) if gap is constant else widening >= at_least(0.9)


def test_the_published_gap_widens_from_115_to_167():
    assert (published(0), published(EPOCHS - 1), none(3)) == pytest.approx((1.15, 1.67, 0))


def test_every_promise_is_made_for_one_agent_and_for_three():
    assert [promise.case.agents for promise in promises()] == [1] * 4 + [3] * 4


def test_a_curve_tells_the_share_of_runs_with_an_alarm_so_far():
    found = Result(case=Case(name="x"), first=np.array([[0, EPOCHS], [2, 3], [EPOCHS, EPOCHS], [2, EPOCHS]]))
    assert found.curves[0, :4].tolist() == [0.25, 0.25, 0.75, 0.75]
    assert found.any == 0.75
    rows = list(curves([found]))
    assert rows[0][:5] == ("x", "level", "25.0", "25.0", "75.0") and rows[0][-1] == "75.0"
    assert rows[1][:2] == ("", "widening")
