"""Statistics against truth: by hand, against scipy on rows that are really repeated, and by what must not matter."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from mappa.look.coach_eval.bootstrap import (
    auc,
    correlation,
    deciles,
    estimate,
    paired_difference,
    ratio,
    slope,
    spearman,
)

points = st.integers(0, 10).map(float)
rows = st.lists(st.tuples(points, st.booleans(), st.integers(0, 3)), min_size=2, max_size=30)


def weighted(statistic, weight):
    return statistic(np.array([weight], dtype=float))[0]


def plain(statistic, n):
    return weighted(statistic, [1] * n)


def same(one, other):
    return (math.isnan(one) and math.isnan(other)) or one == pytest.approx(other, abs=1e-9)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_auc_is_the_share_of_pairs_in_order_with_ties_counting_half():
    # right: 9, 6, 6; wrong: 6, 2. Pairs: 9>6, 9>2, 6=6, 6>2, 6=6, 6>2 -> (4 + 2 * 0.5) / 6
    statistic = auc([9, 6, 6, 6, 2], [True, True, True, False, False])
    assert plain(statistic, 5) == pytest.approx(5 / 6)


def test_auc_of_one_class_is_not_defined():
    assert math.isnan(plain(auc([1, 2], [True, True]), 2))


def test_spearman_by_hand():
    # ranks of score 1, 2.5, 2.5, 4; of label 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5
    assert plain(spearman([0, 5, 5, 9], [0.0, 0.1, 0.2, 1.0]), 4) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_correlations_without_variation_are_not_defined():
    assert math.isnan(plain(spearman([5, 5, 5], [0, 1, 0]), 3))
    assert math.isnan(plain(correlation([0.1, 0.1, 0.1], [1.0, 2.0, 3.0]), 3))


def test_a_slope_compares_only_within_cells():
    # In cell a a unit is worth 2 points, in b too; between the cells lie 100 points and 10 units.
    score = [1, 3, 5, 101, 105]
    x = [0, 1, 2, 10, 12]
    assert plain(slope(score, x, list("aaabb")), 5) == pytest.approx(2.0)
    assert math.isnan(plain(slope(score, x, list("abcde")), 5))


def test_a_slope_on_zeros_and_ones_is_the_mean_difference_within_cells():
    # Cell a: 8 and 6 inside against 4 outside: 3 points, of weight 2 * 1 / 3; cell b: 5 against 4: 1 point, weight 1/2.
    found = plain(slope([8, 6, 4, 5, 4], [1, 1, 0, 1, 0], list("aaabb")), 5)
    assert found == pytest.approx((3 * 2 / 3 + 1 * 1 / 2) / (2 / 3 + 1 / 2))


def test_a_ratio_of_nothing_is_not_defined():
    assert plain(ratio([1, 2], [2, 4]), 2) == 0.5
    assert math.isnan(plain(ratio([0, 0], [0, 0]), 2))


def test_values_are_grouped_by_value_or_by_tenths():
    assert deciles([0.5, 0.0, 0.5, 1.0]).tolist() == [1, 0, 1, 2]
    assert deciles(np.arange(100.0)).tolist() == [value // 10 for value in range(100)]


# --- against scipy ----------------------------------------------------------------------------------------------------


def repeated(values, weight):
    return np.repeat(np.asarray(values, dtype=float), weight)


@settings(max_examples=40)
@given(rows, st.data())
def test_weights_are_the_same_as_rows_that_are_repeated(drawn, data):
    score, right, _ = map(list, zip(*drawn, strict=True))
    weight = data.draw(st.lists(st.integers(0, 3), min_size=len(score), max_size=len(score)))
    many, positive = repeated(score, weight), np.repeat(np.array(right), weight)
    found = weighted(auc(score, right), weight)
    if positive.all() or not positive.any():
        assert math.isnan(found)
    else:
        u = stats.mannwhitneyu(many[positive], many[~positive]).statistic
        assert found == pytest.approx(u / (positive.sum() * (~positive).sum()))
    rank = weighted(spearman(score, right), weight)
    if len(set(many)) < 2 or len(set(positive)) < 2:
        assert math.isnan(rank)
    else:
        assert rank == pytest.approx(stats.spearmanr(many, positive).statistic, abs=1e-9)


@settings(max_examples=40)
@given(rows, st.data())
def test_a_weighted_slope_is_least_squares_with_a_constant_for_each_cell(drawn, data):
    score, x, cell = map(list, zip(*[(s, 2.0 * s + 3 * b + c, c) for s, b, c in drawn], strict=True))
    weight = data.draw(st.lists(st.integers(0, 3), min_size=len(score), max_size=len(score)))
    assume(sum(weight) > 0)
    y, many, cells = repeated(score, weight), repeated(x, weight), np.repeat(cell, weight)
    design = np.column_stack([many, *[cells == cell for cell in sorted(set(cells))]])
    found = weighted(slope(score, x, cell), weight)
    if math.isnan(found):
        assert np.linalg.matrix_rank(design) < design.shape[1]
    else:
        assert found == pytest.approx(np.linalg.lstsq(design, y, rcond=None)[0][0], abs=1e-6)


# --- what must not matter ---------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(rows)
def test_auc_and_spearman_are_the_same_under_any_rising_map(drawn):
    score, right, _ = map(np.array, zip(*drawn, strict=True))
    bent = np.exp(score / 3) - 7
    n = len(score)
    assert same(plain(auc(score, right), n), plain(auc(bent, right), n))
    assert same(plain(spearman(score, right), n), plain(spearman(bent, right), n))


@settings(max_examples=40)
@given(rows)
def test_auc_of_negated_scores_is_one_minus_the_auc(drawn):
    score, right, _ = map(np.array, zip(*drawn, strict=True))
    n = len(score)
    assert same(plain(auc(-score, right), n), 1 - plain(auc(score, right), n))
    assert same(plain(auc(score, ~right), n), 1 - plain(auc(score, right), n))


@settings(max_examples=40)
@given(rows)
def test_slope_is_unchanged_by_a_constant_added_to_a_cell(drawn):
    score, right, cell = map(np.array, zip(*drawn, strict=True))
    n = len(score)
    assert same(plain(slope(score, right, cell), n), plain(slope(score + 5 * cell, right, cell), n))


# --- the bootstrap ----------------------------------------------------------------------------------------------------


def slow_interval(score, right, clusters, draws, seed):
    """Draw clusters, repeat their rows and count pairs: nothing in common with what is tested but the definition."""
    random = np.random.default_rng(seed)
    names = sorted(set(clusters))
    found = []
    for _ in range(draws):
        chosen = [names[random.integers(len(names))] for _ in names]
        index = [row for name in chosen for row, own in enumerate(clusters) if own == name]
        s, r = np.asarray(score)[index], np.asarray(right)[index]
        if r.any() and not r.all():
            above, below = s[r][:, None], s[~r][None, :]
            found.append(np.mean((above > below) + 0.5 * (above == below)))
    tail = stats.norm.cdf(-math.sqrt(len(names) / (len(names) - 1)) * stats.t.isf(0.025, len(names) - 1))
    return np.quantile(found, [tail, 1 - tail])


def clustered(seed=1, clusters=40):
    random = np.random.default_rng(seed)
    names = [f"t{number}" for number in range(clusters) for _ in range(random.integers(1, 5))]
    truth = {name: random.random() < 0.5 for name in names}
    right = np.array([truth[name] for name in names])
    score = np.clip(np.round(5 + 2 * right + random.normal(0, 2, len(names))), 0, 10)
    return score, right, names


def test_the_interval_is_that_of_clusters_really_drawn():
    score, right, names = clustered()
    found = estimate(auc(score, right), names)
    low, high = slow_interval(score, right, names, draws=2000, seed=5)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.02)
    assert found.low < found.value < found.high


def test_rows_that_say_the_same_again_do_not_narrow_the_interval():
    score, right, names = clustered()
    one, ten = (estimate(auc(np.tile(score, n), np.tile(right, n)), np.tile(names, n)) for n in (1, 10))
    assert (one.value, one.low, one.high) == pytest.approx((ten.value, ten.low, ten.high))


def test_the_same_rows_give_the_same_interval():
    score, right, names = clustered()
    assert estimate(auc(score, right), names) == estimate(auc(score, right), names)


def test_the_difference_of_two_scores_is_paired():
    score, right, names = clustered()
    none = estimate(paired_difference(auc(score, right), auc(3 * score + 1, right)), names)
    assert (none.value, none.low, none.high) == (0.0, None, None)
    gain = estimate(paired_difference(auc(score, right), auc(np.zeros(len(score)), right)), names)
    alone = estimate(auc(score, right), names)
    assert (gain.value, gain.low, gain.high) == pytest.approx((alone.value - 0.5, alone.low - 0.5, alone.high - 0.5))


@pytest.mark.parametrize(("clusters", "covered"), [(5, 0.9), (8, 0.92), (20, 0.93)])
def test_the_interval_of_few_clusters_covers_the_truth(clusters, covered):
    """Plain percentiles cover 82, 88 and 92 of 100."""
    random, hits = np.random.default_rng(0), 0
    names = np.repeat(np.arange(clusters), 3)
    for _ in range(400):
        values = random.normal(0, 1, clusters)[names] + random.normal(0, 0.5, len(names))
        found = estimate(ratio(values, np.ones(len(names))), names)
        hits += found.low <= 0 <= found.high
    assert covered <= hits / 400 <= 0.98


def test_four_clusters_have_no_interval_and_neither_have_any_that_are_alike():
    alone = estimate(ratio([1, 2, 3, 4], np.ones(4)), list("abcd"))
    assert (alone.value, alone.low, alone.high) == (2.5, None, None)
    alike = estimate(ratio(np.ones(8), np.ones(8)), list("abcdefgh"))
    assert (alike.value, alike.low, alike.high) == (1.0, None, None)


def test_undefined_statistics_have_no_figure_and_one_cluster_has_no_interval():
    assert estimate(auc([1, 2], [True, True]), ["a", "b"]) is None
    assert estimate(auc([], []), []) is None
    alone = estimate(auc([1, 2], [False, True]), ["a", "a"])
    assert (alone.value, alone.low, alone.high) == (1.0, None, None)
    # One wrong trajectory among five: a third of the draws leave it out.
    rare = estimate(auc([1, 2, 2, 2, 2], [False, True, True, True, True]), list("abcde"))
    assert (rare.value, rare.low, rare.high) == (1.0, None, None)
