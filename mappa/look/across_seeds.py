"""Means and differences over several seeds of a setting, on the same problems.

Values vary for two independent reasons: the sample of problems, and the training seed. An interval that generalizes to
other problems and other seeds includes both. With one seed the variance over seeds is unknown: its intervals generalize
to other problems only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from mappa.evaluation.statistics import (
    CONFIDENCE_LEVEL,
    cluster_robust_error,
    effective_clusters,
    gain_half_widths,
    number_clusters,
    share_interval,
    t_quantile,
    wilson_interval,
)
from mappa.look.arrays import Float64, Int64
from mappa_core.records import Interval

Clusters = Sequence[Hashable] | None
TINY = 1e-9
"""Smaller values are rounding errors."""
MIN_P_VALUE = 1e-100
"""The smallest p-value that is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanDifference:
    """The difference of two means of shares on the same problems, with its 95 % interval and two-sided p-value `p`;
    None if there is too little data. It generalizes to other seeds only if `over_seeds`."""

    interval: Interval
    p: float | None
    over_seeds: bool


def mean_over_seeds(values: Float64, clusters: Clusters = None) -> Interval:
    """Return the mean of shares (seeds, problems) and its 95 % interval; for one seed that of `share_interval`.

    For several seeds it is Wilson's interval for `n = p (1 - p) / v` values with `half_width / sqrt(v)` in place of the
    normal quantile. v is the sum of the cluster-robust variance (CR2) over problems and the variance over seeds
    (`_SeedVariance`), and `half_width` is `sqrt(t_p^2 v_p + t_s^2 v_s)`, each with the quantile of its own degrees of
    freedom (Howe 1974). Common degrees of freedom, as is usual, would overrate three seeds that happen to agree.
    """
    if len(values) == 1:
        return share_interval(values[0], clusters)
    mean, cluster_ids = float(values.mean()), _clusters(values, clusters)
    effective = effective_clusters(cluster_ids)
    if effective < 2 - TINY:
        return Interval(mean=mean)
    seeds = _SeedVariance.of([values], cluster_ids)
    error = cluster_robust_error(values.mean(axis=0), cluster_ids)
    spread = math.hypot(error, math.sqrt(seeds.variance))
    if spread < TINY:
        return share_interval(values.mean(axis=0), clusters)
    half_width = math.hypot(t_quantile(effective - 1) * error, seeds.half_width())
    return wilson_interval(mean, mean * (1 - mean) / spread**2, half_width / spread)


def difference_over_seeds(one: Float64, other: Float64, clusters: Clusters = None) -> MeanDifference:
    """Return the mean of `one` (seeds, problems) minus that of `other` (seeds, problems), with the same problems as
    columns. Seeds of the two arms count as independent; with one seed in an arm it is `paired_gain` of the means over
    seeds.

    The half-width is `sqrt(g^2 + s^2)` on either side, with g that of the means over seeds (`gain_half_widths`), and s
    that of seeds (`_SeedVariance`). `p` is the largest level at which the interval contains 0.

    Raises:
        ValueError: the two have different numbers of problems.
    """
    interval, over_seeds = difference_interval(one, other, clusters), min(len(one), len(other)) > 1
    if interval.low is None:
        return MeanDifference(interval=interval, p=None, over_seeds=over_seeds)
    p = _p_value(interval.mean, _half_widths(one, other, _clusters(one, clusters)))
    return MeanDifference(interval=interval, p=p, over_seeds=over_seeds)


def difference_interval(one: Float64, other: Float64, clusters: Clusters = None) -> Interval:
    """Return the interval of `difference_over_seeds`, which its p-value takes most of the time of. Raises like it."""
    if one.shape[1] != other.shape[1]:
        raise ValueError(f"a difference is paired: {one.shape[1]} problems against {other.shape[1]}")
    mean, cluster_ids = float((one.mean(axis=0) - other.mean(axis=0)).mean()), _clusters(one, clusters)
    if effective_clusters(cluster_ids) < 2 - TINY:
        return Interval(mean=mean)
    below, above = _half_widths(one, other, cluster_ids)(1 - CONFIDENCE_LEVEL)
    return Interval(mean=mean, low=mean - below, high=mean + above)


def _half_widths(one: Float64, other: Float64, cluster_ids: Int64) -> Callable[[float], tuple[float, float]]:
    """Return the distances (below, above) of the bounds from the mean difference, by level alpha."""
    now, then = one.mean(axis=0), other.mean(axis=0)
    seeds = _SeedVariance.of([one, other] if min(len(one), len(other)) > 1 else [], cluster_ids)

    def half_widths(alpha: float) -> tuple[float, float]:
        below, above = gain_half_widths(then, now, cluster_ids, alpha)
        return math.hypot(below, seeds.half_width(alpha)), math.hypot(above, seeds.half_width(alpha))

    return half_widths


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests to control the family-wise error rate (Holm 1979): in ascending order the
    k-th of n times n - k + 1, not below the previous one, at most 1."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, previous = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        previous = max(previous, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = previous
    return adjusted


def cohens_h(one: float, other: float) -> float:
    """Return the effect size of two shares, `2 asin sqrt(one) - 2 asin sqrt(other)` (Cohen 1988): the same difference
    counts more near 0 and 1. By convention 0.2 is small, 0.5 medium, 0.8 large."""
    return 2 * math.asin(math.sqrt(one)) - 2 * math.asin(math.sqrt(other))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeedVariance:
    """Variance that seeds add to a mean, or to a difference of two: `sum_a max(0, v_a - r_a)`.

    v_a is the variance over seeds of the mean of arm a, and r_a the part of v_a by chance alone, which the variance
    over problems already contains (the variance of the residuals of an arm after its seed and problem effects; two-way
    clustering, Cameron, Gelbach and Miller 2011). Its degrees of freedom are Satterthwaite's (1946) of the v_a, and at
    most those of arms of as many seeds each as the smallest has: of two seeds against eight, whose v_a is the larger by
    chance is nearly that of the two, and Satterthwaite's would find 9 % of differences that are none.
    """

    variance: float
    degrees_of_freedom: float

    @classmethod
    def of(cls, arms: Sequence[Float64], cluster_ids: Int64) -> _SeedVariance:
        """Estimate the variance from `arms` (seeds, problems), each with several seeds."""
        variances = [float(arm.mean(axis=1).var(ddof=1)) / len(arm) for arm in arms]
        unsure = sum(v**2 / (len(arm) - 1) for v, arm in zip(variances, arms, strict=True))
        fewest = min((len(arm) for arm in arms), default=2)
        return cls(
            variance=sum(
                max(0.0, v - _chance_variance(arm, cluster_ids)) for v, arm in zip(variances, arms, strict=True)
            ),
            degrees_of_freedom=min(sum(variances) ** 2 / unsure, len(arms) * (fewest - 1)) if unsure > 0 else 1.0,
        )

    def half_width(self, alpha: float = 1 - CONFIDENCE_LEVEL) -> float:
        """Return the half-width by seeds alone at level `1 - alpha`."""
        return t_quantile(self.degrees_of_freedom, alpha) * math.sqrt(self.variance) if self.variance > 0 else 0.0


def _chance_variance(arm: Float64, cluster_ids: Int64) -> float:
    """Return the residual variance of the mean of an arm (seeds, problems), after seed and problem effects; residuals
    are independent between seeds and between clusters of problems."""
    left = arm - arm.mean(axis=1, keepdims=True) - arm.mean(axis=0) + arm.mean()
    share = np.bincount(cluster_ids) / arm.shape[1]
    sums = np.array([np.bincount(cluster_ids, row) for row in left])
    return float((sums**2 / (1 - share)).sum() / (1 - 1 / len(arm)) / arm.size**2)


def _p_value(mean: float, half_width: Callable[[float], tuple[float, float]]) -> float:
    """Return the `alpha` at which the interval around `mean` ends at 0, between MIN_P_VALUE and 1."""
    from scipy.optimize import brentq

    if abs(mean) < TINY:
        return 1.0

    def excess(log_alpha: float) -> float:
        below, above = half_width(math.exp(log_alpha))
        return (below if mean > 0 else above) - abs(mean)

    previous = math.log(MIN_P_VALUE)
    return MIN_P_VALUE if excess(previous) <= 0 else math.exp(brentq(excess, previous, 0.0, xtol=1e-12))


def _clusters(values: Float64, clusters: Clusters) -> Int64:
    return number_clusters(range(values.shape[1]) if clusters is None else clusters, values.shape[1])
