"""Statistics of held-out results: means with 95 % intervals, paired gains, pass@k and majority@k.

Bounds are None if there are too few values for them; no values at all are an error. The coverage of the intervals is
simulated by `docs/evidence/interval_coverage.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from mappa_core.records import Float64, Int64, Interval

CONFIDENCE_LEVEL = 0.95
"""Level of all intervals."""
Z = NormalDist().inv_cdf((1 + CONFIDENCE_LEVEL) / 2)
TINY = 1e-9
"""Smaller values are rounding errors."""
BOOTSTRAP_CLUSTERS = range(30, 3001)
"""Numbers of clusters for which the interval of a share is bootstrapped; of more, the mean is practically normal."""
BOOTSTRAP_DRAWS = 1000


def share_interval(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Interval:
    """Return the mean of shares (n,), each from 0 to 1 and of one problem, and its interval. `clusters` are as in
    `mean_interval`; None: every problem is its own cluster.

    For independent values of 0 and 1 it is Wilson's interval (Wilson 1927). Otherwise Student's, as in `mean_interval`,
    would be too short towards 0.5 if the mean is near 0 or 1. So:

    - fewer than 30 clusters: Wilson's interval for as many values as would have this cluster-robust standard error,
      `n = p (1 - p) / se^2`, with Student's t in place of the normal quantile (Dean and Pagano 2015);
    - 30 and more: the bootstrap-t over clusters (Efron and Tibshirani 1993, 12.5), clipped to 0 and 1: `mean - q se`
      for the quantiles q of `(mean* - mean) / se*` over draws of clusters. If a quantile falls among draws without any
      variation, too few clusters differ from the others, and it is Wilson's as above.

    If all clusters have one mean, as where all values are 0, it allows for others, which are as rare as in Wilson's
    interval for as many problems as there are effective clusters, and which may be 0 or 1.
    """
    shares = _finite_values(values)
    cluster_ids = number_clusters(range(len(shares)) if clusters is None else clusters, len(shares))
    mean = float(shares.mean())
    # The effective number is a rounded quotient: two equal clusters may come out as a little less than 2.
    if effective_clusters(cluster_ids) < 2 - TINY:
        return Interval(mean=mean)
    if clusters is None and _binary(shares):
        return wilson_interval(mean, len(shares))
    error = cluster_robust_error(shares, cluster_ids)
    if error >= TINY and int(cluster_ids.max()) + 1 in BOOTSTRAP_CLUSTERS:
        low, high = _bootstrap_t_quantiles(shares, cluster_ids, error)
        if math.isfinite(low) and math.isfinite(high):
            # Crosswise: draws far above their mean say that the truth may be as far below the sample's.
            return Interval(mean=mean, low=max(0.0, mean - high * error), high=min(1.0, mean - low * error))
    low, high = _few_cluster_bounds(shares, cluster_ids)
    return Interval(mean=mean, low=low, high=high)


def mean_interval(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Interval:
    """Return the mean of `values` (n,) and its interval: Wilson's if every value is 0 or 1, else Student's. Where all
    clusters have one mean, nothing tells how far off it may be, and the bounds are None.

    `clusters` groups values that are not independent of each other: by problem if problems have several values, by data
    set if several problems come from one. The mean is that of the values. Its standard error is cluster-robust with the
    small-sample correction of Bell and McCaffrey (2002; CR2): `sqrt(sum_g r_g^2 / (1 - n_g / n)) / n`, where r_g is the
    sum of residuals of cluster g and n_g its size. The degrees of freedom are one less than the effective number of
    clusters, `1 / sum_g (n_g / n)^2` (Carter, Schnepel and Steigerwald 2017): if one holds most of the values, the
    others add little. With fewer than two the bounds are undefined. For G clusters of equal size that is the usual
    `G / (G - 1)` with G - 1 degrees of freedom, and for clusters of one value the ordinary standard error of a mean.
    """
    known = _finite_values(values)
    cluster_ids = number_clusters(range(len(known)) if clusters is None else clusters, len(known))
    mean, degrees_of_freedom = float(known.mean()), effective_clusters(cluster_ids) - 1
    if degrees_of_freedom < 1 - TINY:  # A rounded quotient, as in `share_interval`.
        return Interval(mean=mean)
    if clusters is None and _binary(known):
        return wilson_interval(mean, len(known))
    error = cluster_robust_error(known, cluster_ids)
    if error < TINY:
        return Interval(mean=mean)
    half_width = t_quantile(degrees_of_freedom) * error
    return Interval(mean=mean, low=mean - half_width, high=mean + half_width)


def paired_gain(before: ArrayLike, after: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Interval:
    """Return the mean of `after - before` (n,) over problems, both shares from 0 to 1 in the same order of problems,
    with the interval of `gain_half_widths`. `clusters` are as in `mean_interval`. Raises ValueError if the two have
    different numbers of problems."""
    then, now = _finite_values(before), _finite_values(after)
    if len(then) != len(now):
        raise ValueError(f"a gain is paired: {len(then)} problems before, {len(now)} after")
    cluster_ids = number_clusters(range(len(now)) if clusters is None else clusters, len(now))
    mean = float((now - then).mean())
    if effective_clusters(cluster_ids) < 2 - TINY:
        return Interval(mean=mean)
    below, above = gain_half_widths(then, now, cluster_ids)
    return Interval(mean=mean, low=mean - below, high=mean + above)


def gain_half_widths(
    before: Float64, after: Float64, cluster_ids: Int64, alpha: float = 1 - CONFIDENCE_LEVEL
) -> tuple[float, float]:
    """Return the distances (below, above) of the bounds from the mean of `after - before` (n,), at level `1 - alpha`.
    Differences between problems do not widen the interval. `cluster_ids` (n,) are from `number_clusters`.

    The distance below is `sqrt(x^2 - 2 r x y + y^2)`, with x the lower distance of the interval of `after` and y the
    upper distance of that of `before`; above vice versa (Newcombe 1998, method 10; Zou and Donner 2008). The two
    intervals are Wilson's, as in `share_interval` for few clusters. r is the cluster-robust correlation of the two
    means, 0 for two clusters, which cannot estimate it; Student's t has the degrees of freedom of `_error_freedom`. A
    positive r is corrected for continuity: half a pair that differs is taken from the covariance, as in method 10, for
    if no problem changes, r would be 1 and leave no doubt. Student's interval of the differences is as wide in the
    middle, and far too short near 0 and 1.
    """
    then_low, then_high = _few_cluster_bounds(before, cluster_ids, alpha, _error_freedom(before, cluster_ids))
    now_low, now_high = _few_cluster_bounds(after, cluster_ids, alpha, _error_freedom(after, cluster_ids))
    then, now = float(before.mean()), float(after.mean())
    r = _mean_correlation(before, after, cluster_ids)

    def combine(x: float, y: float) -> float:
        # With r near 1 and equal distances the sum is near 0, and rounding may make it negative.
        return math.sqrt(max(0.0, x**2 - 2 * r * x * y + y**2))

    return combine(now - now_low, then_high - then), combine(now_high - now, then - then_low)


def _mean_correlation(before: Float64, after: Float64, cluster_ids: Int64) -> float:
    """Return the cluster-robust correlation of the two means, corrected for continuity as in `gain_half_widths`."""
    count = int(cluster_ids.max()) + 1
    before_error, after_error = cluster_robust_error(before, cluster_ids), cluster_robust_error(after, cluster_ids)
    if count <= 2 or min(before_error, after_error) < TINY:
        return 0.0
    # Twice the covariance, from var(after - before) = var(before) + var(after) - 2 cov: so it is as robust as they are.
    difference_error = cluster_robust_error(after - before, cluster_ids)
    twice_covariance = before_error**2 + after_error**2 - difference_error**2
    if twice_covariance > 0:
        resolution = _mean_resolution(before, after, cluster_ids)
        # Half a pair that differs from the covariance, so a whole one from twice of it. It must not turn the sign.
        twice_covariance = max(0.0, twice_covariance - resolution**2 * count / (count - 1))
    correlation = twice_covariance / (2 * before_error * after_error)
    # The three errors are estimates, so their quotient may lie beyond 1.
    return min(1.0, max(-1.0, correlation))


def _mean_resolution(before: Float64, after: Float64, cluster_ids: Int64) -> float:
    """Return the least change of the mean: that of one cluster whose sum of values becomes the next one there is."""
    sums = np.concatenate([np.bincount(cluster_ids, before), np.bincount(cluster_ids, after)])
    gaps = np.diff(np.unique(sums))
    return float(min(gaps[gaps > TINY], default=1.0)) / len(before)


def difference_bounds(differences: Float64, cluster_ids: Int64, alpha: float) -> tuple[float, float]:
    """Return the bounds of the mean of differences (n,) of paired shares, each from -1 to 1, at level `1 - alpha`.

    They are Wilson's for the share `(1 + difference) / 2`, as in `share_interval` for few clusters, with the degrees of
    freedom of `_error_freedom`. `gain_half_widths` puts them together from the interval of either side. Where one side
    is nearly always right, a few problems make its error, and at a small `alpha` that says next to nothing, even if all
    differences have one sign.
    """
    freedom = _error_freedom(differences, cluster_ids)
    low, high = _few_cluster_bounds((1 + differences) / 2, cluster_ids, alpha, freedom)
    return 2 * low - 1, 2 * high - 1


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that at least one of k samples is right, given that c of n were: `1 - C(n-c, k) / C(n, k)`, the
    unbiased estimator of Chen et al. 2021. Raises ValueError if k is not between 1 and n, or c not between 0 and n."""
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@{k} cannot be told from {c} right of {n} samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority_at_k(answers: Sequence[str | None], values: Sequence[float], k: int) -> float:
    """Return the chance that the most frequent answer of k samples is right, over all draws of k of the n samples; ties
    are broken at random (Wang et al. 2023). `values` (n,) are the samples' grades, 0 to 1, averaged per answer. A
    sample without an answer (None) has no vote; k samples without any are wrong. Raises ValueError if k is not between
    1 and n, or there are not as many answers as values."""
    n = len(values)
    if len(answers) != n or not 1 <= k <= n:
        raise ValueError(f"majority@{k} cannot be told from {len(answers)} answers and {n} grades")
    votes: dict[str, list[float]] = {}
    for answer, value in zip(answers, values, strict=True):
        if answer is not None:
            votes.setdefault(answer, []).append(value)
    unanswered = n - sum(map(len, votes.values()))
    # Draws in which each answer wins, by the number of its votes, times the chance that it is right.
    right = 0.0
    for answer, grades in votes.items():
        other_counts = [len(other_grades) for name, other_grades in votes.items() if name != answer]
        for winner_votes in range(1, min(len(grades), k) + 1):
            ways = _tie_counts(other_counts, unanswered, k - winner_votes, winner_votes)
            wins = sum(number / (ties + 1) for ties, number in ways.items())
            right += sum(grades) / len(grades) * math.comb(len(grades), winner_votes) * wins
    return right / math.comb(n, k)


def _tie_counts(counts: Sequence[int], unanswered: int, size: int, winner_votes: int) -> dict[int, int]:
    """Count the ways to draw `size` samples from answers with these `counts` and from `unanswered` samples, no answer
    more often than `winner_votes`, by the number of answers drawn exactly as often (ties)."""
    # By samples drawn and ties so far, answer by answer: all draws at once would be too many to list.
    ways: Counter[tuple[int, int]] = Counter({(0, 0): 1})
    for count in counts:
        extended: Counter[tuple[int, int]] = Counter()
        for (drawn, ties), number in ways.items():
            for votes in range(min(count, winner_votes, size - drawn) + 1):
                is_tie = votes == winner_votes
                extended[drawn + votes, ties + is_tie] += number * math.comb(count, votes)
        ways = extended
    by_ties: Counter[int] = Counter()
    for (drawn, ties), number in ways.items():
        by_ties[ties] += number * math.comb(unanswered, size - drawn)
    return by_ties


def t_quantile(degrees_of_freedom: float, alpha: float = 1 - CONFIDENCE_LEVEL) -> float:
    """Return the two-sided critical value of Student's t at significance level `alpha`."""
    from scipy.special import stdtrit  # Here, as its import is slow, and most commands compute no interval.

    return -float(stdtrit(degrees_of_freedom, alpha / 2))


def cluster_draws(count: int, block: int = BOOTSTRAP_DRAWS) -> Iterator[Float64]:
    """Draw the BOOTSTRAP_DRAWS samples of `count` clusters, the same every time; yield how often each cluster occurs,
    (draws, count), in blocks of at most `block` draws."""
    random = np.random.default_rng(0)  # Fixed, so that equal values give equal intervals.
    for done in range(0, BOOTSTRAP_DRAWS, block):
        draws = min(block, BOOTSTRAP_DRAWS - done)
        drawn = random.integers(count, size=(draws, count)) + count * np.arange(draws)[:, None]
        yield np.bincount(drawn.ravel(), minlength=draws * count).reshape(draws, count).astype(np.float64)


@lru_cache(maxsize=4)
def _all_draws(count: int) -> Float64:
    """Return the draws of every interval over `count` clusters, (BOOTSTRAP_DRAWS, count); must not be modified."""
    return next(cluster_draws(count))


def _bootstrap_t_quantiles(values: Float64, cluster_ids: Int64, error: float) -> tuple[float, float]:
    """Return the quantiles of `(mean* - mean) / se*` over draws of clusters that enclose CONFIDENCE_LEVEL; infinite if
    a quantile falls among draws without variation."""
    count = int(cluster_ids.max()) + 1
    drawn = _all_draws(count)
    sums, sizes = np.bincount(cluster_ids, values), np.bincount(cluster_ids).astype(np.float64)
    n = drawn @ sizes
    means = drawn @ sums / n
    # Sum over drawn clusters g of (sum_g - mean* size_g)^2, multiplied out: a draw is then three products of matrices,
    # without an array of all residuals. Rounding may make it negative.
    squares = drawn @ sums**2 - 2 * means * (drawn @ (sums * sizes)) + means**2 * (drawn @ sizes**2)
    errors = np.sqrt(np.maximum(squares, 0.0) * count / (count - 1)) / n
    deviations = means - values.mean()
    # Rounding errors are relative to the standard error of the sample; a draw without variation bounds nothing.
    unbounded = np.where(deviations < 0, -math.inf, math.inf)
    t = np.divide(deviations, errors, out=unbounded, where=errors > TINY * error)
    low, high = np.quantile(t, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2], method="inverted_cdf")
    return float(low), float(high)


def wilson_interval(p: float, n: float, z: float = Z) -> Interval:
    """Return Wilson's interval of a share `p` of `n` (any number above 0) values, with the normal quantile `z`."""
    low, high = _wilson_bounds(p, n, z)
    return Interval(mean=p, low=low, high=high)


def _wilson_bounds(p: float, n: float, z: float) -> tuple[float, float]:
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half_width = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    # At a share of 0 or 1 a bound equals it; rounding may put it on the wrong side by the last bit.
    return min(p, max(0.0, centre - half_width)), max(p, min(1.0, centre + half_width))


def _few_cluster_bounds(
    shares: Float64, cluster_ids: Int64, alpha: float = 1 - CONFIDENCE_LEVEL, freedom: float | None = None
) -> tuple[float, float]:
    """Return the bounds of a mean of shares (n,) in few clusters, as in `share_interval`, at level `1 - alpha`.
    `freedom`: degrees of freedom of Student's t; None: the effective number of clusters less one."""
    mean, effective = float(shares.mean()), effective_clusters(cluster_ids)
    error = cluster_robust_error(shares, cluster_ids)
    if error >= TINY:
        equivalent_count = mean * (1 - mean) / error**2
        return _wilson_bounds(mean, equivalent_count, t_quantile(freedom or effective - 1, alpha))
    # Of so many clusters that are all alike, a share of at least `alike` is so among all there are; the others may be
    # at either end, 0 or 1.
    alike, _ = _wilson_bounds(1.0, effective, _normal_quantile(alpha))
    return mean * alike, 1 - (1 - mean) * alike


def _normal_quantile(alpha: float) -> float:
    """Return the two-sided critical value of the normal distribution at significance level `alpha`."""
    # By symmetry: `1 - alpha / 2` would lose the digits of a small alpha.
    return -NormalDist().inv_cdf(alpha / 2)


def _error_freedom(values: Float64, cluster_ids: Int64) -> float:
    """Return the degrees of freedom of the cluster-robust error: the effective number of clusters less one, and at most
    `2 G / (k - 1)` for G clusters whose sums of residuals have the kurtosis k (Satterthwaite 1946). Near 0 and 1 a few
    clusters make most of the error. The kurtosis of a sample is too small, by `k (k - 1) / G` to first order if the
    squares have a Gamma distribution (of any shape); that is added, up to the largest possible one, G."""
    equal = effective_clusters(cluster_ids) - 1
    squares = np.bincount(cluster_ids, values - values.mean()) ** 2
    total = float(squares.sum())
    if total < TINY:
        return equal
    count = len(squares)
    sample_kurtosis = count * float(squares @ squares) / total**2
    kurtosis = min(count, sample_kurtosis * (1 + (sample_kurtosis - 1) / count))
    # A kurtosis of 1 is that of equal squares: each cluster says as much about the error.
    return min(equal, 2 * count / (kurtosis - 1)) if kurtosis > 1 + TINY else equal


def number_clusters(clusters: Sequence[Hashable], n: int) -> Int64:
    """Return the cluster of every value as an index from 0, (n,)."""
    if len(clusters) != n:
        raise ValueError(f"{n} values, but the clusters of {len(clusters)}: each value has one")
    cluster_ids: dict[Hashable, int] = {}
    return np.array([cluster_ids.setdefault(key, len(cluster_ids)) for key in clusters], dtype=np.int64)


def effective_clusters(cluster_ids: Int64) -> float:
    """Return the effective number of clusters: the equivalent number of clusters of equal size."""
    share = np.bincount(cluster_ids) / len(cluster_ids)
    return 1 / float(share @ share)


def cluster_robust_error(values: Float64, cluster_ids: Int64) -> float:
    """Return the cluster-robust standard error (CR2) of the mean of values (n,) in more than one cluster."""
    sums = np.bincount(cluster_ids, values - values.mean())
    # Residuals are too small by what a cluster itself adds to the mean, the more the larger it is.
    left = 1 - np.bincount(cluster_ids) / len(values)
    return math.sqrt(float((sums**2 / left).sum())) / len(values)


def _finite_values(values: ArrayLike) -> Float64:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(
            f"statistics are of one or more finite values in a row, not of an array of shape {array.shape}; leave "
            "missing ones out"
        )
    missing = np.flatnonzero(~np.isfinite(array))
    if len(missing):
        raise ValueError(
            f"statistics are of finite values, and value {missing[0]} of {len(array)} is {array[missing[0]]}; leave "
            "missing ones out"
        )
    return array


def _binary(values: Float64) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())
