"""Gaps at equal outcome, against slow references: explicit dummies, explicit clusters, textbook formulas."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mappa_calibration.contrasts import (
    CLUSTER_COUNT,
    ActionColumns,
    Contrast,
    SlopeEstimate,
    projection_basis,
    residual,
    task_cluster,
)


def actions(points, cluster, outcome=None):
    points = np.asarray(points, float)
    known = np.full(len(points), np.nan) if outcome is None else np.asarray(outcome, float)
    return ActionColumns(
        points=points, outcome=known, cluster=np.asarray(cluster), tokens=np.full(len(points), np.nan), strata={}
    )


def balanced(points_a, points_b):
    """A contrast after one iteration of one action a task."""
    points = np.concatenate([points_a, points_b])
    inside = np.arange(len(points)) < len(points_a)
    return Contrast().with_actions(actions(points, np.arange(len(points))), inside, 0.0)


def test_without_outcomes_the_gap_is_the_difference_of_means_and_its_error_welchs():
    rng = np.random.default_rng(0)
    a, b = rng.normal(6, 1, 34), rng.normal(5, 3, 30)
    found = balanced(a, b).gap
    welch = stats.ttest_ind(a, b, equal_var=False)
    assert found.value == pytest.approx(a.mean() - b.mean())
    assert found.value / found.standard_error == pytest.approx(welch.statistic, rel=0.01)


def test_degrees_of_freedom_are_those_of_the_smaller_stratum_where_the_other_is_large():
    assert balanced(np.arange(10.0), np.arange(10.0)).gap.degrees_of_freedom == pytest.approx(19)
    assert balanced(np.arange(6.0), np.arange(200.0)).gap.degrees_of_freedom == pytest.approx(5, abs=0.4)


def test_the_interval_and_z_are_students():
    found = SlopeEstimate(value=-1.2, standard_error=0.4, degrees_of_freedom=8.5)
    assert found.half_width == pytest.approx(0.4 * stats.t.ppf(0.975, 8.5))
    assert stats.norm.sf(found.z) == pytest.approx(stats.t.sf(3.0, 8.5))


def test_actions_of_one_task_are_one_piece_of_evidence():
    points, cluster = np.array([7.0, 6.5, 5.0, 5.5, 4.0, 4.5]), np.arange(6)
    once = Contrast().with_actions(actions(points, cluster), cluster < 3, 0.0).gap
    many = Contrast().with_actions(
        actions(np.repeat(points, 50), np.repeat(cluster, 50)), np.repeat(cluster < 3, 50), 0
    )
    assert many.gap == SlopeEstimate(
        value=pytest.approx(once.value),
        standard_error=pytest.approx(once.standard_error),
        degrees_of_freedom=pytest.approx(once.degrees_of_freedom),
    )


def test_a_task_that_comes_back_as_it_was_makes_nothing_surer():
    once = balanced(np.array([7.0, 6.5, 5.0]), np.array([5.5, 4.0, 4.5]))
    again = once
    for clock in range(1, 20):
        points = np.array([7.0, 6.5, 5.0, 5.5, 4.0, 4.5])
        again = again.with_actions(actions(points, np.arange(6)), np.arange(6) < 3, clock)
    assert again.gap.standard_error == pytest.approx(once.gap.standard_error)
    assert (again.growth.value, again.growth.standard_error) == pytest.approx((0, 0), abs=1e-9)


def test_real_difficulty_that_the_outcome_shows_is_no_gap():
    outcome = np.array([1, 1, 1, 0, 1, 0, 0, 0, 0, 0])
    noise = np.array([0.1, -0.1, 0, 0, 0.2, -0.2, 0.1, -0.1, 0, 0])
    inside = np.arange(10) < 5
    found = Contrast().with_actions(actions(3 + 6 * outcome + noise, np.arange(10), outcome), inside, 0.0)
    plain = Contrast().with_actions(actions(3 + 6 * outcome + noise, np.arange(10)), inside, 0.0)
    assert plain.gap.value == pytest.approx(4.88)
    assert abs(found.gap.value) < 0.1


def test_where_few_outcomes_are_known_known_ones_are_compared_at_equal_outcome_and_the_others_with_each_other():
    outcome = np.array([1, 0, 1, 0, np.nan, np.nan, np.nan, np.nan])
    inside = np.array([1, 1, 0, 0, 1, 1, 0, 0], bool)
    points = np.where(np.isnan(outcome), 2.0, 5 + 4 * np.nan_to_num(outcome)) + 1.5 * inside
    assert Contrast().with_actions(actions(points, np.arange(8), outcome), inside, 0.0).gap.value == pytest.approx(1.5)


def slow(iterations):
    """Gap and growth by least squares on dummies of every iteration, errors by summing over clusters."""
    rows = sum(len(one.points) for one, _ in iterations)
    dummies, x, c, y, w, cluster = np.zeros((rows, 3 * len(iterations))), [], [], [], [], []
    at = 0
    for clock, (one, inside) in enumerate(iterations):
        z = np.column_stack([np.ones(len(inside)), one.outcome])
        hat = z @ np.linalg.pinv(z)
        rest = inside - hat @ inside
        for i in range(len(inside)):
            own = one.cluster == one.cluster[i]
            leverage = (rest * own) @ hat @ (rest * own) / ((rest * own) @ (rest * own))
            w.append(1 / math.sqrt(1 - leverage))
        dummies[at : at + len(inside), 2 * clock : 2 * clock + 2] = z
        at += len(inside)
        x += list(rest)
        c += [clock] * len(inside)
        y += list(one.points - hat @ one.points)
        cluster += list(one.cluster)
    x, c, y, w, cluster = map(np.array, (x, c, y, w, cluster))

    def fit(design, which):
        bread = np.linalg.inv((design * w[:, None]).T @ design)
        beta = bread @ (design * w[:, None]).T @ y
        residual = y - design @ beta
        influence = np.array(
            [(bread @ ((w * residual)[cluster == g] @ design[cluster == g]))[which] for g in np.unique(cluster)]
        )
        other = np.delete(design, which, axis=1)
        root = np.sqrt(w)
        fitted, *_ = np.linalg.lstsq(other * root[:, None], design[:, which] * root, rcond=None)
        alone = design[:, which] - other @ fitted
        share = np.array([(w * alone**2)[cluster == g].sum() for g in np.unique(cluster)]) / (w * alone**2).sum()
        return beta[which], math.sqrt((influence**2 / (1 - share)).sum()), 1 / (share**2).sum() - 1

    return fit(x[:, None], 0), fit(np.column_stack([x, x * c]), 1)


def test_gap_and_growth_agree_with_least_squares_on_dummies_and_explicit_clusters():
    rng = np.random.default_rng(3)
    iterations, contrast = [], Contrast()
    task_effect, favoured = rng.normal(size=20), np.arange(20) < 9
    for clock in range(7):
        task = np.sort(rng.choice(20, 12, replace=False)).repeat(rng.integers(1, 4, 12))
        outcome = (rng.random(len(task)) < np.where(favoured[task], 0.7, 0.3)).astype(float)
        points = (
            4
            + clock
            + 2 * outcome
            + (1 + 0.3 * clock) * favoured[task]
            + task_effect[task]
            + rng.normal(size=len(task))
        )
        one = actions(points, task, outcome)
        iterations.append((one, favoured[task].astype(float)))
        contrast = contrast.with_actions(one, favoured[task], clock)
    for found, (value, standard_error, degrees_of_freedom) in zip(
        (contrast.gap, contrast.growth), slow(iterations), strict=True
    ):
        assert (found.value, found.standard_error, found.degrees_of_freedom) == pytest.approx(
            (value, standard_error, degrees_of_freedom)
        )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(-3, 3), st.floats(-5, 5))
def test_what_all_actions_of_an_iteration_have_in_common_moves_no_gap(seed, common, slope):
    rng = np.random.default_rng(seed)
    outcome, cluster = rng.integers(0, 2, 30).astype(float), rng.integers(0, 12, 30)
    inside, points = rng.random(30) < 0.5, rng.normal(size=30)
    one = Contrast().with_actions(actions(points, cluster, outcome), inside, 0.0).gap
    other = Contrast().with_actions(actions(points + common + slope * outcome, cluster, outcome), inside, 0.0).gap
    assert (one is None) == (other is None)
    if one is not None:
        assert (one.value, one.standard_error) == pytest.approx((other.value, other.standard_error), abs=1e-6)


def test_iterations_in_which_a_stratum_is_alone_say_nothing():
    assert Contrast().with_actions(actions([1, 2, 3], [0, 1, 2]), np.ones(3, bool), 0.0).gap is None
    assert Contrast().gap is None and Contrast().growth is None


def test_a_coach_without_noise_has_a_gap_all_the_same():
    found = balanced(np.full(8, 6.5), np.full(8, 5.0)).gap
    assert found.value == pytest.approx(1.5)
    assert found.z > 8


def test_the_sums_survive_json_bit_by_bit():
    rng = np.random.default_rng(1)
    contrast = balanced(rng.normal(size=9), rng.normal(size=7))
    restored = Contrast.from_state(json.loads(json.dumps(contrast.state_dict())))
    assert (restored.sums == contrast.sums).all()
    assert (restored.inside, restored.outside) == (9, 7)


def test_clusters_are_by_task_and_spread():
    assert task_cluster("task-7") == task_cluster("task-7")
    assert len({task_cluster(f"task-{number}") for number in range(64)}) > 50
    assert {task_cluster(f"task-{number}") for number in range(4096)} == set(range(CLUSTER_COUNT))


def test_what_is_explained_is_spanned_by_orthonormal_columns_whatever_is_constant():
    for outcome in ([1, 1, 1, 1], [0, 1, 0, np.nan], [np.nan] * 4, [1e9, 2e9, 3e9, 4e9]):
        basis = projection_basis(np.array(outcome, float))
        assert basis.T @ basis == pytest.approx(np.eye(basis.shape[1]), abs=1e-12)
        known = np.isfinite(outcome)
        assert residual(known.astype(float), basis) == pytest.approx(np.zeros(4), abs=1e-9)
        assert residual(np.where(known, np.nan_to_num(outcome), 0) / 4e9, basis) == pytest.approx(np.zeros(4), abs=1e-9)
