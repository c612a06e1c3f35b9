"""What tells a preference of the coach from merit: scores less a second judgement, or less what the outcome shows.

- *References*: the coach, or another one, judges the same action without what it may like. What both say cancels.
- *Siblings*: actions that were sampled from one prompt met the same state, so that their outcomes differ by what they
  are worth. Points are held against outcomes at the price at which the coach's own points buy outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mappa_calibration.actions import CLUSTER_COUNT, LENGTH, ActionColumns, Float64, Int64
from mappa_calibration.slope_estimate import SlopeEstimate, estimate_slope, sums_from_state, sums_state

MIN_PRICE_Z = 4.0
"""Standard errors that the slope of outcome on score is away from 0 before points are held against outcomes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Actions of one agent and iteration, comparable within each group. `excess` are points beyond merit, up to a
    constant of the group; `merit` is the score of siblings within prompt and strata, 0 for references. The price of an
    outcome, in points, is known up to `price_error`."""

    actions: ActionColumns
    excess: Float64  # (n,)
    outcome: Float64  # (n,) 0 for references
    merit: Float64  # (n,)
    group: Int64  # (n,)
    price_error: float = 0.0

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
    zero = np.zeros(len(known.points))
    return Comparison(
        actions=known, excess=known.points - known.reference, outcome=zero, merit=zero, group=zero.astype(np.int64)
    )


def find_siblings(actions: ActionColumns) -> ActionColumns:
    """Return the actions with a known outcome that share their prompt with another one."""
    known = actions.select(np.isfinite(actions.outcome))
    count = np.bincount(known.prompt, minlength=1)
    return known.select(count[known.prompt] > 1)


def compare_siblings(siblings: ActionColumns, price: Price, strata: Sequence[str]) -> Comparison | None:
    """Compare the scores of siblings with their outcomes; None while the price of an outcome is unknown."""
    found = price.points
    if found is None or not len(siblings.points):
        return None
    return Comparison(
        actions=siblings,
        excess=siblings.points - found.value * siblings.outcome,
        outcome=siblings.outcome,
        merit=merit_within(siblings, strata),
        group=siblings.prompt,
        price_error=found.standard_error,
    )


def merit_within(siblings: ActionColumns, strata: Sequence[str]) -> Float64:
    """Scores (n,) within prompts, less what strata and length explain of them."""
    score = demean(siblings.points, siblings.prompt)
    regressors = demean(design(siblings, strata)[1], siblings.prompt)
    if not regressors.size:
        return score
    left, singular, _ = np.linalg.svd(regressors, full_matrices=False)
    # Strata that say the same, or that do not differ within any prompt, have no direction of their own.
    basis = left[:, singular > 1e-9 * np.sqrt(len(score))]
    found: Float64 = score - basis @ (basis.T @ score)
    return found


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


DOUBLING = "twice as long"
"""Stratum of a gap by length: points per doubling of the tokens."""


def log_tokens(actions: ActionColumns) -> Float64:
    """Binary logarithm of the tokens (n,); an unknown number is the mean of the others."""
    known = np.isfinite(actions.tokens) & (actions.tokens > 0)
    if not known.any():
        return np.zeros(len(actions.tokens))
    logs = np.log2(np.where(known, actions.tokens, 1.0))
    return np.where(known, logs, logs[known].mean())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Price:
    """Points of the coach per unit of outcome: the inverse of the slope of the outcome on the score, within prompt and
    strata. The outcome may be as noisy as it likes, and an action of one score need not succeed always: that is in the
    slope. Noise of the score would flatten it (errors in variables), so its variance, known from second judgements of
    the same coach, is subtracted. Sums decay."""

    sums: Float64 = field(default_factory=lambda: np.zeros((CLUSTER_COUNT, 2)))  # merit by outcome, merit squared
    rows: float = 0.0  # Degrees of freedom of merit.
    again: float = 0.0  # Actions that were judged twice.
    squares: float = 0.0  # Sum of the squared differences of their two scores.

    def with_actions(self, siblings: ActionColumns, strata: Sequence[str], decay: float) -> Price:
        """Return the price after another iteration."""
        merit = merit_within(siblings, strata)
        new = [np.bincount(siblings.cluster, merit * column, CLUSTER_COUNT) for column in (siblings.outcome, merit)]
        twice = siblings.points - siblings.reference
        known = twice[np.isfinite(twice)]
        free = len(merit) - len(set(siblings.prompt.tolist())) - design(siblings, strata)[1].shape[1]
        return replace(
            self,
            sums=decay * self.sums + np.column_stack(new),
            rows=decay * self.rows + max(free, 0),
            again=decay * self.again + len(known),
            # Less their mean: the second judgement may be stricter throughout, which is no noise.
            squares=decay * self.squares + (float(((known - known.mean()) ** 2).sum()) if len(known) else 0.0),
        )

    @property
    def noise(self) -> float:
        """Variance of the coach's own score of one action; 0 if none was judged twice."""
        # The difference of two scores has twice the variance of one.
        return self.squares / (2 * self.again) if self.again else 0.0

    @property
    def points(self) -> SlopeEstimate | None:
        """Points per unit of outcome; None while the slope is not clearly above 0."""
        products, squares = self.sums.T
        total = float(squares.sum())
        signal = total - self.rows * self.noise
        slope = estimate_slope(products, squares)
        if slope is None or signal <= 0 or slope.value < MIN_PRICE_Z * slope.standard_error:
            return None
        # Noise of the score flattens the slope by signal / total; the price is the inverse of the slope without it.
        value = signal / total / slope.value
        return replace(slope, value=value, standard_error=value * slope.standard_error / slope.value)

    def state_dict(self) -> dict[str, Any]:
        return {"sums": sums_state(self.sums), "rows": self.rows, "again": self.again, "squares": self.squares}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Price:
        return cls(**{**state, "sums": sums_from_state(state["sums"], 2)})
