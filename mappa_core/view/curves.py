"""Figures of a run over its iterations, by their flat names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mappa_core.view.chart import Point

Iterations = Sequence[tuple[int, Mapping[str, float]]]
"""What a store has of a run: iterations done and the metrics of the last of them."""


def last(iterations: Iterations) -> int:
    """The last iteration, 1 where there is none yet: where an axis ends."""
    return max([number for number, _ in iterations] + [1])


def between(iterations: Iterations, start: str, end: str) -> list[str]:
    """What stands between the two in names of metrics, sorted."""
    known = set[str]().union(*(metrics for _, metrics in iterations))
    names = (name for name in known if name.startswith(start) and name.endswith(end))
    return sorted(name.removeprefix(start).removesuffix(end) for name in names)


def curve(iterations: Iterations, name: str) -> list[Point]:
    """One figure wherever it is known."""
    return [(number, metrics[name]) for number, metrics in iterations if name in metrics]
