"""Means and differences over several seeds of a setting, on the same problems.

Values vary for two reasons that have nothing to do with each other: which problems were drawn, and how a training run
with its seed came out. An interval that is to hold for other problems and other seeds counts both. Of one seed there is
nothing to tell the second from: its intervals speak of other problems alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.evaluation.statistics import (
    LEVEL,
    TINY,
    effective_clusters,
    gain_reach,
    numbered,
    robust_error,
    share_interval,
    t_quantile,
    wilson,
)
from mappa_core.records import Float64, Int64
from mappa_core.store.summary import Interval

Clusters = Sequence[Hashable] | None
SMALLEST = 1e-100
"""The smallest p-value; what would be smaller is given as this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """By how much one mean of shares is above another on the same problems, with its 95 % interval, and the chance `p`
    of a difference as large, either way, were there none; None where there is too little to tell it from. It speaks
    of other seeds, too, only where `over_seeds`."""

    interval: Interval
    p: float | None
    over_seeds: bool


def mean_over_seeds(values: Float64, clusters: Clusters = None) -> Interval:
    """The mean of shares (seeds, problems) and its 95 % interval; of one seed that of `share_interval`.

    Of several seeds it is Wilson's of `n = p (1 - p) / v` values with `reach / sqrt(v)` in place of the normal's
    quantile. v is the cluster-robust variance (CR2) of the mean over problems and that over seeds (`_Seeds`) together,
    and `reach` is `sqrt(t_p^2 v_p + t_s^2 v_s)`, each with the quantile of its own degrees of freedom (Howe 1974). One
    number of degrees of freedom for both, as it is usual, makes too much of three seeds that happen to come out alike.
    """
    if len(values) == 1:
        return share_interval(values[0], clusters)
    mean, numbers = float(values.mean()), _clusters(values, clusters)
    effective = effective_clusters(numbers)
    if effective < 2 - TINY:
        return Interval(mean=mean)
    seeds = _Seeds.of([values], numbers)
    error = robust_error(values.mean(axis=0), numbers)
    spread = math.hypot(error, math.sqrt(seeds.variance))
    if spread < TINY:
        return wilson(mean, effective) if mean in (0.0, 1.0) else Interval(mean=mean, low=mean, high=mean)
    reach = math.hypot(t_quantile(effective - 1) * error, seeds.reach())
    return wilson(mean, mean * (1 - mean) / spread**2, reach / spread)


def difference_over_seeds(one: Float64, other: Float64, clusters: Clusters = None) -> Difference:
    """The mean of `one` (seeds, problems) less that of `other` (seeds, problems), the columns being of the same
    problems. Seeds of the two arms are taken as independent; with one seed on a side it is `paired_gain` of the means
    over seeds.

    The interval reaches `sqrt(g^2 + s^2)` to either side, where g is what that of the means over seeds reaches there
    (`gain_reach`), and s what seeds add (`_Seeds`). `p` is the chance beyond which it no longer holds 0. Where all
    problems differ by the same, so that there is no error to tell, it is that of one sign of all clusters by chance.

    Raises:
        ValueError: the two are not of the same number of problems.
    """
    if one.shape[1] != other.shape[1]:
        raise ValueError(f"a difference is paired: {one.shape[1]} problems against {other.shape[1]}")
    now, then = one.mean(axis=0), other.mean(axis=0)
    mean = float((now - then).mean())
    over_seeds, numbers = min(len(one), len(other)) > 1, _clusters(one, clusters)
    effective = effective_clusters(numbers)
    if effective < 2 - TINY:
        return Difference(interval=Interval(mean=mean), p=None, over_seeds=over_seeds)
    seeds = _Seeds.of([one, other] if over_seeds else [], numbers)

    def reach(beyond: float) -> tuple[float, float]:
        below, above = gain_reach(then, now, numbers, beyond)
        return math.hypot(below, seeds.reach(beyond)), math.hypot(above, seeds.reach(beyond))

    below, above = reach(1 - LEVEL)
    interval = Interval(mean=mean, low=mean - below, high=mean + above)
    if max(below, above) < TINY and abs(mean) >= TINY:
        return Difference(interval=interval, p=2 ** (1 - effective), over_seeds=over_seeds)
    return Difference(interval=interval, p=_chance(mean, reach), over_seeds=over_seeds)


def holm(chances: Sequence[float]) -> list[float]:
    """The p-values of several tests, adjusted so that the chance of any that is wrongly below a level is no more than
    that level (Holm 1979): in ascending order the k-th of n times n - k + 1, no less than the one before, at most 1."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    adjusted, least = [0.0] * len(chances), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(chances) - rank) * chances[index]))
        adjusted[index] = least
    return adjusted


def cohens_h(one: float, other: float) -> float:
    """The effect size of two shares, `2 asin sqrt(one) - 2 asin sqrt(other)` (Cohen 1988): the same difference counts
    more near 0 and 1. 0.2 is called small, 0.5 medium, 0.8 large."""
    return 2 * math.asin(math.sqrt(one)) - 2 * math.asin(math.sqrt(other))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seeds:
    """What seeds add to the variance of a mean, or of a difference of two: `max(0, sum_a (v_a - r_a))`.

    v_a is the variance over seeds of the mean of arm a, and r_a what chance alone, which is in the variance over
    problems already, puts into v_a (the variance of what is left of an arm without its effects of seeds and of
    problems; two-way clustering, Cameron, Gelbach and Miller 2011). Its degrees of freedom are Satterthwaite's (1946)
    of the v_a.
    """

    variance: float
    freedom: float

    @classmethod
    def of(cls, arms: Sequence[Float64], numbers: Int64) -> _Seeds:
        """`arms` (seeds, problems) each have several seeds."""
        found = [float(arm.mean(axis=1).var(ddof=1)) / len(arm) for arm in arms]
        unsure = sum(v**2 / (len(arm) - 1) for v, arm in zip(found, arms, strict=True))
        return cls(
            variance=max(0.0, sum(found) - sum(_noise(arm, numbers) for arm in arms)),
            freedom=sum(found) ** 2 / unsure if unsure > 0 else 1.0,
        )

    def reach(self, beyond: float = 1 - LEVEL) -> float:
        """What an error by seeds alone is larger than with chance `beyond`."""
        return t_quantile(self.freedom, beyond) * math.sqrt(self.variance) if self.variance > 0 else 0.0


def _noise(arm: Float64, numbers: Int64) -> float:
    """The variance of the mean of an arm (seeds, problems) by what neither seeds nor problems explain, which is
    independent between seeds and between clusters of problems."""
    left = arm - arm.mean(axis=1, keepdims=True) - arm.mean(axis=0) + arm.mean()
    share = np.bincount(numbers) / arm.shape[1]
    sums = np.array([np.bincount(numbers, row) for row in left])
    return float((sums**2 / (1 - share)).sum() / (1 - 1 / len(arm)) / arm.size**2)


def _chance(mean: float, reach: Callable[[float], tuple[float, float]]) -> float:
    """The `beyond` at which an interval reaches from `mean` to 0: from the smallest that is told apart up to 1."""
    from scipy.optimize import brentq

    if abs(mean) < TINY:
        return 1.0

    def excess(log_beyond: float) -> float:
        below, above = reach(math.exp(log_beyond))
        return (below if mean > 0 else above) - abs(mean)

    least = math.log(SMALLEST)
    return SMALLEST if excess(least) <= 0 else math.exp(brentq(excess, least, 0.0, xtol=1e-12))


def _clusters(values: Float64, clusters: Clusters) -> Int64:
    return numbered(range(values.shape[1]) if clusters is None else clusters, values.shape[1])
