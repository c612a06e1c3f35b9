from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.credit.ragged import element_indices, lengths_to_offsets, returns_to_go

rows_of_numbers = st.lists(st.lists(st.floats(-10, 10), max_size=20), max_size=8)


def slow_returns(row: list[float], gamma: float) -> list[float]:
    returns, running = [], 0.0
    for value in reversed(row):
        running = value + gamma * running
        returns.append(running)
    return returns[::-1]


def flat(rows: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(list(chain(*rows)), np.float64), lengths_to_offsets(np.array([len(row) for row in rows], np.int64))


def test_returns_by_hand() -> None:
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    returns = returns_to_go(values, np.array([0, 3, 3, 5]), 0.5)
    assert returns.tolist() == [1 + 1 + 1, 2 + 2, 4, 8 + 8, 16]
    assert values.tolist() == [1, 2, 4, 8, 16]


@given(rows_of_numbers, st.floats(0, 1))
def test_returns_equal_a_loop_over_each_row_in_every_bit(rows: list[list[float]], gamma: float) -> None:
    values, offsets = flat(rows)
    expected = list(chain(*(slow_returns(row, gamma) for row in rows)))
    assert returns_to_go(values, offsets, gamma).tolist() == expected


@given(rows_of_numbers, st.floats(0, 1))
def test_returns_of_a_row_do_not_depend_on_its_neighbours_in_any_bit(rows: list[list[float]], gamma: float) -> None:
    values, offsets = flat(rows)
    returns = returns_to_go(values, offsets, gamma)
    for row, start, end in zip(rows, offsets[:-1], offsets[1:], strict=True):
        alone = returns_to_go(*flat([row]), gamma)
        assert np.array_equal(returns[start:end], alone)


@given(st.lists(st.integers(0, 5), max_size=8), st.data())
def test_places_are_the_rows_elements_in_the_order_given(lengths: list[int], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8)) if lengths else []
    offsets = lengths_to_offsets(np.array(lengths, np.int64))
    expected = [place for row in rows for place in range(offsets[row], offsets[row + 1])]
    assert element_indices(offsets, np.array(rows, np.int64)).tolist() == expected
