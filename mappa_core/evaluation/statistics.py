"""What held-out values say: means with 95 % intervals, paired gains, pass@k.

Bounds that too few values leave undefined are None; of no values at all nothing is said, which is an error.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from mappa_core.records import Float64, Int64
from mappa_core.store.summary import Interval

__all__ = ["Interval", "mean_interval", "paired_gain", "pass_at_k", "proportion", "share_interval", "t_quantile"]

LEVEL = 0.95
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
TINY = 1e-9
"""What is smaller is rounding."""


def proportion(values: ArrayLike) -> Interval:
    """The share of ones among values of 0 and 1, one per problem, with Wilson's score interval (Wilson 1927).

    It lies within 0 and 1 and has a width even where all values are equal.

    Raises:
        ValueError: a value is neither 0 nor 1.
    """
    shares = _known(values)
    if not _binary(shares):
        raise ValueError("a proportion is of values that are 0 or 1; use mean_interval for others")
    return _wilson(float(shares.mean()), len(shares))


def share_interval(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Interval:
    """The mean of shares (n,), each from 0 to 1 and of one problem, and its interval, as `mean_interval` has it, cut at
    0 and 1.

    Where problems come in clusters and all values are 0, or all are 1, there is no variation to tell a width from. It
    is then Wilson's of as many problems as there are effective clusters.
    """
    shares = _known(values)
    if clusters is not None and shares.min() == shares.max() and shares[0] in (0.0, 1.0):
        return _wilson(float(shares[0]), _effective(_numbered(clusters, len(shares))))
    found = mean_interval(shares, clusters)
    if found.low is None or found.high is None:
        return found
    return Interval(mean=found.mean, low=max(0.0, found.low), high=min(1.0, found.high))


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
    numbers = _numbered(range(len(known)) if clusters is None else clusters, len(known))
    mean, freedom = float(known.mean()), _effective(numbers) - 1
    if freedom < 1 - TINY:
        return Interval(mean=mean)
    sums = np.bincount(numbers, known - mean)
    left = 1 - np.bincount(numbers) / len(known)
    reach = t_quantile(freedom) * math.sqrt(float((sums**2 / left).sum())) / len(known)
    return Interval(mean=mean, low=mean - reach, high=mean + reach)


def paired_gain(before: ArrayLike, after: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Interval:
    """The mean of `after - before` (n,) over problems, both in the same order of problems, with Student's interval of
    the differences: what the problems differ in by themselves does not widen it. `clusters` are as in `mean_interval`.

    Where all differences are equal the interval has no width: the sample then shows no variation to go by.

    Raises:
        ValueError: the two are not of the same number of problems.
    """
    then, now = _known(before), _known(after)
    if len(then) != len(now):
        raise ValueError(f"a gain is paired: {len(then)} problems before, {len(now)} after")
    return mean_interval(now - then, clusters=range(len(now)) if clusters is None else clusters)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k samples is right, given that c of n were: `1 - C(n-c, k) / C(n, k)`, the
    unbiased estimator of Chen et al. 2021.

    Raises:
        ValueError: k is not between 1 and n, or c not between 0 and n.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@{k} cannot be told from {c} right of {n} samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def t_quantile(freedom: float) -> float:
    """The t that a Student variable of so many degrees of freedom stays within, on both sides, with chance 0.95."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def _wilson(p: float, n: float) -> Interval:
    """Wilson's interval of a share `p` of `n` independent values, which need not be a whole number."""
    if n < 2:
        return Interval(mean=p)
    centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    reach = Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    # At a share of 0 or 1 a bound equals it, but for a last bit that rounding may put on the wrong side.
    return Interval(mean=p, low=min(p, max(0.0, centre - reach)), high=max(p, min(1.0, centre + reach)))


def _numbered(clusters: Sequence[Hashable], n: int) -> Int64:
    """The cluster of every value as a number from 0, (n,)."""
    if len(clusters) != n:
        raise ValueError(f"{n} values, but the clusters of {len(clusters)}")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in clusters], dtype=np.int64)


def _effective(numbers: Int64) -> float:
    """The effective number of clusters: of how many of equal size they are worth."""
    share = np.bincount(numbers) / len(numbers)
    return 1 / float(share @ share)


def _known(values: ArrayLike) -> Float64:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise ValueError("statistics are of one or more finite values in a row; leave missing ones out")
    return array


def _binary(values: Float64) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())
