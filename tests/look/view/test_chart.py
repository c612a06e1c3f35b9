"""Where a chart puts things."""

from hypothesis import given
from hypothesis import strategies as st

from mappa.look.view.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    _round_steps,
    build_chart,
)


def test_values_land_on_the_pixels_that_they_should():
    drawn = build_chart(
        "t", {"a": [(0, 0), (10, 1)]}, x_high=10, y_high=1, y_labels={0.5: "half"}, intervals=[(10, 0.5, 0.25, None)]
    )
    (line,) = drawn.lines
    assert line.path == f"M{LEFT},{HEIGHT - BOTTOM} L{WIDTH - RIGHT},{TOP}"
    (tick,) = drawn.y_ticks
    assert tick.at == (HEIGHT - BOTTOM + TOP) / 2
    (bar,) = drawn.error_bars
    assert (bar.x, bar.y, bar.high) == (WIDTH - RIGHT, tick.at, None)
    assert bar.low > bar.y


def test_a_line_of_one_point_is_a_dot_around_it():
    (line,) = build_chart("t", {"a": [(0, 0)]}, x_high=1, y_high=1, y_labels={}).lines
    x, y = LEFT, HEIGHT - BOTTOM
    assert line.path == f"M{x - 2},{y} a2,2 0 1 0 4,0 a2,2 0 1 0 -4,0"


def test_a_series_without_points_is_left_out():
    assert build_chart("t", {"a": []}, x_high=1, y_high=1, y_labels={}).lines == ()


def test_a_scale_of_one_value_does_not_divide_by_zero():
    assert Scale(3, 3, 0, 100)(3) == 0


@given(st.integers(1, 100_000))
def test_ticks_are_few_and_within_the_axis(high):
    ticks = _round_steps(high)
    assert ticks[0] == 0 and ticks[-1] <= high and 1 <= len(ticks) <= 7
