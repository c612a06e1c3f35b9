"""What benchmarks share: their arguments, the CPU time of a process, the interval of a median, the last line."""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def parse_arguments(parser: argparse.ArgumentParser, **quick: int) -> argparse.Namespace:
    """Parse the arguments of a benchmark; `--quick` replaces them by the values of `quick`."""
    words = ", ".join(f"--{name} {value}" for name, value in quick.items())
    parser.add_argument("--quick", action="store_true", help=f"whether it runs, not how fast: {words}")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(quick)
    return given


def cpu_seconds() -> float:
    """User and system time so far of this process, its threads and those of its children that ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def timed(function: Callable[..., object], *arguments: Any) -> float:
    """Seconds by the clock of one call."""
    begun = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begun


def median_interval(values: NDArray[np.float64], draws: int = 10_000) -> tuple[float, float, float]:
    """The median and its 95 % bootstrap interval."""
    again = np.random.default_rng(0).choice(values, (draws, len(values)))
    low, high = np.percentile(np.median(again, axis=1), [2.5, 97.5])
    return float(np.median(values)), float(low), float(high)


def print_result(bench: str, ratios: NDArray[np.float64], *, unit: str, against: str) -> None:
    """The last line of a benchmark: one JSON object, with the median of `ratios` (one a round) and its interval."""
    ratio, low, high = (round(value, 3) for value in median_interval(ratios))
    print(json.dumps({"bench": bench, "ratio": ratio, "low": low, "high": high, "unit": unit, "against": against}))
