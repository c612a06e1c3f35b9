"""Means and differences over seeds and problems: by hand, against scipy, and by what must not matter."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mappa.look.across_seeds import cohens_h, difference_interval, difference_over_seeds, holm, mean_over_seeds
from mappa.look.compare import sequential_level
from mappa.statistics import Interval, paired_gain, share_interval

shares = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


def grids(seeds, problems):
    return st.lists(
        st.lists(shares, min_size=problems, max_size=problems), min_size=seeds, max_size=seeds
    ).map(np.array)  # fmt: skip


# --- one seed ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(grids(1, 12), grids(1, 12), st.lists(st.integers(0, 4), min_size=12, max_size=12))
def test_interval_of_one_seed_is_that_of_the_run(one, other, clusters):
    assert mean_over_seeds(one, clusters) == share_interval(one[0], clusters)
    found = difference_over_seeds(one, other, clusters)
    assert found.interval == paired_gain(other[0], one[0], clusters)
    assert not found.over_seeds


def test_over_many_clusters_in_the_middle_the_test_of_one_seed_is_students_paired_one():
    random = np.random.default_rng(0)
    one, other = ((random.random((1, 4000)) < share).astype(float) for share in (0.52, 0.5))
    expected = stats.ttest_rel(one[0], other[0]).pvalue
    assert 0.001 < expected < 0.5
    assert difference_over_seeds(one, other).p == pytest.approx(expected, rel=0.01)


@settings(max_examples=100)
@given(st.sampled_from([10, 30]).flatmap(lambda n: st.tuples(grids(1, n), grids(1, n))))
def test_the_test_agrees_with_the_interval(arms):
    one, other = arms
    found = difference_over_seeds(one, other)
    assert 0.0 < found.p <= 1.0
    assert (found.p < 0.05) == (found.interval.low > 0 or found.interval.high < 0)


def test_too_few_clusters_are_no_test():
    found = difference_over_seeds(np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]]), "aa")
    assert (found.interval, found.p) == (Interval(mean=0.5), None)
    with pytest.raises(ValueError, match="2 problems against 3"):
        difference_over_seeds(np.zeros((1, 2)), np.zeros((1, 3)))


# --- several seeds ----------------------------------------------------------------------------------------------------


def by_hand(one, other):
    """The mean of a difference, and the variance of seeds with its degrees of freedom, problems standing for
    themselves: straight from the formula."""
    (s, n), (u, _) = one.shape, other.shape
    gains = one.mean(axis=0) - other.mean(axis=0)
    seeds = [arm.mean(axis=1).var(ddof=1) / len(arm) for arm in (one, other)]
    chance = []
    for arm in (one, other):
        left = [[arm[i, j] - arm[i].mean() - arm[:, j].mean() + arm.mean() for j in range(n)] for i in range(len(arm))]
        mean_square = sum(x * x for row in left for x in row) / ((len(arm) - 1) * (n - 1))
        chance.append(mean_square / (len(arm) * n))
    unsure = seeds[0] ** 2 / (s - 1) + seeds[1] ** 2 / (u - 1)
    by_seeds = sum(max(0.0, v - r) for v, r in zip(seeds, chance, strict=True))
    return gains.mean(), by_seeds, min(sum(seeds) ** 2 / unsure, 2 * (min(s, u) - 1))


def test_a_difference_over_seeds_by_hand(gain_half_widths):
    random = np.random.default_rng(2)
    one = (random.random((3, 40)) < np.array([[0.4], [0.9], [0.7]])).astype(float)
    other = (random.random((4, 40)) < np.array([[0.2], [0.4], [0.3], [0.5]])).astype(float)
    mean, variance, freedom = by_hand(one, other)
    found = difference_over_seeds(one, other)

    def reach_beyond(chance):
        by_problems = gain_half_widths(other.mean(axis=0), one.mean(axis=0), np.arange(40), chance)
        by_seeds = stats.t.isf(chance / 2, freedom) * math.sqrt(variance)
        return [math.hypot(side, by_seeds) for side in by_problems]

    below, above = reach_beyond(0.05)
    assert found.over_seeds
    assert (found.interval.mean, found.interval.low, found.interval.high) == pytest.approx(
        (mean, mean - below, mean + above)
    )
    assert variance > 0.0
    assert reach_beyond(found.p)[0] == pytest.approx(mean)
    alone = difference_over_seeds(one[:1], other[:1])
    assert found.interval.high - found.interval.low != alone.interval.high - alone.interval.low


@pytest.mark.parametrize("seeds", [(2, 5), (2, 8), (3, 8)])
def test_arms_of_unequal_numbers_of_seeds_are_told_apart_no_more_often_than_the_level_says(seeds):
    random, found = np.random.default_rng(0), 0
    for _ in range(500):
        difficulty = random.normal(0, 1, 64)
        arms = [
            (random.random((count, 64)) < 1 / (1 + np.exp(-difficulty - random.normal(0, 0.5, (count, 1))))).astype(
                float
            )
            for count in seeds
        ]
        interval = difference_interval(*arms)
        found += not interval.low <= 0 <= interval.high
    assert found / 500 <= 0.07


def test_identical_seeds_do_not_narrow_the_interval():
    one, other = np.tile([1.0, 0.0, 1.0, 1.0, 0.0], (3, 1)), np.tile([0.0, 0.0, 1.0, 0.0, 0.0], (2, 1))
    found = difference_over_seeds(one, other)
    alone = paired_gain(other[0], one[0])
    assert (found.interval.low, found.interval.high) == pytest.approx((alone.low, alone.high))


def test_differing_seeds_widen_the_interval_for_any_number_of_problems():
    n = 2000
    random = np.random.default_rng(0)
    levels = np.array([0.3, 0.5, 0.7])
    arm = (random.random((3, n)) < levels[:, None]).astype(float)
    still = np.tile((random.random(n) < 0.5).astype(float), (3, 1))
    found = difference_over_seeds(arm, still)
    alone = stats.ttest_1samp(arm.mean(axis=1), 0.5).confidence_interval()
    width, seeds_alone = found.interval.high - found.interval.low, alone.high - alone.low
    assert 0.8 * seeds_alone < width < 1.2 * seeds_alone
    whole = mean_over_seeds(arm)
    assert whole.high - whole.low > 5 * (share_interval(arm[0]).high - share_interval(arm[0]).low)


@settings(max_examples=30)
@given(grids(3, 8), grids(2, 8), st.lists(st.integers(0, 5), min_size=8, max_size=8))
def test_difference_is_antisymmetric_and_independent_of_order(one, other, clusters):
    found, turned = difference_over_seeds(one, other, clusters), difference_over_seeds(other, one, clusters)
    assert found.interval.mean == pytest.approx(-turned.interval.mean)
    if found.p is None:
        assert turned.p is None and found.interval.low is None
        return
    assert found.p == pytest.approx(turned.p, abs=1e-7)
    assert (found.interval.low, found.interval.high) == pytest.approx((-turned.interval.high, -turned.interval.low))
    order = [5, 2, 7, 0, 1, 4, 6, 3]
    moved = difference_over_seeds(one[[2, 0, 1]][:, order], other[::-1][:, order], [clusters[i] for i in order])
    assert moved.p == pytest.approx(found.p, abs=1e-7)
    arm = mean_over_seeds(one, clusters)
    assert 0.0 <= arm.low <= arm.mean + 1e-9 and arm.mean - 1e-9 <= arm.high <= 1.0


def test_a_mean_over_seeds_that_are_all_alike():
    ones = np.ones((3, 6))
    assert mean_over_seeds(ones) == share_interval(ones[0])
    halves = np.full((2, 4), 0.5)
    assert mean_over_seeds(halves) == share_interval([0.5] * 4)
    assert mean_over_seeds(np.array([[1.0, 0.0], [0.0, 1.0]])) == share_interval([0.5] * 2)
    assert mean_over_seeds(halves, "aaaa") == Interval(mean=0.5)


# --- many tests, and effects ------------------------------------------------------------------------------------------


def test_holm_by_hand():
    # Ascending 0.01, 0.02, 0.03, 0.4 times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.4.
    assert holm([0.02, 0.4, 0.01, 0.03]) == pytest.approx([0.06, 0.4, 0.04, 0.06])
    assert holm([]) == [] and holm([0.2]) == [0.2]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_adjustment_equals_its_stepwise_definition(chances):
    adjusted = holm(chances)
    order = np.argsort(chances, kind="stable")
    rejected = set()
    for rank, index in enumerate(order):
        if chances[index] * (len(chances) - rank) > 0.05:
            break
        rejected.add(int(index))
    assert {index for index, p in enumerate(adjusted) if p <= 0.05} == rejected
    assert all(own <= p <= 1 for own, p in zip(chances, adjusted, strict=True))


def test_effect_sizes_count_more_near_the_ends():
    assert cohens_h(0.5, 0.5) == 0.0
    assert cohens_h(1.0, 0.0) == pytest.approx(math.pi)
    assert cohens_h(0.65, 0.45) == pytest.approx(0.40486, abs=1e-5)
    assert cohens_h(0.95, 0.85) > cohens_h(0.55, 0.45)


def test_a_comparison_that_grows_spends_its_level_once():
    """All looks at 2 arms of 8 seeds, one after every run, have 3 % together; before three seeds of each nothing is
    found."""
    looks = [sequential_level(done, 16, done // 2) for done in range(1, 17)]
    assert looks[:5] == [0.0] * 5
    assert looks[5:] == [0.005 / 16] * 10 + [0.025]
    assert sum(looks) <= 0.03


@pytest.mark.soak
@pytest.mark.parametrize("spread", [0.3, 0.5])
def test_looks_after_every_seed_find_nothing_in_equal_settings(spread):
    """Over 8 seeds and 64 problems; by 0.05 at every look about a fifth of such comparisons find something."""
    found = 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        difficulty = random.normal(0, 1, 64)
        chances = [1 / (1 + np.exp(-difficulty - random.normal(0, spread, (8, 1)))) for _ in range(2)]
        arms = [(random.random((8, 64)) < one).astype(float) for one in chances]
        for seeds in range(3, 9):
            test = difference_over_seeds(arms[0][:seeds], arms[1][:seeds])
            if test.p < sequential_level(2 * seeds, 16, seeds):
                found += 1
                break
    assert found / 300 < 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)
