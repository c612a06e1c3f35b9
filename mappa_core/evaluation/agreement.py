"""Statistics of scores against truth, with bootstrap intervals that keep what belongs together together.

A statistic is a function of weights, one per row. With all weights 1 it is the plain figure; drawing clusters with
replacement gives every row the number of times that its cluster was drawn. So many draws are a few sums over a matrix,
without any sorting, and they are the same as repeating the rows (ranks of ties are their mean). A statistic that is not
defined, for lack of variation or of one of two classes, is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mappa_core.evaluation.statistics import DRAWS, LEVEL, SEED, drawn_clusters
from mappa_core.records import Float64, Int64

Statistic = Callable[[Float64], Float64]
"""Weights (draws, n), none below 0, to figures (draws,), NaN where not defined. There is at least one row."""

MOSTLY = 0.95
"""Share of the draws in which a statistic must be defined for its interval to be told."""
_BLOCK = 250_000
"""Weights that are held at once: what fits a processor's cache is fastest."""
_TINY = 1e-12
"""Share of a sum of squares below which a variance is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure and its 95 % interval, whose bounds are None where too little is there to tell them."""

    value: float
    low: float | None = None
    high: float | None = None


def estimate(statistic: Statistic, clusters: ArrayLike) -> Estimate | None:
    """The figure of `statistic` with the percentile interval of the cluster bootstrap (Davison and Hinkley 1997, 3.8),
    None where it is not defined. `clusters` (n,) name what each row belongs to; whole clusters are drawn."""
    index = _levels(clusters)
    value = float(statistic(np.ones((1, len(index))))[0]) if len(index) else math.nan
    if not math.isfinite(value):
        return None
    count = int(index.max()) + 1
    if count < 2:
        return Estimate(value=value)
    random = np.random.default_rng(SEED)
    block = max(1, _BLOCK // len(index))
    blocks = (min(block, DRAWS - done) for done in range(0, DRAWS, block))
    figures = np.concatenate([statistic(drawn_clusters(random, draws, count)[:, index]) for draws in blocks])
    known = figures[np.isfinite(figures)]
    if len(known) < MOSTLY * DRAWS:
        return Estimate(value=value)
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value=value, low=float(low), high=float(high))


def auc(score: ArrayLike, positive: ArrayLike) -> Statistic:
    """The chance that a positive row has a higher score than one that is not, ties counting half: the area under the
    ROC curve (Mann and Whitney 1947; Hanley and McNeil 1982). `score` (n,), `positive` (n,) of bool."""
    level, is_positive = _Groups(score), np.asarray(positive, dtype=np.bool_)

    def statistic(weight: Float64) -> Float64:
        right, wrong = level.sums(weight * is_positive), level.sums(weight * ~is_positive)
        beaten = np.cumsum(wrong, axis=1) - wrong / 2
        return _quotient((right * beaten).sum(axis=1), right.sum(axis=1) * wrong.sum(axis=1))

    return statistic


def spearman(one: ArrayLike, other: ArrayLike) -> Statistic:
    """Spearman's correlation of ranks (n,), ties having their mean rank."""
    first, second = _Groups(one), _Groups(other)
    return lambda weight: _correlation(first.midranks(weight), second.midranks(weight), weight)


def correlation(one: ArrayLike, other: ArrayLike) -> Statistic:
    """Pearson's correlation of two columns (n,)."""
    first, second = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    return lambda weight: _correlation(first, second, weight)


def slope(score: ArrayLike, x: ArrayLike, cells: ArrayLike) -> Statistic:
    """What `score` (n,) gains per unit of `x` (n,) among rows of the same cell: least squares with a constant for each
    of `cells` (n,). Of an `x` of zeros and ones it is the mean difference within cells, each by how much it can tell.
    """
    cell, points, places = _Groups(cells), np.asarray(score, dtype=np.float64), np.asarray(x, dtype=np.float64)

    def statistic(weight: Float64) -> Float64:
        off = places - cell.means(places, weight)
        spread = (weight * off**2).sum(axis=1)
        varies = spread > _TINY * (weight @ places**2)
        return _quotient((weight * off) @ points, np.where(varies, spread, 0.0))

    return statistic


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Statistic:
    """The sum of one column (n,) over the sum of another (n,)."""
    above, below = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    return lambda weight: _quotient(weight @ above, weight @ below)


def difference(one: Statistic, other: Statistic) -> Statistic:
    """By how much one statistic of the same rows is above another; drawn together, so that the interval is paired."""
    return lambda weight: one(weight) - other(weight)


def tenths(values: ArrayLike) -> Int64:
    """Values (n,) in groups of equal value: the values themselves where there are ten or fewer, else tenths by rank."""
    level = _levels(values)
    if level.max(initial=0) < 10:
        return level
    ranks = _Groups(values).midranks(np.ones((1, len(level))))[0]
    groups: Int64 = (10 * ranks / len(level)).astype(np.int64)
    return groups


class _Groups:
    """Rows of equal value, in the ascending order of the k values."""

    def __init__(self, values: ArrayLike) -> None:
        self._level = _levels(values)
        self._order = np.argsort(self._level, kind="stable")
        self._starts = np.flatnonzero(np.diff(self._level[self._order], prepend=-1))

    def sums(self, weight: Float64) -> Float64:
        """Weight of each group, (draws, k)."""
        sums: Float64 = np.add.reduceat(weight[:, self._order], self._starts, axis=1)
        return sums

    def midranks(self, weight: Float64) -> Float64:
        """Weight below each row, half of that of its ties included, (draws, n): its mean rank, but for a constant."""
        total = self.sums(weight)
        ranks: Float64 = (np.cumsum(total, axis=1) - total / 2)[:, self._level]
        return ranks

    def means(self, values: Float64, weight: Float64) -> Float64:
        """The mean over each row's group, (draws, n); 0 where the group has no weight."""
        sums, total = self.sums(weight * values), self.sums(weight)
        means: Float64 = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)[:, self._level]
        return means


def _levels(values: ArrayLike) -> Int64:
    """The place of each value (n,) among the distinct ones, ascending."""
    levels: Int64 = np.unique(np.asarray(values), return_inverse=True)[1]
    return levels


def _quotient(above: Float64, below: Float64) -> Float64:
    quotient: Float64 = np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)
    return quotient


def _correlation(one: Float64, other: Float64, weight: Float64) -> Float64:
    """Of columns (n,) or (draws, n)."""
    total = weight.sum(axis=1, keepdims=True)
    weight = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    first, first_varies = _centred(one, weight)
    second, second_varies = _centred(other, weight)
    scale = np.sqrt((weight * first**2).sum(axis=1) * (weight * second**2).sum(axis=1))
    return _quotient((weight * first * second).sum(axis=1), np.where(first_varies & second_varies, scale, 0.0))


def _centred(values: Float64, weight: Float64) -> tuple[Float64, NDArray[np.bool_]]:
    """Values less their mean, and whether they vary by more than rounding."""
    centred = values - (weight * values).sum(axis=1, keepdims=True)
    return centred, (weight * centred**2).sum(axis=1) > _TINY * (weight * values**2).sum(axis=1)
