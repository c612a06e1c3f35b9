"""Line charts as SVG: computes coordinates from data; the template draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

import numpy as np

from mappa.look.arrays import Float64
from mappa_core import MAX_SCORE

PERCENT_TICKS = {0.0: "0 %", 0.25: "25 %", 0.5: "50 %", 0.75: "75 %", 1.0: "100 %"}
SCORE_TICKS = {0.0: "0", 2.5: "2.5", 5.0: "5", 7.5: "7.5", MAX_SCORE: "10"}
WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 74, 24, 12, 48
DOT = 2
"""Radius of a line of one point."""
Point = tuple[float, float]
IntervalPoint = tuple[float, float, float | None, float | None]
"""x, y, and the bounds of y, None if unknown."""
Range = tuple[float, float, float]
"""x, and the bounds of y."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A named line: `path` is an SVG path in pixels, `band` the path of its interval (empty: none). `colour` is its
    index among all series, including those without points."""

    name: str
    colour: int
    path: str
    band: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBar:
    """A point with a vertical interval (None: no interval), in pixels."""

    x: float
    y: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    lines: tuple[Line, ...]
    error_bars: tuple[ErrorBar, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_label: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM
    top: int = TOP


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values in [low, high] to pixels in [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) * self._pixels, 1)

    def map_array(self, values: Float64) -> Float64:
        """Map an array of values."""
        return np.round(self.start + (values - self.low) * self._pixels, 1)

    @property
    def _pixels(self) -> float:
        """Pixels per unit."""
        span = self.high - self.low
        return (self.end - self.start) / span if span else 0.0


def build_chart(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x_high: float,
    y_high: float,
    y_labels: Mapping[float, str],
    y_low: float = 0.0,
    bands: Mapping[str, Sequence[Range]] = MappingProxyType({}),
    intervals: Sequence[IntervalPoint] = (),
    x_label: str = "iteration",
) -> Chart:
    """Build a chart over x from 0 to `x_high` and y from `y_low` to `y_high`.

    Args:
        series: points (x, y) by name, sorted by x.
        bands: ranges of y around the lines of these names, clipped to the chart.
        y_labels: texts of the ticks by value.
        intervals: points that are not connected by a line.
    """
    x, y = Scale(0, x_high, LEFT, WIDTH - RIGHT), Scale(y_low, y_high, HEIGHT - BOTTOM, TOP)
    drawn = [(colour, name, _to_pixels(series[name], x, y)) for colour, name in enumerate(series) if series[name]]
    return Chart(
        title=title,
        lines=tuple(
            Line(
                name=name,
                colour=colour,
                path=_path(points),
                band=_band(bands[name], x, y) if name in bands else "",
            )
            for colour, name, points in drawn
        ),
        error_bars=tuple(
            ErrorBar(x=x(a), y=y(b), low=None if low is None else y(low), high=None if high is None else y(high))
            for a, b, low, high in intervals
        ),
        x_ticks=tuple(Tick(at=x(value), label=f"{value:g}") for value in _round_steps(x_high)),
        y_ticks=tuple(Tick(at=y(value), label=label) for value, label in y_labels.items()),
        x_label=x_label,
    )


def build_fitted_chart(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x_high: float,
    bands: Mapping[str, Sequence[Range]] = MappingProxyType({}),
) -> Chart:
    """Build a chart whose y axis starts at 0, or at a round value below negative ones, and ends at a round value above
    all. Values that are not finite are left out."""
    finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in series.items()}
    values = [y for points in finite.values() for _, y in points]
    low, high = min([0.0, *values]), max([0.0, *values])
    step = _round_step((high - low) / 4 or 0.25)
    first, end = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    ticks = [step * number for number in range(first, end + 1)]
    return build_chart(
        title,
        finite,
        x_high=x_high,
        y_low=ticks[0],
        y_high=ticks[-1],
        y_labels={tick: _short_number(tick) for tick in ticks},
        bands=bands,
    )


def _short_number(value: float) -> str:
    """A number as a label of the axis, which has room for eight characters."""
    size = abs(value)
    if 0 < size < 1e-3:
        mantissa, exponent = f"{value:.5e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value / 1e6:g} M" if size >= 1e6 else f"{value / 1e3:g} k" if size >= 1e4 else f"{value:.6g}"


def _round_step(minimum: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least `minimum`."""
    power = 10.0 ** math.floor(math.log10(minimum))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= minimum * (1 - 1e-9))


def _to_pixels(points: Sequence[Point], x: Scale, y: Scale) -> list[Point]:
    """Convert points to pixels, rounded as by `Scale`; vectorized, since a long run has many."""
    values = np.asarray(points, dtype=np.float64)
    across, up = (scale.map_array(values[:, column]) for column, scale in enumerate((x, y)))
    return list(zip(across.tolist(), up.tolist(), strict=True))


def _path(points: Sequence[Point]) -> str:
    """The path through points; around a single one, of which no line could be seen, a circle."""
    if len(points) == 1:
        ((x, y),) = points
        half = f"a{DOT},{DOT} 0 1 0"
        return f"M{x - DOT:g},{y:g} {half} {2 * DOT},0 {half} {-2 * DOT},0"
    return "M" + " L".join(["%g,%g"] * len(points)) % tuple(chain.from_iterable(points))


def _band(ranges: Sequence[Range], x: Scale, y: Scale) -> str:
    """The outline of a band: forward along the lower bounds, back along the upper ones; empty without ranges."""
    if not ranges:
        return ""
    clipped = [(x(at), y(min(max(low, y.low), y.high)), y(max(min(high, y.high), y.low))) for at, low, high in ranges]
    return _path([*((at, low) for at, low, _ in clipped), *((at, high) for at, _, high in reversed(clipped))])


def _round_steps(high: float) -> list[float]:
    """About five round values from 0 to `high`."""
    step = next(step for magnitude in range(7) for step in (10.0**magnitude, 2 * 10.0**magnitude, 5 * 10.0**magnitude)
                if high / step <= 6)  # fmt: skip
    return [step * index for index in range(int(high / step) + 1)]
