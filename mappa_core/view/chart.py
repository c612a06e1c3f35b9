"""Line charts as SVG: data in, coordinates out; the template draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 48, 150, 16, 34
Point = tuple[float, float]
IntervalPoint = tuple[float, float, float | None, float | None]
"""x, y, and the bounds of y, None where they are not known."""
Range = tuple[float, float, float]
"""x, and the bounds of y."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A named line: `path` is an SVG path in pixels, `band` one around it (empty: none), `label_y` where its name is
    written beside its end."""

    name: str
    path: str
    band: str
    label_x: float
    label_y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A point with a vertical interval (None: without one), in pixels."""

    x: float
    y: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    lines: tuple[Line, ...]
    bars: tuple[Bar, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
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
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.0
        return round(self.start + share * (self.end - self.start), 1)


def chart(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x_high: float,
    y_high: float,
    y_labels: Mapping[float, str],
    y_low: float = 0.0,
    bands: Mapping[str, Sequence[Range]] = MappingProxyType({}),
    intervals: Sequence[IntervalPoint] = (),
) -> Chart:
    """A chart over x from 0 to `x_high` and y from `y_low` to `y_high`.

    Args:
        series: points (x, y) by name, in order of x.
        bands: ranges of y around the lines of these names, cut at the edges of the chart.
        y_labels: value -> text of the ticks.
        intervals: points that are not joined by a line.
    """
    x, y = Scale(0, x_high, LEFT, WIDTH - RIGHT), Scale(y_low, y_high, HEIGHT - BOTTOM, TOP)
    drawn = [(name, [(x(a), y(b)) for a, b in points]) for name, points in series.items() if points]
    label_ys = _apart([points[-1][1] for _, points in drawn])

    return Chart(
        title=title,
        lines=tuple(
            Line(
                name=name,
                path=_path(points),
                band=_band(bands[name], x, y) if name in bands else "",
                label_x=points[-1][0] + 8,
                label_y=label_y,
            )
            for (name, points), label_y in zip(drawn, label_ys, strict=True)
        ),
        bars=tuple(
            Bar(x=x(a), y=y(b), low=None if low is None else y(low), high=None if high is None else y(high))
            for a, b, low, high in intervals
        ),
        x_ticks=tuple(Tick(at=x(value), label=f"{value:g}") for value in _round_steps(x_high)),
        y_ticks=tuple(Tick(at=y(value), label=label) for value, label in y_labels.items()),
    )


def _path(points: Sequence[Point]) -> str:
    return "M" + " L".join(f"{x:g},{y:g}" for x, y in points)


def _band(ranges: Sequence[Range], x: Scale, y: Scale) -> str:
    """There along the lower bounds and back along the upper ones; empty without any."""
    if not ranges:
        return ""
    cut = [(x(at), y(min(max(low, y.low), y.high)), y(max(min(high, y.high), y.low))) for at, low, high in ranges]
    return _path([*((at, low) for at, low, _ in cut), *((at, high) for at, _, high in reversed(cut))])


def _round_steps(high: float) -> list[float]:
    """About five round values from 0 to `high`."""
    step = next(step for magnitude in range(7) for step in (10.0**magnitude, 2 * 10.0**magnitude, 5 * 10.0**magnitude)
                if high / step <= 6)  # fmt: skip
    return [step * index for index in range(int(high / step) + 1)]


def _apart(ys: Sequence[float], least: float = 14.0) -> list[float]:
    """Move labels down until no two overlap, keeping their order."""
    placed: dict[int, float] = {}
    previous = float("-inf")
    for index in sorted(range(len(ys)), key=lambda i: ys[i]):
        previous = max(ys[index], previous + least)
        placed[index] = previous
    return [placed[index] for index in range(len(ys))]
