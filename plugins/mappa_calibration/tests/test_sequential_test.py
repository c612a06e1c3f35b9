"""Repeated tests keep their promise, however often they look."""

import math

import numpy as np
import pytest
from scipy import stats

from mappa_calibration.sequential_test import MAX_CRITICAL_VALUE, SequentialTest, solve_critical_value
from mappa_calibration.slope_estimate import TINY, SlopeEstimate


def estimate(z, information):
    """An estimate that far from zero, by an error that is known."""
    return SlopeEstimate(
        value=z / math.sqrt(information), standard_error=1 / math.sqrt(information), degrees_of_freedom=1e9
    )


def test_the_first_critical_value_is_the_quantile_of_a_normal_deviate():
    assert solve_critical_value(0.05, correlation=0.0, last=MAX_CRITICAL_VALUE) == pytest.approx(
        stats.norm.isf(0.025), abs=1e-5
    )
    assert solve_critical_value(1e-8, correlation=0.0, last=MAX_CRITICAL_VALUE) == pytest.approx(
        stats.norm.isf(0.5e-8), abs=1e-4
    )


@pytest.mark.parametrize(("correlation", "last", "spend"), [(0.5, 2.5, 1e-2), (0.9, 2.8, 2e-3), (0.99, 3.2, 1e-4)])
def test_a_later_critical_value_spends_the_alpha_of_its_analysis(correlation, last, spend):
    critical_value = solve_critical_value(spend, correlation=correlation, last=last)
    pair = stats.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]])
    above = stats.norm.sf(critical_value) - (
        pair.cdf([-critical_value, -last]) + stats.norm.sf(critical_value) - pair.cdf([-critical_value, last])
    )
    assert 2 * above == pytest.approx(spend, rel=1e-3)


def bars(information, alpha, scale=1.0):
    looks, found = SequentialTest(alpha=alpha, scale=scale), []
    for known in information:
        looks = looks.update(estimate(0.0, known))
        found.append(looks.critical_value)
    return np.array(found)


@pytest.mark.parametrize(
    "information",
    [np.arange(1, 100.0), 16 - 4 / np.arange(1, 23), 12 + np.arange(100) / 25, np.arange(1, 60.0) ** 3 / 500],
)
def test_over_any_number_of_analyses_false_positives_stay_below_alpha(information):
    rng = np.random.default_rng(0)
    steps = np.sqrt(np.diff(information, prepend=0)) * rng.normal(size=(40_000, len(information)))
    z = np.abs(np.cumsum(steps, axis=1)) / np.sqrt(information)
    alpha = 0.05
    significant = (z >= bars(information, alpha)).any(axis=1).mean()
    assert 0.3 * alpha < significant < alpha + 3 * math.sqrt(alpha / 40_000)


def test_an_estimate_is_significant_from_its_critical_value_on():
    looks = SequentialTest(alpha=0.02, scale=1.0)
    critical_value = looks.update(estimate(0.0, 10.0)).critical_value
    assert looks.update(estimate(critical_value + 1e-6, 10.0)).significant
    assert not looks.update(estimate(critical_value - 1e-6, 10.0)).significant
    assert looks.update(estimate(-critical_value - 1e-6, 10.0)).significant


def test_without_new_information_no_alpha_is_spent():
    looks = SequentialTest(alpha=0.02, scale=1.0).update(estimate(0.0, 10.0))
    for information in (10.1, 8.0, 10.0):
        again = looks.update(estimate(9.0, information))
        assert again.significant
        assert (again.information, again.critical_value) == (looks.information, looks.critical_value)


def test_judgements_that_all_agree_at_first_leave_alpha_for_what_follows():
    """They have no error yet. By it all of alpha was spent, and the next 80 looks found 28 % of gaps that are none."""
    looks = SequentialTest(alpha=0.05, scale=1.0)
    agreeing = SlopeEstimate(value=0.0, standard_error=TINY, degrees_of_freedom=20)
    assert looks.update(agreeing) == looks
    later = looks.update(agreeing).update(estimate(0.0, 10.0))
    assert later == looks.update(estimate(0.0, 10.0))
    # All of them higher by the same is a gap without any doubt, as long as it lasts.
    sure = looks.update(SlopeEstimate(value=1.0, standard_error=TINY, degrees_of_freedom=20))
    assert sure.significant and not sure.update(estimate(0.0, 10.0)).significant


def test_three_tenths_are_spent_when_the_error_is_as_small_as_the_scale():
    critical_value = SequentialTest(alpha=0.05, scale=0.2).update(estimate(0.0, 25.0)).critical_value
    assert 2 * stats.norm.sf(critical_value) == pytest.approx(0.05 * (1 - 1 / math.sqrt(2)), rel=1e-4)
