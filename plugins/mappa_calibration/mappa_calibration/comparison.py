"""What a score is compared with: a second judgement of the same action, or the scores of its siblings.

- *References*: the coach, or another one, judges the same action without what it may like. What both say cancels, and
  so does every error that is no part of what differs between the two judgements.
- *Siblings*: actions that were sampled from one prompt met the same state, and differ in what they are worth. Nothing
  tells that worth from a preference, or from an error that the coach repeats whenever it judges the same action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mappa_calibration.actions import LENGTH, ActionColumns, Float64, Int64

DOUBLING = "twice as long"
"""Stratum of a gap by length: points per doubling of the tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Actions of one agent and iteration, comparable within each group. `excess` are points beyond a second judgement,
    or beyond the siblings, up to a constant of the group."""

    actions: ActionColumns
    excess: Float64  # (n,)
    group: Int64  # (n,)

    def within(self, values: NDArray[Any]) -> Float64:
        """Return `values`, (n,) or (n, k), less their means within groups."""
        return demean(values.astype(np.float64), self.group)


def demean(values: Float64, group: Int64) -> Float64:
    """Return `values`, (n,) or (n, k), less their means within groups (n,)."""
    _, place = np.unique(group, return_inverse=True)
    count = np.bincount(place)
    columns = values.reshape(len(values), -1)
    means = np.column_stack([np.bincount(place, column) / count for column in columns.T])[place]
    found: Float64 = (columns - means).reshape(values.shape)
    return found


def compare_references(actions: ActionColumns) -> Comparison | None:
    """Compare scores with second judgements of the same actions; None if there is none."""
    known = actions.select(np.isfinite(actions.reference))
    if not len(known.points):
        return None
    return Comparison(
        actions=known, excess=known.points - known.reference, group=np.zeros(len(known.points), dtype=np.int64)
    )


def compare_siblings(actions: ActionColumns) -> Comparison | None:
    """Compare the scores of actions that share their prompt with another one; None if there is none."""
    count = np.bincount(actions.prompt, minlength=1)
    own = actions.select(count[actions.prompt] > 1)
    return Comparison(actions=own, excess=own.points, group=own.prompt) if len(own.points) else None


def design(actions: ActionColumns, strata: Sequence[str]) -> tuple[list[tuple[str, str]], Float64]:
    """Columns (n, k) of the strata of several stratifiers, with their names: 1 for an action of the stratum; of
    `length` one, the binary logarithm of the tokens."""
    names: list[tuple[str, str]] = []
    columns: list[Float64] = []
    for stratifier in strata:
        if stratifier == LENGTH:
            names.append((LENGTH, DOUBLING))
            columns.append(log_tokens(actions))
            continue
        found = actions.column(stratifier)
        for stratum in sorted({str(name) for name in found if name is not None}):
            names.append((stratifier, stratum))
            columns.append((found == stratum).astype(np.float64))
    return names, np.column_stack(columns) if columns else np.zeros((len(actions.points), 0))


def log_tokens(actions: ActionColumns) -> Float64:
    """Binary logarithm of the tokens (n,); an unknown number is the mean of the others."""
    known = np.isfinite(actions.tokens) & (actions.tokens > 0)
    if not known.any():
        return np.zeros(len(actions.tokens))
    logs = np.log2(np.where(known, actions.tokens, 1.0))
    return np.where(known, logs, logs[known].mean())
