"""What held-out values say: means with 95 % intervals, paired gains, what several samples of a problem come to.

Bounds that too few values leave undefined are None; of no values at all nothing is said, which is an error. How often
the intervals cover the truth is simulated by `docs/evidence/interval_coverage.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from mappa_core.records import Float64, Int64
from mappa_core.store.summary import Interval

__all__ = [
    "Interval",
    "majority_at_k",
    "mean_interval",
    "paired_gain",
    "pass_at_k",
    "proportion",
    "share_interval",
    "t_quantile",
]

LEVEL = 0.95
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
TINY = 1e-9
"""What is smaller is rounding."""
MANY = range(30, 3001)
"""Numbers of clusters from which on, and up to which, a share's interval is bootstrapped: with fewer there is not
enough to draw from, with more the mean is as good as normal."""
DRAWS = 1000
SEED = 0
"""Of the draws, so that the same values give the same interval."""


def proportion(values: ArrayLike) -> Interval:
    """The share of ones among values of 0 and 1, one per problem, with Wilson's score interval (Wilson 1927).

    It lies within 0 and 1 and has a width even where all values are equal.

    Raises:
        ValueError: a value is neither 0 nor 1.
    """
    shares = _known(values)
    if not _binary(shares):
        raise ValueError("a proportion is of values that are 0 or 1; use mean_interval for others")
    mean = float(shares.mean())
    return wilson(mean, len(shares)) if len(shares) > 1 else Interval(mean=mean)


def share_interval(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Interval:
    """The mean of shares (n,), each from 0 to 1 and of one problem, and its interval. `clusters` are as in
    `mean_interval`; None: every problem stands for itself.

    Where values are all 0 or 1 and stand for themselves it is Wilson's. Otherwise Student's interval, which
    `mean_interval` has, would be too short on the side of 0.5 where the mean is near 0 or 1. So:

    - fewer than 30 clusters: Wilson's, of as many values as would have this cluster-robust standard error,
      `n = p (1 - p) / se^2`, and with Student's t in place of the normal's quantile (Dean and Pagano 2015);
    - 30 and more: the bootstrap-t over clusters (Efron and Tibshirani 1993, 12.5), cut at 0 and 1: `mean - q se` for
      the quantiles q of `(mean* - mean) / se*` over draws of clusters. Where more draws than lie beyond a quantile have
      no variation at all, too few clusters differ from the others, and it is Wilson's as above.

    Where all values are 0, or all are 1, there is no variation to tell an error from. It is then Wilson's of as many
    problems as there are effective clusters.
    """
    shares = _known(values)
    if clusters is None and _binary(shares):
        return proportion(shares)
    numbers = numbered(range(len(shares)) if clusters is None else clusters, len(shares))
    mean, effective = float(shares.mean()), effective_clusters(numbers)
    if effective < 2 - TINY:
        return Interval(mean=mean)
    error = robust_error(shares, numbers)
    if error >= TINY and int(numbers.max()) + 1 in MANY:
        low, high = _studentised(shares, numbers, error)
        if math.isfinite(low) and math.isfinite(high):
            return Interval(mean=mean, low=max(0.0, mean - high * error), high=min(1.0, mean - low * error))
    low, high = _bounds(shares, numbers)
    return Interval(mean=mean, low=low, high=high)


def mean_interval(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Interval:
    """The mean of `values` (n,) and its interval: Wilson's where every value is 0 or 1, else Student's.

    `clusters` names what the values that are not independent of each other have in common: the problem of every value
    where problems have several, the data set of every problem where several are cut from one. The mean stays that of
    the values. Its standard error is the cluster-robust one with the small-sample correction of Bell and McCaffrey
    (2002; CR2): `sqrt(sum_g r_g^2 / (1 - n_g / n)) / n`, where r_g is the sum of residuals of cluster g and n_g its
    size. The degrees of freedom are one less than the effective number of clusters, `1 / sum_g (n_g / n)^2` (Carter,
    Schnepel and Steigerwald 2017): where one holds most of the values, the others add little. Fewer than two leave the
    bounds undefined. For G clusters of equal size that is the usual `G / (G - 1)` with G - 1 degrees of freedom, and
    for clusters of one value the ordinary standard error of a mean.
    """
    known = _known(values)
    if clusters is None and _binary(known):
        return proportion(known)
    numbers = numbered(range(len(known)) if clusters is None else clusters, len(known))
    mean, freedom = float(known.mean()), effective_clusters(numbers) - 1
    if freedom < 1 - TINY:
        return Interval(mean=mean)
    reach = t_quantile(freedom) * robust_error(known, numbers)
    return Interval(mean=mean, low=mean - reach, high=mean + reach)


def paired_gain(before: ArrayLike, after: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Interval:
    """The mean of `after - before` (n,) over problems, shares from 0 to 1 both and in the same order of problems, with
    the interval of `gain_reach`. `clusters` are as in `mean_interval`.

    Raises:
        ValueError: the two are not of the same number of problems.
    """
    then, now = _known(before), _known(after)
    if len(then) != len(now):
        raise ValueError(f"a gain is paired: {len(then)} problems before, {len(now)} after")
    numbers = numbered(range(len(now)) if clusters is None else clusters, len(now))
    mean = float((now - then).mean())
    if effective_clusters(numbers) < 2 - TINY:
        return Interval(mean=mean)
    below, above = gain_reach(then, now, numbers)
    return Interval(mean=mean, low=mean - below, high=mean + above)


def gain_reach(before: Float64, after: Float64, numbers: Int64, beyond: float = 1 - LEVEL) -> tuple[float, float]:
    """How far the interval of the mean of `after - before` (n,) reaches below it and above it; its error is larger with
    chance `beyond`. What the problems differ in by themselves does not widen it. `numbers` are the clusters.

    - Fewer than 30 clusters: `sqrt(x^2 - 2 r x y + y^2)`, below with x what the interval of `after` reaches below its
      mean and y what that of `before` reaches above its own, above the other way round (Newcombe 1998, method 10; Zou
      and Donner 2008). The two intervals are Wilson's, as in `share_interval`; r is the cluster-robust correlation of
      the two means, 0 of two clusters, which tell none. Student's interval would be far too short where one of the two
      is near 0 or 1.
    - 30 and more: Student's interval of the differences. It has no width where all of them are equal: the sample then
      shows no variation to go by.
    """
    error, count = robust_error(after - before, numbers), int(numbers.max()) + 1
    if count >= MANY.start:
        reach = t_quantile(effective_clusters(numbers) - 1, beyond) * error
        return reach, reach
    (then_low, then_high), (now_low, now_high) = (_bounds(shares, numbers, beyond) for shares in (before, after))
    then, now = float(before.mean()), float(after.mean())
    errors = robust_error(before, numbers), robust_error(after, numbers)
    together = sum(one**2 for one in errors) - error**2
    told = min(errors) >= TINY and count > 2
    r = min(1.0, max(-1.0, together / (2 * math.prod(errors)))) if told else 0.0
    return _apart(now - now_low, then_high - then, r), _apart(now_high - now, then - then_low, r)


def _apart(one: float, other: float, r: float) -> float:
    """The length of the difference of two reaches with the correlation `r`."""
    return math.sqrt(max(0.0, one**2 - 2 * r * one * other + other**2))


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k samples is right, given that c of n were: `1 - C(n-c, k) / C(n, k)`, the
    unbiased estimator of Chen et al. 2021.

    Raises:
        ValueError: k is not between 1 and n, or c not between 0 and n.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@{k} cannot be told from {c} right of {n} samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority_at_k(answers: Sequence[str | None], values: Sequence[float], k: int) -> float:
    """The chance that the most frequent answer of k samples is right, over all draws of k of the n samples; of several
    that are as frequent one is taken at random (Wang et al. 2023). `values` (n,) are the samples' grades, 0 to 1; those
    of one answer are averaged. A sample without an answer (None) has no vote; k samples without any are wrong.

    Raises:
        ValueError: k is not between 1 and n, or there are not as many answers as values.
    """
    n = len(values)
    if len(answers) != n or not 1 <= k <= n:
        raise ValueError(f"majority@{k} cannot be told from {len(answers)} answers and {n} grades")
    votes: dict[str, list[float]] = {}
    for answer, value in zip(answers, values, strict=True):
        if answer is not None:
            votes.setdefault(answer, []).append(value)
    silent = n - sum(map(len, votes.values()))
    right = 0.0
    for answer, own in votes.items():
        others = [len(found) for name, found in votes.items() if name != answer]
        for most in range(1, min(len(own), k) + 1):
            wins = sum(ways / (ties + 1) for ties, ways in _below(others, silent, k - most, most).items())
            right += sum(own) / len(own) * math.comb(len(own), most) * wins
    return right / math.comb(n, k)


def _below(counts: Sequence[int], silent: int, size: int, most: int) -> dict[int, int]:
    """In how many ways `size` samples are drawn from answers of these `counts` and those without any, no answer more
    often than `most`, by how many answers are drawn just as often."""
    ways: Counter[tuple[int, int]] = Counter({(0, 0): 1})
    for count in counts:
        after: Counter[tuple[int, int]] = Counter()
        for (drawn, ties), so_far in ways.items():
            for own in range(min(count, most, size - drawn) + 1):
                after[drawn + own, ties + (own == most)] += so_far * math.comb(count, own)
        ways = after
    found: Counter[int] = Counter()
    for (drawn, ties), so_far in ways.items():
        found[ties] += so_far * math.comb(silent, size - drawn)
    return found


def t_quantile(freedom: float, beyond: float = 1 - LEVEL) -> float:
    """The t that a Student variable of so many degrees of freedom is beyond, on either side, with chance `beyond`."""
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, beyond / 2))


def drawn_clusters(random: np.random.Generator, draws: int, count: int) -> Float64:
    """How often each of `count` clusters comes up in draws of as many, (draws, count)."""
    drawn = random.integers(count, size=(draws, count)) + count * np.arange(draws)[:, None]
    return np.bincount(drawn.ravel(), minlength=draws * count).reshape(draws, count).astype(np.float64)


@lru_cache(maxsize=4)
def _draws(count: int) -> Float64:
    """The draws that every interval over so many clusters goes by, (DRAWS, count); not to be written to."""
    return drawn_clusters(np.random.default_rng(SEED), DRAWS, count)


def _studentised(values: Float64, numbers: Int64, error: float) -> tuple[float, float]:
    """The quantiles of `(mean* - mean) / se*` over draws of clusters that leave LEVEL between them; infinite where it
    is that of draws without variation."""
    count = int(numbers.max()) + 1
    drawn = _draws(count)
    sums, sizes = np.bincount(numbers, values), np.bincount(numbers).astype(np.float64)
    n = drawn @ sizes
    means = drawn @ sums / n
    squares = drawn @ sums**2 - 2 * means * (drawn @ (sums * sizes)) + means**2 * (drawn @ sizes**2)
    errors = np.sqrt(np.maximum(squares, 0.0) * count / (count - 1)) / n
    off = means - values.mean()
    # What is rounding goes by the error of the sample itself; a draw that has none of its own says nothing of a bound.
    t = np.divide(off, errors, out=np.where(off < 0, -math.inf, math.inf), where=errors > TINY * error)
    low, high = np.quantile(t, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    return float(low), float(high)


def wilson(p: float, n: float, z: float = Z) -> Interval:
    """Wilson's interval of a share `p` of `n` independent values, which need not be a whole number; `z` is the quantile
    that it goes by."""
    low, high = _wilson_bounds(p, n, z)
    return Interval(mean=p, low=low, high=high)


def _wilson_bounds(p: float, n: float, z: float) -> tuple[float, float]:
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    # At a share of 0 or 1 a bound equals it, but for a last bit that rounding may put on the wrong side.
    return min(p, max(0.0, centre - reach)), max(p, min(1.0, centre + reach))


def _bounds(shares: Float64, numbers: Int64, beyond: float = 1 - LEVEL) -> tuple[float, float]:
    """The bounds of a mean of shares (n,) in few clusters, as `share_interval` says, which it is beyond with chance
    `beyond`."""
    mean, effective = float(shares.mean()), effective_clusters(numbers)
    error = robust_error(shares, numbers)
    if error >= TINY:
        return _wilson_bounds(mean, mean * (1 - mean) / error**2, t_quantile(effective - 1, beyond))
    if mean in (0.0, 1.0):
        return _wilson_bounds(mean, effective, -NormalDist().inv_cdf(beyond / 2))
    return mean, mean


def numbered(clusters: Sequence[Hashable], n: int) -> Int64:
    """The cluster of every value as a number from 0, (n,)."""
    if len(clusters) != n:
        raise ValueError(f"{n} values, but the clusters of {len(clusters)}")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in clusters], dtype=np.int64)


def effective_clusters(numbers: Int64) -> float:
    """The effective number of clusters: of how many of equal size they are worth."""
    share = np.bincount(numbers) / len(numbers)
    return 1 / float(share @ share)


def robust_error(values: Float64, numbers: Int64) -> float:
    """The cluster-robust standard error (CR2) of the mean of values (n,), which are of more than one cluster."""
    sums = np.bincount(numbers, values - values.mean())
    left = 1 - np.bincount(numbers) / len(values)
    return math.sqrt(float((sums**2 / left).sum())) / len(values)


def _known(values: ArrayLike) -> Float64:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise ValueError("statistics are of one or more finite values in a row; leave missing ones out")
    return array


def _binary(values: Float64) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())
