"""Two judgements of one action in the simulations of `preferences.py`: what they share, and what each has alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mappa_calibration.actions import Float64

if TYPE_CHECKING:
    from preferences import Case


def judge_twice(case: Case, honest: Float64, bonus: Float64, draw: Callable[[int], Float64]) -> tuple[Float64, Float64]:
    """Points of the coach for every action, and those of what judges it again, which are NaN where nothing does. `draw`
    gives errors and noise of variance 1."""
    size = len(honest)
    error, other = case.error * draw(size), case.error * draw(size)
    points = honest + bonus + error + case.noise * draw(size)
    if case.method == "siblings":
        return points, np.full(size, np.nan)
    # A blind judgement is of other words by the same coach: half of the variance of its error is what it was.
    again = (error + other) / np.sqrt(2) if case.method == "blind" else other
    return points, honest + again + case.noise * draw(size)
