"""What held-out values say: means with 95 % intervals, paired gains, pass@k.

Bounds that too few values leave undefined are None; of no values at all nothing is said, which is an error.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from mappa_core.records import Float64
from mappa_core.store.summary import Interval

__all__ = ["Interval", "mean_interval", "paired_gain", "pass_at_k", "proportion", "t_quantile"]

LEVEL = 0.95
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


def proportion(values: ArrayLike) -> Interval:
    """The share of ones among values of 0 and 1, one per problem, with Wilson's score interval (Wilson 1927).

    It lies within 0 and 1 and has a width even where all values are equal.

    Raises:
        ValueError: a value is neither 0 nor 1.
    """
    shares = _known(values)
    if not _binary(shares):
        raise ValueError("a proportion is of values that are 0 or 1; use mean_interval for others")
    n, p = len(shares), float(shares.mean())
    if n < 2:
        return Interval(mean=p)
    centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    reach = Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    # At a share of 0 or 1 a bound equals it, but for a last bit that rounding may put on the wrong side.
    return Interval(mean=p, low=min(p, max(0.0, centre - reach)), high=max(p, min(1.0, centre + reach)))


def mean_interval(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Interval:
    """The mean of `values` (n,) and its interval: Wilson's where every value is 0 or 1, else Student's.

    `clusters` names the problem of every value where problems have several: values of one problem are then not taken
    for independent. The standard error is the cluster-robust one, `sqrt(G / (G - 1) * sum_g (sum_i residual)^2) / n`
    over G clusters, with G - 1 degrees of freedom; for clusters of one value that is the ordinary one.
    """
    known = _known(values)
    if clusters is None and _binary(known):
        return proportion(known)
    keys = range(len(known)) if clusters is None else clusters
    numbers: dict[Hashable, int] = {}
    cluster = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    if len(cluster) != len(known):
        raise ValueError(f"{len(known)} values, but the clusters of {len(cluster)}")
    groups, mean = len(numbers), float(known.mean())
    if groups < 2:
        return Interval(mean=mean)
    residuals = np.bincount(cluster, known - mean)
    error = math.sqrt(groups / (groups - 1) * float(residuals @ residuals)) / len(known)
    reach = t_quantile(groups - 1) * error
    return Interval(mean=mean, low=mean - reach, high=mean + reach)


def paired_gain(before: ArrayLike, after: ArrayLike) -> Interval:
    """The mean of `after - before` (n,) over problems, both in the same order of problems, with Student's interval of
    the differences: what the problems differ in by themselves does not widen it.

    Where all differences are equal the interval has no width: the sample then shows no variation to go by.

    Raises:
        ValueError: the two are not of the same number of problems.
    """
    then, now = _known(before), _known(after)
    if len(then) != len(now):
        raise ValueError(f"a gain is paired: {len(then)} problems before, {len(now)} after")
    return mean_interval(now - then, clusters=range(len(now)))


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k samples is right, given that c of n were: `1 - C(n-c, k) / C(n, k)`, the
    unbiased estimator of Chen et al. 2021.

    Raises:
        ValueError: k is not between 1 and n, or c not between 0 and n.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@{k} cannot be told from {c} right of {n} samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


@cache
def t_quantile(degrees: int) -> float:
    """The t that a Student variable of so many degrees of freedom stays within, on both sides, with chance 0.95."""
    low, high = Z, 13.0  # the normal's value and just more than that of one degree of freedom
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < LEVEL else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """P(|T| < t) by the finite sums for whole degrees of freedom (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    i = np.arange(1, (degrees - odd) // 2)
    steps = (2 * i - 1 + odd) / (2 * i + odd) * math.cos(angle) ** 2
    series = 1.0 + float(np.cumprod(steps).sum())
    if not odd:
        return math.sin(angle) * series
    return 2 / math.pi * (angle + (math.sin(angle) * math.cos(angle) * series if degrees > 1 else 0.0))


def _known(values: ArrayLike) -> Float64:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise ValueError("statistics are of one or more finite values in a row; leave missing ones out")
    return array


def _binary(values: Float64) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())
