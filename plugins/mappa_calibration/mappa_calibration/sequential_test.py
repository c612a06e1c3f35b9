"""Group-sequential test with alpha spending."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from mappa_calibration.slope_estimate import TINY, SlopeEstimate

MIN_INFORMATION_GROWTH = 1.02
MAX_CRITICAL_VALUE = 12.0
"""A normal deviate of negligible probability (1e-33): the critical value before any alpha is spent."""
QUADRATURE_NODES = 128
_STATE = {
    "alpha": "alpha", "scale": "scale", "information": "information", "bar": "critical_value", "passed": "significant"
}  # fmt: skip
"""Key in a checkpoint -> field of a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialTest:
    """A two-sided test of one parameter, repeated over the iterations of a run.

    `alpha` is the chance of any false positive over all analyses. It is spent as information (1 / squared standard
    error) accumulates, `alpha * (1 - 1 / sqrt(1 + information * scale**2))` in total so far (alpha spending: Lan and
    DeMets 1983), so the number of analyses need not be known. `scale` is the effect size that the test is tuned to: 30
    % of alpha is spent when the standard error has come down to it.

    The alpha that an analysis may spend sets its critical value z: P(|Z| >= z and |Z'| < previous critical value) for
    normal deviates whose correlation is the square root of the ratio of their informations. The sum over all analyses
    bounds the chance that any critical value is exceeded (Hunter 1976, Worsley 1982). A new critical value is computed
    when information has grown by 2 %; until then the old one adds less to the chance than `alpha` has to spare.
    """

    alpha: float
    scale: float
    information: float = 0.0
    critical_value: float = MAX_CRITICAL_VALUE
    significant: bool = False  # Whether the last estimate reached its critical value.

    def update(self, estimate: SlopeEstimate) -> SequentialTest:
        if estimate.standard_error <= TINY:
            # Judgements that agree to the last digit, so far: it would spend all alpha, and leave none for the rest.
            return replace(self, significant=abs(estimate.value) > TINY)
        information = estimate.information
        if information < MIN_INFORMATION_GROWTH * self.information:
            return replace(self, significant=estimate.z >= self.critical_value)
        spend = self._spent_alpha(information) - self._spent_alpha(self.information)
        correlation = math.sqrt(self.information / information)
        critical_value = solve_critical_value(spend, correlation=correlation, last=self.critical_value)
        significant = estimate.z >= critical_value
        return replace(self, information=information, critical_value=critical_value, significant=significant)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values, under the keys that checkpoints hold."""
        return {key: getattr(self, name) for key, name in _STATE.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SequentialTest:
        return cls(**{name: state[key] for key, name in _STATE.items()})

    def _spent_alpha(self, information: float) -> float:
        return self.alpha * (1 - 1 / math.sqrt(1 + information * self.scale**2))


def solve_critical_value(spend: float, *, correlation: float, last: float) -> float:
    """Solve P(|Z| >= z and |Z'| < last) = `spend` for z, where Z and Z' are normal deviates with this `correlation`."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    nodes, weights = _quadrature(QUADRATURE_NODES)
    # P(Z >= z given Z') by Gauss and Legendre over Z' in (-last, last), hence the factor `last`; 2 is for both signs.
    before = last * nodes
    density = 2 * last * weights * np.exp(-(before**2) / 2) / math.sqrt(2 * math.pi)
    rest = math.sqrt(1 - correlation**2)
    return float(
        brentq(lambda z: density @ ndtr((correlation * before - z) / rest) - spend, 0.0, MAX_CRITICAL_VALUE, xtol=1e-6)
    )


_quadrature = cache(np.polynomial.legendre.leggauss)  # nodes and weights on [-1, 1]
