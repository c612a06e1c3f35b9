"""Statistics of scores against truth, with cluster bootstrap intervals.

A statistic is a function of weights, one per row. With all weights 1 it is the point estimate; in a bootstrap draw the
weight of a row is how often its cluster was drawn. So many draws are a few sums over a matrix, without any sorting, and
equal to repeating the rows (tied values have their mean rank). A statistic that is undefined, for lack of variation or
of one of two classes, is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from mappa.evaluation.statistics import TINY, cluster_draws, t_quantile
from mappa.look.arrays import Bool, Float64, Int64

Statistic = Callable[[Float64], Float64]
"""Maps weights (draws, n), 0 or more, to values (draws,), NaN if undefined. There is at least one row."""

MIN_CLUSTERS = 5
"""Clusters below which there is no interval: draws of so few hardly leave the range of their values."""
MIN_DEFINED_SHARE = 0.95
"""Minimum share of draws in which a statistic must be defined for an interval."""
_BLOCK = 250_000
"""Weights per block: blocks that fit the processor cache are fastest."""
_TINY = 1e-12
"""Share of a sum of squares below which a variance counts as rounding error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A point estimate and its 95 % interval; the bounds are None if there is too little data, or if all of it is alike
    and nothing tells how far off the estimate may be."""

    value: float
    low: float | None = None
    high: float | None = None


def estimate(statistic: Statistic, clusters: ArrayLike) -> Estimate | None:
    """Estimate `statistic` with the percentile interval of the cluster bootstrap (Davison and Hinkley 1997, 3.8); None
    if it is undefined. `clusters` (n,) are the clusters of the rows; whole clusters are drawn.

    Percentiles are too narrow for few clusters, by the ratio of normal and Student's quantiles and by `sqrt(1 - 1 / G)`
    for G clusters. They are expanded by as much (Hesterberg 2015).
    """
    index = _levels(clusters)
    value = float(statistic(np.ones((1, len(index))))[0]) if len(index) else math.nan
    if not math.isfinite(value):
        return None
    count = int(index.max()) + 1
    if count < MIN_CLUSTERS:
        return Estimate(value=value)
    draws = cluster_draws(count, block=max(1, _BLOCK // len(index)))
    figures = np.concatenate([statistic(drawn[:, index]) for drawn in draws])
    known = figures[np.isfinite(figures)]
    if len(known) < MIN_DEFINED_SHARE * len(figures):
        return Estimate(value=value)
    tail = NormalDist().cdf(-math.sqrt(count / (count - 1)) * t_quantile(count - 1))
    low, high = np.quantile(known, [tail, 1 - tail])
    if high - low < TINY:
        return Estimate(value=value)
    return Estimate(value=value, low=float(low), high=float(high))


def auc(score: ArrayLike, positive: ArrayLike) -> Statistic:
    """Area under the ROC curve: the chance that a positive row has a higher score than a negative one, ties counting
    half (Mann and Whitney 1947; Hanley and McNeil 1982). `score` (n,), `positive` (n,) of bool."""
    level, is_positive = _TieGroups(score), np.asarray(positive, dtype=np.bool_)

    def statistic(weight: Float64) -> Float64:
        right, wrong = level.sums(weight * is_positive), level.sums(weight * ~is_positive)
        beaten = np.cumsum(wrong, axis=1) - wrong / 2
        return _quotient((right * beaten).sum(axis=1), right.sum(axis=1) * wrong.sum(axis=1))

    return statistic


def spearman(one: ArrayLike, other: ArrayLike) -> Statistic:
    """Spearman's rank correlation of two columns (n,); ties have their mean rank."""
    first, second = _TieGroups(one), _TieGroups(other)
    return lambda weight: _correlation(first.midranks(weight), second.midranks(weight), weight)


def correlation(one: ArrayLike, other: ArrayLike) -> Statistic:
    """Pearson's correlation of two columns (n,)."""
    first, second = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    return lambda weight: _correlation(first, second, weight)


def slope(score: ArrayLike, x: ArrayLike, cells: ArrayLike) -> Statistic:
    """Slope of `score` (n,) on `x` (n,) within cells: least squares with an intercept for each of `cells` (n,). For a
    binary `x` it is the mean difference within cells, weighted by their information.
    """
    cell, points, places = _TieGroups(cells), np.asarray(score, dtype=np.float64), np.asarray(x, dtype=np.float64)

    def statistic(weight: Float64) -> Float64:
        deviation = places - cell.means(places, weight)
        spread = (weight * deviation**2).sum(axis=1)
        varies = spread > _TINY * (weight @ places**2)
        return _quotient((weight * deviation) @ points, np.where(varies, spread, 0.0))

    return statistic


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Statistic:
    """The sum of one column (n,) over the sum of another (n,)."""
    above, below = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    return lambda weight: _quotient(weight @ above, weight @ below)


def paired_difference(one: Statistic, other: Statistic) -> Statistic:
    """Difference of two statistics of the same rows; both use the same draws, so that the interval is paired."""
    return lambda weight: one(weight) - other(weight)


def deciles(values: ArrayLike) -> Int64:
    """Group values (n,): by value if there are at most ten distinct ones, else by decile of rank."""
    level = _levels(values)
    if level.max(initial=0) < 10:
        return level
    ranks = _TieGroups(values).midranks(np.ones((1, len(level))))[0]
    groups: Int64 = (10 * ranks / len(level)).astype(np.int64)
    return groups


class _TieGroups:
    """Rows grouped by equal value, in ascending order of the k values."""

    def __init__(self, values: ArrayLike) -> None:
        self._level = _levels(values)
        self._order = np.argsort(self._level, kind="stable")
        self._starts = np.flatnonzero(np.diff(self._level[self._order], prepend=-1))

    def sums(self, weight: Float64) -> Float64:
        """Return the total weight of each group, (draws, k)."""
        sums: Float64 = np.add.reduceat(weight[:, self._order], self._starts, axis=1)
        return sums

    def midranks(self, weight: Float64) -> Float64:
        """Return the weight below each row plus half that of its ties, (draws, n): its mean rank, up to a constant."""
        total = self.sums(weight)
        ranks: Float64 = (np.cumsum(total, axis=1) - total / 2)[:, self._level]
        return ranks

    def means(self, values: Float64, weight: Float64) -> Float64:
        """Return the mean over each row's group, (draws, n); 0 for a group without weight."""
        sums, total = self.sums(weight * values), self.sums(weight)
        means: Float64 = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)[:, self._level]
        return means


def _levels(values: ArrayLike) -> Int64:
    """Return the index of each value (n,) among the sorted distinct values."""
    levels: Int64 = np.unique(np.asarray(values), return_inverse=True)[1]
    return levels


def _quotient(above: Float64, below: Float64) -> Float64:
    quotient: Float64 = np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)
    return quotient


def _correlation(one: Float64, other: Float64, weight: Float64) -> Float64:
    """Return the weighted correlation of columns (n,) or (draws, n)."""
    total = weight.sum(axis=1, keepdims=True)
    weight = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    first, first_varies = _centred(one, weight)
    second, second_varies = _centred(other, weight)
    scale = np.sqrt((weight * first**2).sum(axis=1) * (weight * second**2).sum(axis=1))
    return _quotient((weight * first * second).sum(axis=1), np.where(first_varies & second_varies, scale, 0.0))


def _centred(values: Float64, weight: Float64) -> tuple[Float64, Bool]:
    """Return values minus their mean, and whether they vary by more than rounding errors."""
    centred = values - (weight * values).sum(axis=1, keepdims=True)
    return centred, (weight * centred**2).sum(axis=1) > _TINY * (weight * values**2).sum(axis=1)
