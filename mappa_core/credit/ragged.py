"""Arithmetic on ragged arrays: concatenated rows of different lengths, row r at [offsets[r], offsets[r+1])."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mappa_core.records import Float64, Int64

_Scalar = TypeVar("_Scalar", bound=np.generic)


def concatenate_rows(rows: Sequence[NDArray[_Scalar]], dtype: type[_Scalar]) -> NDArray[_Scalar]:
    """Concatenate rows, of which there may be none."""
    # With an empty one in front, as numpy concatenates no empty list.
    return np.concatenate([np.empty(0, dtype), *rows], dtype=dtype)


def rows_to_offsets(rows: Iterable[Sized]) -> Int64:
    """Return the start and end offsets of these rows once they are concatenated, (R+1,)."""
    return lengths_to_offsets(np.array([len(row) for row in rows], dtype=np.int64))


def lengths_to_offsets(lengths: Int64) -> Int64:
    """Return the start and end offsets of rows of these lengths, (R+1,)."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def element_indices(offsets: Int64, rows: Int64) -> Int64:
    """Return the flat indices of the elements of `rows`, row by row in the given order."""
    lengths = np.diff(offsets)[rows]
    packed = lengths_to_offsets(lengths)
    # An element's index here and there differ by what its row was moved. So no loop over rows is needed.
    shift: Int64 = np.repeat(offsets[rows] - packed[:-1], lengths)
    return shift + np.arange(packed[-1], dtype=np.int64)


def returns_to_go(values: Float64, offsets: Int64, gamma: float) -> Float64:
    """Compute `G_t = values_t + gamma * G_{t+1}` within each row, (N,).

    Steps back from the ends of all rows at once, longest rows first: the result of a row does not depend on the other
    rows, bit for bit.
    """
    returns = values.astype(np.float64)
    lengths = np.diff(offsets)
    # Empty rows come last and are left out: they have no last element to begin with.
    longest_first = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    place = offsets[1:][longest_first] - 1  # The last element of each row.
    to_go = returns[place]
    # rows_with_length[t]: number of rows of at least t elements; from t = 2 on, as every row has its last already.
    rows_with_length = np.cumsum(np.bincount(lengths)[::-1])[::-1]
    for rows in rows_with_length[2:].tolist():
        # Rows that are at their first element drop out at the end, because they are the shortest of those left.
        place = place[:rows] - 1
        to_go = returns[place] + gamma * to_go[:rows]
        returns[place] = to_go
    return returns
