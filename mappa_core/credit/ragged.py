"""Arithmetic on ragged arrays: rows of different lengths laid end to end, row r at [offsets[r], offsets[r+1])."""

from __future__ import annotations

import numpy as np

from mappa_core.records import Float64, Int64


def offsets_of(lengths: Int64) -> Int64:
    """Where rows of these lengths begin and end, (R+1,)."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def places(offsets: Int64, rows: Int64) -> Int64:
    """Where the elements of `rows` lie in the flat array, row after row in the order given."""
    lengths = np.diff(offsets)[rows]
    packed = offsets_of(lengths)
    shift: Int64 = np.repeat(offsets[rows] - packed[:-1], lengths)
    return shift + np.arange(packed[-1], dtype=np.int64)


def returns_to_go(values: Float64, offsets: Int64, gamma: float) -> Float64:
    """`G_t = values_t + gamma * G_{t+1}` inside each row, (N,).

    One step back from the end in all rows at once that reach so far, the longest first: every element is touched once,
    and no row touches another's bits.
    """
    returns = values.astype(np.float64)
    lengths = np.diff(offsets)
    longest_first = np.argsort(-lengths, kind="stable")
    longest_first = longest_first[: np.count_nonzero(lengths)]
    place = offsets[1:][longest_first] - 1
    to_go = returns[place]
    # How many rows have more than t elements, for t from 1 on.
    reaching = np.cumsum(np.bincount(lengths)[::-1])[::-1][2:]
    for rows in reaching.tolist():
        place = place[:rows] - 1
        to_go = returns[place] + gamma * to_go[:rows]
        returns[place] = to_go
    return returns
