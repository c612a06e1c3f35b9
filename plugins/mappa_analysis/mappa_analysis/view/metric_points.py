"""Metrics of a run over its iterations, by their flat names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mappa_analysis.view.chart import Point

IterationMetrics = Sequence[tuple[int, Mapping[str, float]]]
"""The number of finished iterations and the metrics of the last of them, for every iteration."""


def last_iteration(iterations: IterationMetrics) -> int:
    """The last iteration, at least 1: the end of an axis."""
    return max([number for number, _ in iterations] + [1])


def names_between(iterations: IterationMetrics, start: str, end: str) -> list[str]:
    """The parts of metric names between the prefix `start` and the suffix `end`, sorted."""
    known = set[str]().union(*(metrics for _, metrics in iterations))
    names = (name for name in known if name.startswith(start) and name.endswith(end))
    return sorted(name.removeprefix(start).removesuffix(end) for name in names)


def metric_points(iterations: IterationMetrics, name: str) -> list[Point]:
    """The points of one metric, at the iterations that have it."""
    return [(number, metrics[name]) for number, metrics in iterations if name in metrics]
