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

    By doubling: after k rounds every element holds the discounted sum of itself and its 2^k - 1 successors in the row,
    so it takes as many vector operations as the longest row has binary digits, and no row touches another's bits.
    """
    returns = values.astype(np.float64)
    to_come = np.repeat(offsets[1:], np.diff(offsets)) - np.arange(len(values)) - 1
    reach, discount = 1, gamma
    here = np.flatnonzero(to_come >= reach)
    while len(here):
        returns[here] += discount * returns[here + reach]
        reach, discount = 2 * reach, discount * discount
        here = here[to_come[here] >= reach]
    return returns
