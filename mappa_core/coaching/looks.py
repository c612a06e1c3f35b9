"""Looking again and again without crying wolf: the bar of a test that is repeated while evidence comes in."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from mappa_core.coaching.gaps import Estimate
from mappa_core.records import Float64

WORTH = 1.02
"""Growth of information that is worth a new bar."""
NEVER = 12.0
"""A normal deviate that is as good as impossible (1e-33): the bar where nothing was spent yet."""
NODES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """A two-sided test of one parameter, repeated over the iterations of a run.

    `alpha` is the chance that it ever finds what is not there. It is spent as information (1 / squared error) comes in,
    `alpha * (1 - 1 / sqrt(1 + information * scale**2))` in all so far (alpha spending: Lan and DeMets 1983), so neither
    the number of looks nor the length of the run has to be known. `scale` is the size, in the parameter's own unit,
    that the test is tuned to: three tenths are spent by the time that the error is as small.

    What a look may spend sets its `bar` z: P(|Z| >= z and |Z'| < bar of the look before) for normal deviates whose
    correlation is the square root of the ratio of their informations, as it is for efficient estimates. Summed over all
    bars this bounds the chance that one of them is passed (Hunter 1976, Worsley 1982). A new bar is set when
    information has grown by a fiftieth. Until then the old one stands, which adds less to the chance than `alpha` has
    to spare.
    """

    alpha: float
    scale: float
    information: float = 0.0
    bar: float = NEVER
    passed: bool = False
    """Whether the last look passed its bar."""

    def after(self, estimate: Estimate) -> Looks:
        """The test after a look at `estimate`."""
        information = estimate.information
        if information < WORTH * self.information:
            return replace(self, passed=estimate.z >= self.bar)
        spend = self._spent(information) - self._spent(self.information)
        bar = bar_of(spend, correlation=math.sqrt(self.information / information), last=self.bar)
        return replace(self, information=information, bar=bar, passed=estimate.z >= bar)

    def _spent(self, information: float) -> float:
        return self.alpha * (1 - 1 / math.sqrt(1 + information * self.scale**2))


def bar_of(spend: float, *, correlation: float, last: float) -> float:
    """The z for which P(|Z| >= z and |Z'| < last) is `spend`, Z and Z' being normal deviates of that `correlation`."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    nodes, weights = _quadrature()
    before = last * nodes
    density = 2 * last * weights * np.exp(-(before**2) / 2) / math.sqrt(2 * math.pi)
    rest = math.sqrt(1 - correlation**2)
    return float(brentq(lambda z: density @ ndtr((correlation * before - z) / rest) - spend, 0.0, NEVER, xtol=1e-6))


@cache
def _quadrature() -> tuple[Float64, Float64]:
    """Nodes and weights of Gauss and Legendre on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return nodes, weights
