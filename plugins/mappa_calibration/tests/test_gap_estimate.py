"""Gaps, against slow references: explicit dummies, explicit clusters, textbook formulas."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mappa_calibration.actions import CLUSTER_COUNT, ActionColumns, task_cluster
from mappa_calibration.comparison import Comparison
from mappa_calibration.gap_estimate import Contrast
from mappa_calibration.slope_estimate import SlopeEstimate


def compare(excess, cluster, group=None):
    """A comparison of actions of which only what matters is given."""
    excess, n = np.asarray(excess, float), len(excess)
    columns = dict.fromkeys(("points", "reference", "tokens"), np.full(n, np.nan))
    own = np.zeros(n, int) if group is None else np.asarray(group)
    actions = ActionColumns(agent=np.full(n, "a", object), prompt=own, cluster=np.asarray(cluster), **columns)
    return Comparison(actions=actions, excess=excess, group=own)


def learn(contrast, comparison, inside, clock=0.0):
    return contrast.with_comparison(comparison, np.asarray(inside, float), clock)


def balanced(points_a, points_b):
    """A contrast after one iteration of one action a task."""
    points = np.concatenate([points_a, points_b])
    inside = np.arange(len(points)) < len(points_a)
    return learn(Contrast(), compare(points, np.arange(len(points))), inside)


def test_the_gap_is_the_difference_of_means_and_its_error_welchs():
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


def test_actions_are_counted_in_their_stratum_also_where_an_iteration_has_no_others():
    first = balanced(np.arange(3.0), np.arange(2.0))
    assert (first.inside, first.outside) == (3, 2)
    every = learn(first, compare([5, 6, 7, 8], np.arange(4)), np.ones(4))
    assert (every.inside, every.outside) == (7, 2)
    none = learn(every, compare([5, 6], np.arange(2)), np.zeros(2))
    assert (none.inside, none.outside) == (7, 4) and none.gap == first.gap


def test_actions_of_one_task_are_one_piece_of_evidence():
    points, cluster = np.array([7.0, 6.5, 5.0, 5.5, 4.0, 4.5]), np.arange(6)
    once = learn(Contrast(), compare(points, cluster), cluster < 3).gap
    many = learn(Contrast(), compare(np.repeat(points, 50), np.repeat(cluster, 50)), np.repeat(cluster < 3, 50))
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
        again = learn(again, compare(points, np.arange(6)), np.arange(6) < 3, clock)
    assert again.gap.standard_error == pytest.approx(once.gap.standard_error)
    assert (again.growth.value, again.growth.standard_error) == pytest.approx((0, 0), abs=1e-9)


def test_groups_are_compared_within_themselves():
    group, inside = np.array([0, 0, 0, 1, 1, 1]), np.array([1, 0, 0, 1, 1, 0])
    found = learn(Contrast(), compare([7, 5, 5, 1, 1, -1], group, group), inside)
    assert found.gap.value == pytest.approx(2.0)


def slow(iterations):
    """Gap and growth by least squares on dummies of every iteration, errors by summing over clusters."""
    x, c, y, w, cluster = [], [], [], [], []
    for clock, (one, inside) in enumerate(iterations):
        hat = np.full((len(inside), len(inside)), 1 / len(inside))
        rest = inside - hat @ inside
        for i in range(len(inside)):
            own = one.actions.cluster == one.actions.cluster[i]
            leverage = (rest * own) @ hat @ (rest * own) / ((rest * own) @ (rest * own))
            w.append(1 / math.sqrt(1 - leverage))
        x += list(rest)
        c += [clock] * len(inside)
        y += list(one.excess - hat @ one.excess)
        cluster += list(one.actions.cluster)
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
        points = 4 + clock + (1 + 0.3 * clock) * favoured[task] + task_effect[task] + rng.normal(size=len(task))
        comparison = compare(points, task)
        iterations.append((comparison, favoured[task].astype(float)))
        contrast = learn(contrast, comparison, favoured[task], clock)
    for found, (value, standard_error, degrees_of_freedom) in zip(
        (contrast.gap, contrast.growth), slow(iterations), strict=True
    ):
        assert (found.value, found.standard_error, found.degrees_of_freedom) == pytest.approx(
            (value, standard_error, degrees_of_freedom)
        )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(-3, 3))
def test_what_all_actions_of_a_group_have_in_common_moves_no_gap(seed, common):
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 8, 30)
    inside, points, cluster = rng.random(30) < 0.5, rng.normal(size=30), group % 5
    gap = learn(Contrast(), compare(points, cluster, group), inside).gap
    other = learn(Contrast(), compare(points + common * group, cluster, group), inside).gap
    assert (gap is None) == (other is None)
    if gap is not None:
        assert (gap.value, gap.standard_error) == pytest.approx((other.value, other.standard_error), abs=1e-6)


def test_iterations_in_which_a_stratum_is_alone_say_nothing():
    assert learn(Contrast(), compare([1, 2, 3], [0, 1, 2]), np.ones(3)).gap is None
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
