from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from mappa.evaluation.statistics import (
    Interval,
    majority_at_k,
    mean_interval,
    paired_gain,
    pass_at_k,
    share_interval,
    t_quantile,
    wilson_interval,
)

ratings = st.lists(st.floats(-100, 100), min_size=2, max_size=20)

# t


@pytest.mark.parametrize(
    ("degrees", "tabulated"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (5, 2.5706),
        (9, 2.2622),
        (10, 2.2281),
        (29, 2.0452),
        (30, 2.0423),
        (60, 2.0003),
        (120, 1.9799),
        (1000, 1.9623),
    ],
)
def test_t_quantiles_match_the_published_table(degrees: int, tabulated: float) -> None:
    assert t_quantile(degrees) == pytest.approx(tabulated, abs=6e-5)


def test_t_quantiles_decrease_to_the_normal_quantile() -> None:
    quantiles = [t_quantile(degrees) for degrees in range(1, 200)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert t_quantile(100_000) == pytest.approx(1.959964 + 2.37e-5, abs=1e-6)


# proportion


@pytest.mark.parametrize(
    ("ones", "n", "low", "high"),
    [(12, 24, 0.3143, 0.6857), (16, 24, 0.4671, 0.8203), (29, 120, 0.1739, 0.3255), (0, 10, 0.0, 0.2775)],
)
def test_a_proportion_has_wilsons_interval(ones: int, n: int, low: float, high: float) -> None:
    found = share_interval([1.0] * ones + [0.0] * (n - ones))
    assert (found.mean, found.low, found.high) == pytest.approx((ones / n, low, high), abs=1e-4)


@given(st.lists(st.booleans(), min_size=2, max_size=50))
def test_the_bounds_of_a_proportion_solve_the_score_equation(values: list[bool]) -> None:
    found, n = share_interval(values), len(values)
    assert 0.0 <= found.low <= found.mean <= found.high <= 1.0
    assert found.low < found.high
    for bound in (found.low, found.high):
        assert (found.mean - bound) ** 2 == pytest.approx(1.959964**2 * bound * (1 - bound) / n, abs=1e-6)


def test_one_value_has_no_interval() -> None:
    for found in (share_interval([1.0]), mean_interval([0.5]), mean_interval([0.2, 0.4], clusters="aa")):
        assert (found.low, found.high) == (None, None)
    assert mean_interval([0.25, 0.5], clusters="aa").mean == 0.375


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf], [[1.0, 0.0]]])
def test_no_values_or_missing_ones_are_refused(values) -> None:
    for statistic in (share_interval, mean_interval, lambda v: paired_gain(v, v)):
        with pytest.raises(ValueError, match="leave missing ones out"):
            statistic(values)


# mean_interval


def test_a_mean_has_students_interval() -> None:
    found = mean_interval([1.0, 2.0, 3.0, 4.0])
    reach = 3.182446 * math.sqrt(5 / 3) / 2
    assert (found.mean, found.low, found.high) == pytest.approx((2.5, 2.5 - reach, 2.5 + reach), abs=1e-5)


def test_zeros_and_ones_have_wilsons_interval_unless_they_come_in_clusters() -> None:
    assert mean_interval([1, 1, 0, 1]) == share_interval([1, 1, 0, 1])
    assert mean_interval([1, 1, 1, 1]).low == pytest.approx(0.5101, abs=1e-4)
    assert mean_interval([1, 1, 0, 1], clusters="abcd") != share_interval([1, 1, 0, 1])


@given(ratings)
def test_clusters_of_one_value_give_the_interval_without_clusters(values: list[float]) -> None:
    values = [*values, 0.5]
    apart = mean_interval(values, clusters=range(len(values)))
    assert apart == mean_interval(values)
    assume(np.std(values) > 1e-6)
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert apart.high - apart.low == pytest.approx(2 * t_quantile(len(values) - 1) * error, abs=1e-9)


@given(ratings, st.integers(2, 4))
def test_copies_within_a_cluster_are_worth_one_value(values: list[float], copies: int) -> None:
    values = [*values, 0.5]
    assume(np.std(values) > 1e-6)
    copied = mean_interval(np.repeat(values, copies), clusters=np.repeat(np.arange(len(values)), copies).tolist())
    alone = mean_interval(values)
    assert (copied.mean, copied.low, copied.high) == pytest.approx((alone.mean, alone.low, alone.high), abs=1e-7)


def test_every_value_needs_its_cluster() -> None:
    with pytest.raises(ValueError, match="2 values, but the clusters of 3"):
        mean_interval([0.5, 1.0], clusters="abc")


def test_students_interval_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    hits = 0
    for sample in random.exponential(1.0, (2000, 60)):
        found = mean_interval(sample)
        hits += found.low <= 1.0 <= found.high
    assert 0.92 <= hits / 2000 <= 0.965


@pytest.mark.parametrize("sizes", [(6,) * 8, (1, 2, 3, 4, 5, 9, 12, 12)])
def test_the_interval_of_clusters_covers_the_truth_as_often_as_it_says(sizes) -> None:
    random = np.random.default_rng(0)
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    hits = naive = 0
    for _ in range(1000):
        values = random.normal(0, 1, len(sizes))[clusters] + random.normal(0, 0.5, len(clusters))
        found, alone = mean_interval(values, clusters.tolist()), mean_interval(values)
        hits += found.low <= 0.0 <= found.high
        naive += alone.low <= 0.0 <= alone.high
    assert 0.93 <= hits / 1000 <= 0.98
    assert naive / 1000 < 0.75


def test_clusters_of_unequal_size_by_hand() -> None:
    found = mean_interval([1.0, 3.0, 2.0, 6.0, 3.0], clusters="aabbc")
    # The mean is 3; residuals are -2, 0 | -1, 3 | 0, so that a sums to -2, b to 2 and c to 0.
    error = math.sqrt(4 / (1 - 2 / 5) + 4 / (1 - 2 / 5) + 0) / 5
    effective = 1 / ((2 / 5) ** 2 + (2 / 5) ** 2 + (1 / 5) ** 2)  # 2.78 clusters
    reach = 4.86147 * error  # Student's t at 0.975 for 1.78 degrees of freedom
    assert t_quantile(effective - 1) == pytest.approx(4.86147, abs=1e-4)
    assert (found.mean, found.low, found.high) == pytest.approx((3.0, 3.0 - reach, 3.0 + reach), abs=1e-4)


def test_clusters_of_equal_size_by_hand() -> None:
    found = mean_interval([0.0, 0.5, 1.0, 0.5, 0.5, 0.5], clusters=["x", "x", "y", "y", "z", "z"])
    # The mean is 0.5; residuals sum to -0.5, 0.5 and 0: sqrt(3 / 2 * 0.5) / 6, with two degrees of freedom.
    reach = 4.302653 * math.sqrt(0.75) / 6
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5 - reach, 0.5 + reach), abs=1e-5)


def test_dominant_cluster_gives_no_interval() -> None:
    found = mean_interval([*np.linspace(0, 1, 20), 0.5], clusters=[*("a" * 20), "b"])
    assert found == Interval(mean=0.5)


# share_interval


def test_zeros_and_ones_that_stand_for_themselves_have_wilsons_interval() -> None:
    for values in ([0.0, 0.0, 0.0], [0.0, 1.0, 1.0]):
        assert share_interval(values) == wilson_interval(sum(values) / 3, 3)
    assert share_interval([1.0]) == Interval(mean=1.0)
    assert share_interval([0.5]) == Interval(mean=0.5)


def test_a_share_of_few_clusters_by_hand() -> None:
    # Mean 1/4 and standard error 0.25 / sqrt(3), so as many values as (3 / 16) / (1 / 48) = 9, and t of 2 degrees.
    n, t, p = 9.0, 4.302653, 0.25
    centre = (p + t**2 / (2 * n)) / (1 + t**2 / n)
    reach = t * math.sqrt(p * (1 - p) / n + t**2 / (4 * n**2)) / (1 + t**2 / n)
    for found in (share_interval([0.0, 0.25, 0.5]), share_interval([0, 0, 0.25, 0.25, 0.5, 0.5], clusters="aabbcc")):
        assert (found.mean, found.low, found.high) == pytest.approx((p, centre - reach, centre + reach), abs=1e-6)


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=80), st.data())
def test_bounds_of_a_share_lie_within_0_and_1_around_it_and_mirror(values: list[float], data: st.DataObject) -> None:
    clusters = data.draw(st.lists(st.integers(0, 50), min_size=len(values), max_size=len(values)))
    found, other = share_interval(values, clusters), share_interval([1 - value for value in values], clusters)
    if found.low is None:
        assert other.low is None and found.high is None
        return
    assert 0.0 <= found.low <= found.mean + 1e-9 and found.mean - 1e-9 <= found.high <= 1.0
    mirrored = (1 - other.high, 1 - other.low)
    few = len(set(clusters)) < 30  # of many the draws are the same, and their quantiles not the very mirrored ones
    assert (found.low, found.high) == pytest.approx(mirrored, abs=1e-7 if few else 0.05)


def test_a_share_of_many_clusters_is_studentised_by_draws_of_clusters() -> None:
    random = np.random.default_rng(4)
    clusters = np.repeat(np.arange(40), random.integers(1, 6, 40))
    values = (random.random(len(clusters)) < random.beta(0.4, 3.6, 40)[clusters]).astype(float)
    names = sorted(set(clusters))
    rows = {name: values[clusters == name] for name in names}

    def mean_and_error(drawn: list[int]) -> tuple[float, float]:
        of = np.concatenate([rows[name] for name in drawn])
        off = [float((rows[name] - of.mean()).sum()) for name in drawn]
        return float(of.mean()), math.sqrt(len(drawn) / (len(drawn) - 1) * sum(one**2 for one in off)) / len(of)

    mean, _ = mean_and_error(names)
    ratios = []
    for _ in range(2000):
        drawn, error = mean_and_error([names[index] for index in random.integers(0, 40, 40)])
        ratios.append((drawn - mean) / error)
    own = mean_interval(values, clusters.tolist())
    sizes = np.bincount(clusters) / len(clusters)
    error = (own.high - own.low) / 2 / t_quantile(1 / float(sizes @ sizes) - 1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    found = share_interval(values, clusters.tolist())
    assert found.mean == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx((mean - high * error, mean - low * error), abs=0.012)
    assert found.high - mean > 1.2 * (mean - found.low)  # few successes: there may be more clusters that have many
    assert share_interval(values, clusters.tolist()) == found


def test_interval_of_a_rare_success_has_a_closed_form() -> None:
    # Over a third of the draws are without the only one. Its error is Student's, so that n is that of a sample.
    found, n, t = share_interval([1.0] + [0.0] * 39, clusters=range(40)), 39.0, t_quantile(39)
    for bound in (found.low, found.high):
        assert (found.mean - bound) ** 2 == pytest.approx(t**2 * bound * (1 - bound) / n)


def test_equal_means_of_clusters_count_one_problem_per_cluster() -> None:
    assert share_interval([0.0] * 6, clusters="aabbcc") == share_interval([0.0] * 3)
    assert share_interval([1.0] * 6, clusters="aabbcc") == share_interval([1.0] * 3)
    # Of two clusters that are alike, at least `alike` of all are so by Wilson's interval; the others are 0 or 1.
    alike = share_interval([1.0] * 2).low
    assert alike == pytest.approx(2 / (2 + 1.959964**2), abs=1e-6)
    found = share_interval([0.5, 0.25, 0.25, 0.5], clusters="aabb")
    assert (found.mean, found.low, found.high) == pytest.approx((0.375, 0.375 * alike, 1 - 0.625 * alike))
    assert share_interval([0.0] * 4, clusters="aaaa") == Interval(mean=0.0)


@pytest.mark.parametrize(("clusters", "problems", "share"), [(2, 4, 0.4), (2, 8, 0.3), (2, 16, 0.4), (3, 4, 0.5)])
def test_a_share_of_clusters_that_happen_to_be_alike_is_covered(clusters: int, problems: int, share: float) -> None:
    """Two data sets of four problems are solved equally often in a quarter of all cases."""
    random, hits = np.random.default_rng(0), 0
    names = np.repeat(np.arange(clusters), problems).tolist()
    for values in random.random((500, len(names))) < share:
        found = share_interval(values, names)
        assert found.low is not None and found.high is not None
        hits += found.low <= share <= found.high
    assert hits >= 0.93 * 500


def test_equal_values_that_have_no_range_have_no_bounds() -> None:
    assert mean_interval([10.0, 10.0, 10.0], clusters="abc") == Interval(mean=10.0)
    assert mean_interval([2.0, 4.0, 4.0, 2.0], clusters="aabb") == Interval(mean=3.0)


# paired_gain


def test_a_gain_over_many_problems_in_the_middle_is_students_of_the_differences() -> None:
    before, after = np.tile([0.0, 1.0, 0.0, 1.0], 500), np.tile([0.25, 1.0, 0.75, 0.5], 500)
    found, students = paired_gain(before, after), mean_interval(after - before, clusters=range(2000))
    assert (found.low, found.high) == pytest.approx((students.low, students.high), abs=1e-3)


def test_gain_near_1_of_30_problems_has_a_wide_interval() -> None:
    """Student's interval of one difference in 30 ends 3 points around it, and covers two thirds of the truths there."""
    found = paired_gain([0.0] + [1.0] * 29, [1.0] * 30)
    assert found.low is not None and found.high is not None
    assert found.low < -0.07 and found.high > 0.13


def test_a_gain_over_few_problems_by_hand() -> None:
    found = paired_gain([0, 0, 0, 0], [1, 0, 1, 0])
    # Before: none of 4, and no error: Wilson's upper bound is (z^2 / 4) / (1 + z^2 / 4) with z^2 = 3.841459.
    # After: half, with standard error sqrt(4 / 4 / (1 - 1 / 4)) / 4, which 3 values have; t^2 = 10.12796.
    before, after = 0.489900, 0.439168
    assert found.mean == 0.5
    assert found.low == pytest.approx(0.5 - math.hypot(before, after), abs=1e-5)
    assert found.high == pytest.approx(0.5 + after, abs=1e-5)


def test_gain_without_any_changed_problem_has_an_interval_of_positive_width() -> None:
    values = [0.0] * 8 + [1.0] * 8
    found = paired_gain(values, values)
    # The covariance of a table of 8, 0, 0, 8 less half a pair: (64 - 16 / 2) / 64.
    r, error = 0.875, math.sqrt(0.25 / 15)
    score = wilson_interval(0.5, 0.25 / error**2, t_quantile(15))
    assert score.high is not None
    half_width = (score.high - 0.5) * math.sqrt(2 - 2 * r)
    assert (found.low, found.high) == (pytest.approx(-half_width), pytest.approx(half_width))
    assert half_width > 1 / 16


@pytest.mark.parametrize(("problems", "gain"), [(16, 0.03), (30, 0.05), (100, 0.03), (256, 0.03)])
def test_interval_of_a_gain_covers_the_truth_if_few_problems_change(problems: int, gain: float) -> None:
    random, hits = np.random.default_rng(problems), 0
    for difficulty in random.random((400, problems)):
        found = paired_gain(difficulty < 0.5, difficulty < 0.5 + gain)  # the second solves all that the first solves
        assert found.low is not None and found.high is not None
        hits += found.low <= gain <= found.high
    assert hits >= 0.92 * 400  # without the correction for continuity 66, 79, 82 and 94 of 100


few = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=3, max_size=12)


@given(few, st.data())
def test_a_gain_over_few_problems_is_newcombes(before: list[float], data: st.DataObject) -> None:
    after = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=len(before), max_size=len(before)))
    found, n = paired_gain(before, after), len(before)
    assert found.low is not None and found.high is not None

    def bounds(values: list[float]) -> tuple[float, float, float]:
        p, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(n)
        if error == 0:
            score = share_interval([p] * n)
        else:
            seen = float(stats.kurtosis(values, fisher=False))
            tails = min(n, seen + seen * (seen - 1) / n) - 1  # with what a sample of a Gamma's squares lacks
            score = wilson_interval(p, p * (1 - p) / error**2, t_quantile(min(n - 1, 2 * n / max(tails, 1e-12))))
        assert score.low is not None and score.high is not None
        return p, p - score.low, score.high - p

    (then, then_below, then_above), (now, now_below, now_above) = bounds(before), bounds(after)
    r, step = 0.0, min(np.diff(np.unique([*before, *after])), default=0.0)
    if np.ptp(before) > 0 and np.ptp(after) > 0:
        together = np.cov(before, after)[0, 1]
        left = max(0.0, together - step**2 / (2 * (n - 1))) if together > 0 else together
        r = float(left / (np.std(before, ddof=1) * np.std(after, ddof=1)))
    below = now_below**2 - 2 * r * now_below * then_above + then_above**2
    above = now_above**2 - 2 * r * now_above * then_below + then_below**2
    assert found.low == pytest.approx(now - then - math.sqrt(max(0.0, below)), abs=1e-6)
    assert found.high == pytest.approx(now - then + math.sqrt(max(0.0, above)), abs=1e-6)
    assert -1.0 - 1e-9 <= found.low <= found.mean <= found.high <= 1.0 + 1e-9
    turned = paired_gain(after, before)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low), abs=1e-9)


def test_one_cluster_that_makes_the_error_leaves_two_degrees_of_freedom() -> None:
    # Residuals of the first of ten clusters of one problem: 0.9, of the others -0.1. Their kurtosis is
    # 10 (0.9^4 + 9 / 10^4) / (0.81 + 9 / 100)^2 = 8.111, with what a sample lacks 13.88, and so at most 10.
    values = [1.0] + [0.0] * 9
    found = paired_gain([0.0] * 10, values)
    p, error, freedom = 0.1, math.sqrt(0.9 / 9 / 10), 2 * 10 / (10 - 1)
    score = wilson_interval(p, p * (1 - p) / error**2, t_quantile(freedom))
    zeros = share_interval([0.0] * 10)
    assert score.low is not None and score.high is not None and zeros.high is not None
    assert found.high == pytest.approx(0.1 + (score.high - 0.1))
    assert found.low == pytest.approx(0.1 - math.hypot(0.1 - score.low, zeros.high))


def test_two_clusters_tell_no_correlation() -> None:
    found = paired_gain([0.0, 0.5, 0.25, 0.0], [1.0, 1.0, 0.25, 0.5], clusters="aabb")
    before = share_interval([0.0, 0.5, 0.25, 0.0], clusters="aabb")
    after = share_interval([1.0, 1.0, 0.25, 0.5], clusters="aabb")
    assert before.low is not None and before.high is not None and after.low is not None and after.high is not None
    assert found.low == pytest.approx(0.5 - math.hypot(after.mean - after.low, before.high - before.mean))
    assert found.high == pytest.approx(0.5 + math.hypot(after.high - after.mean, before.mean - before.low))


def test_a_gain_of_other_problems_is_refused() -> None:
    with pytest.raises(ValueError, match="2 problems before, 3 after"):
        paired_gain([0, 1], [0, 1, 1])


# pass_at_k


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_right_sample(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(float(Fraction(sum(map(any, draws)), len(draws))))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 2), (4, -1, 2)])
def test_pass_at_k_out_of_range_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} cannot be told"):
        pass_at_k(n, c, k)


# majority_at_k


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=8), st.data())
def test_majority_at_k_is_the_share_of_draws_whose_most_frequent_answer_is_right(answers, data) -> None:
    k = data.draw(st.integers(1, len(answers)))
    chances = []
    for draw in combinations(answers, k):
        votes = [answer for answer in draw if answer is not None]
        most = max((votes.count(answer) for answer in votes), default=0)
        winners = {answer for answer in votes if votes.count(answer) == most}
        chances.append(Fraction(int("a" in winners), max(1, len(winners))))
    found = majority_at_k(answers, [float(answer == "a") for answer in answers], k)
    assert found == pytest.approx(float(sum(chances) / len(chances)))


def test_majority_by_hand() -> None:
    assert majority_at_k(["4", "4", "5"], [1.0, 1.0, 0.0], 3) == 1.0
    assert majority_at_k(["4", "4", "5"], [1.0, 1.0, 0.0], 2) == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert majority_at_k([None, "4"], [0.0, 1.0], 2) == 1.0 and majority_at_k([None], [0.0], 1) == 0.0
    with pytest.raises(ValueError, match="majority@3 cannot be told"):
        majority_at_k(["4"], [1.0], 3)
