"""Slopes estimated from sums by cluster. Shapes: C = CLUSTER_COUNT."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mappa_calibration.actions import CLUSTER_COUNT, Float64

TINY = 1e-9  # Smaller values are rounding errors.
_CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeEstimate:
    """An estimate with its standard error and the degrees of freedom of that error."""

    value: float
    standard_error: float
    degrees_of_freedom: float

    @property
    def information(self) -> float:
        return self.standard_error**-2

    @property
    def z(self) -> float:
        """The normal deviate as probable as value / standard error under Student's distribution."""
        from scipy.special import ndtri, stdtr

        # By the lower tails: 1 minus a small probability would lose all of its digits.
        return float(-ndtri(stdtr(self.degrees_of_freedom, -abs(self.value) / self.standard_error)))

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval."""
        from scipy.special import stdtrit

        return float(stdtrit(self.degrees_of_freedom, (1 + _CONFIDENCE_LEVEL) / 2)) * self.standard_error


def estimate_slope(products: Float64, squares: Float64) -> SlopeEstimate | None:
    """Estimate a slope from sums by cluster, (C,): sum of `products` over sum of `squares`. None if there is only one
    cluster. The variance is the sum over clusters of their squared residual products, each divided by one minus its
    share of the squares (HC2). The degrees of freedom are the effective number of clusters (Carter, Schnepel and
    Steigerwald 2017, for homoskedastic errors), minus one."""
    total = float(squares.sum())
    if total < TINY:
        return None
    value, share = float(products.sum()) / total, squares / total
    effective = 1 / float(share @ share)
    if effective < 1 + TINY:
        return None
    residual = products - value * squares
    standard_error = math.sqrt((residual**2 / (1 - share)).sum()) / total
    # Clusters that agree to the last digit have an error of 0, by which `z` and `information` could not divide.
    return SlopeEstimate(value=value, standard_error=max(standard_error, TINY), degrees_of_freedom=effective - 1)


def sums_state(sums: Float64) -> dict[str, list[float]]:
    """Rows of non-empty clusters as JSON values."""
    return {str(cluster): sums[cluster].tolist() for cluster in np.flatnonzero(sums.any(axis=1))}


def sums_from_state(state: Mapping[str, Any], columns: int) -> Float64:
    """Sums (C, columns) that `sums_state` returned."""
    sums = np.zeros((CLUSTER_COUNT, columns))
    for cluster, row in state.items():
        sums[int(cluster)] = row
    return sums
