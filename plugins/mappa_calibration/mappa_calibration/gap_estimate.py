"""Gaps of scores between strata, with tasks as clusters. Shapes: n actions, C = CLUSTER_COUNT. Gaps are points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mappa_calibration.actions import CLUSTER_COUNT, Float64, Int64
from mappa_calibration.comparison import Comparison
from mappa_calibration.slope_estimate import TINY, SlopeEstimate, estimate_slope, sums_from_state, sums_state

_COLUMNS = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contrast:
    """The gap between one stratum and the rest over all iterations so far, and its growth, as sums by cluster.

    The model is `excess = mean of the group + gap * inside + growth * inside * clock + task + noise`. Membership x is
    residualized on the groups, which leaves a regression of the excess e on it (Frisch and Waugh 1933); the standard
    errors are cluster-robust, by task. A cluster's part in an iteration is divided by `sqrt(1 - leverage)`, as in HC2,
    to correct for the variance that residualizing removes. The columns of `sums` are x e, x e c, x x, x x c, x x c c
    for the clock c.
    """

    sums: Float64 = field(default_factory=lambda: np.zeros((CLUSTER_COUNT, _COLUMNS)))  # (C, 5)
    inside: int = 0
    outside: int = 0

    def with_comparison(self, found: Comparison, membership: Float64, clock: float) -> Contrast:
        """Return the contrast after another iteration; `membership` (n,) is 1 for the actions in the stratum, or any
        number of which the gap is the slope."""
        x, cluster = found.within(membership), found.actions.cluster
        # Of a stratum its members, also where all are; of a number, such as the length, the actions above the mean.
        inside = membership > membership.mean() if np.ptp(membership) > 0 else membership == 1
        excess = found.within(found.excess)
        weight = 1 / np.sqrt(np.maximum(1 - leverage(x, cluster, found.group), TINY))
        xe = weight * np.bincount(cluster, x * excess, CLUSTER_COUNT)
        xx = weight * np.bincount(cluster, x * x, CLUSTER_COUNT)
        new = np.column_stack([xe, xe * clock, xx, xx * clock, xx * clock**2])
        members = int(inside.sum())
        return replace(
            self,
            sums=self.sums + new,
            inside=self.inside + members,
            outside=self.outside + len(inside) - members,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of non-empty clusters as JSON values."""
        return {"sums": sums_state(self.sums), "inside": self.inside, "outside": self.outside}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Contrast:
        return cls(**{**state, "sums": sums_from_state(state["sums"], _COLUMNS)})

    @property
    def clock(self) -> float:
        """The weighted mean time of the evidence on the gap."""
        totals = self.sums.sum(axis=0)
        return float(totals[3] / totals[2])

    @property
    def gap(self) -> SlopeEstimate | None:
        """The gap, averaged over iterations; None if there is too little data."""
        return estimate_slope(self.sums[:, 0], self.sums[:, 2])

    @property
    def growth(self) -> SlopeEstimate | None:
        """Growth of the gap in points per tick of the clock; None if there is too little data."""
        gap = self.gap
        if gap is None:
            return None
        xe, xec, xx, xxc, xxcc = self.sums.T
        middle = self.clock
        # Products x (c - m) (e - gap x) and squares (x (c - m))^2, for the mean time m, multiplied out: sums hold no m.
        return estimate_slope(
            xec - middle * xe - gap.value * (xxc - middle * xx), xxcc - 2 * middle * xxc + middle**2 * xx
        )


def leverage(x: Float64, cluster: Int64, group: Int64) -> Float64:
    """Share (C,) of the squares of x, residuals within groups, that the means of the groups take of every cluster."""
    squares = np.bincount(cluster, x * x, CLUSTER_COUNT)
    pairs, place = np.unique(np.column_stack([cluster, group]), axis=0, return_inverse=True)
    sizes = np.bincount(np.unique(group, return_inverse=True)[1])[np.unique(pairs[:, 1], return_inverse=True)[1]]
    # The mean of a group takes of a cluster's squares the square of its sum in that group, divided by the group's size.
    explained = np.bincount(pairs[:, 0], np.bincount(place.reshape(-1), x) ** 2 / sizes, CLUSTER_COUNT)
    return np.divide(explained, squares, out=np.zeros(CLUSTER_COUNT), where=squares > TINY)
