"""Weights of a conditional logit, fitted to labels (McFadden 1974): the decisive action against the others of its play.

The fit is drawn to given weights by a normal prior around them. With few labels little moves, and how much may move is
chosen by the labels themselves: the variance of the prior is the one with the highest likelihood of plays whose
question was left out, and none where that is not clearly better than the given weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mappa_coach_evidence.evidence import weigh

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]

VARIANCES = (0.1, 0.3, 1.0)
"""Variances of the prior that are tried; a weight of 1 multiplies the odds by 2.7."""
NEWTON_STEPS = 30
TOLERANCE = 1e-6
MAX_SINGLE_QUESTIONS = 20
"""Up to so many questions each is left out alone; more are dealt to `FOLDS` folds."""
FOLDS = 10
IMPOSSIBLE = 1e-6
"""The least chance that a play counts with, so that one cannot outweigh all others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """A labelled play as a choice among its m actions that can be blamed, at `places`. `features` are theirs;
    `decisive` (m,) are the labelled steps or, where the label has none, the actions of the guilty agent;
    `by_guilty` (m,) are those. Plays of one `question` are no independent evidence."""

    question: str
    places: tuple[int, ...]
    features: tuple[Mapping[str, float], ...]
    decisive: Bool
    by_guilty: Bool
    has_step: bool

    @property
    def is_informative(self) -> bool:
        """Whether the label tells some of the actions from others."""
        return bool(self.decisive.any() and not self.decisive.all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted weights by feature, and the variance of the prior; 0: the given weights are as good."""

    weights: Mapping[str, float]
    variance: float


def fit_weights(choices: Sequence[Choice], given: Mapping[str, float]) -> Fit:
    """Fit the weights of all features of `choices`, drawn to the `given` ones; a feature without one is drawn to 0.
    Choices that are not informative say nothing."""
    variance = _choose_variance(_Table.build(_informative(choices), given))
    return Fit(weights=fit_with_variance(choices, given, variance) if variance else given, variance=variance)


def fit_with_variance(
    choices: Sequence[Choice], given: Mapping[str, float], variance: float, *, free: Collection[str] | None = None
) -> dict[str, float]:
    """Fit with one variance of the prior, above 0. Only features that are `free` may move; None: all."""
    table = _Table.build(_informative(choices), given)
    moved = table.prior + _fit_shift(table, variance, free)
    fitted = dict(zip(table.names, moved.tolist(), strict=True))
    # What no choice has keeps its given weight; what is given no weight and got none is left out.
    return {**given, **{name: weight for name, weight in fitted.items() if weight}}


def _informative(choices: Sequence[Choice]) -> list[Choice]:
    return [choice for choice in choices if choice.is_informative]


def log_odds(features: Sequence[Mapping[str, float]], weights: Mapping[str, float]) -> list[float]:
    """The log-odds of each action of a play, up to a constant of the play."""
    return [sum(weights[name] * value for name, value in each.items() if name in weights) for each in features]


def deal_folds(questions: Sequence[str]) -> Int64:
    """The fold of each play (n,): plays of one question share one."""
    ids = np.unique(np.asarray(questions), return_inverse=True)[1].astype(np.int64)
    return ids if ids.max(initial=0) < MAX_SINGLE_QUESTIONS else ids % FOLDS


@dataclass(frozen=True, kw_only=True, eq=False)
class _Table:
    """The n actions of k plays, play after play: features `rows` (n, f) by `names`, the log-odds `base` (n,) of the
    prior's weights `prior` (f,), `decisive` (n,), where each play starts (k,), and its fold (k,)."""

    names: tuple[str, ...]
    prior: Float64
    rows: Float64
    decisive: Bool
    starts: Int64
    folds: Int64
    base: Float64 = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", self.rows @ self.prior)

    @classmethod
    def build(cls, choices: Sequence[Choice], given: Mapping[str, float]) -> _Table:
        names = tuple(sorted({name for choice in choices for each in choice.features for name in each}))
        columns = {name: column for column, name in enumerate(names)}
        sizes = [len(choice.features) for choice in choices]
        rows = np.zeros((sum(sizes), len(names)))
        for row, each in enumerate(each for choice in choices for each in choice.features):
            for name, value in each.items():
                rows[row, columns[name]] = value
        return cls(
            names=names,
            prior=np.array([weigh(name, given) for name in names]),
            rows=rows,
            decisive=np.concatenate([choice.decisive for choice in choices]),
            starts=np.cumsum([0, *sizes[:-1]]),
            folds=deal_folds([choice.question for choice in choices]),
        )

    @cached_property
    def plays(self) -> Int64:
        """The play of each action (n,)."""
        return np.repeat(np.arange(len(self.starts)), np.diff([*self.starts, len(self.rows)]))

    def select(self, chosen: Bool) -> _Table:
        """The table of the plays that are chosen (k,)."""
        kept = chosen[self.plays]
        sizes = np.bincount(self.plays)[chosen]
        return _Table(
            names=self.names,
            prior=self.prior,
            rows=self.rows[kept],
            decisive=self.decisive[kept],
            starts=np.cumsum([0, *sizes[:-1]]),
            folds=self.folds[chosen],
        )

    def log_likelihoods(self, shift: Float64) -> Float64:
        """The log of the chance (k,) of each play's decisive actions."""
        chance, _ = self.chances(shift)
        found: Float64 = np.add.reduceat(np.where(self.decisive, chance, 0.0), self.starts)
        likely: Float64 = np.log(np.maximum(found, IMPOSSIBLE))
        return likely

    def chances(self, shift: Float64) -> tuple[Float64, Float64]:
        """The chance (n,) of each action in its play, and that among its play's decisive actions."""
        odds = self.base + self.rows @ shift
        odds = np.exp(odds - np.maximum.reduceat(odds, self.starts)[self.plays])
        chance = odds / np.add.reduceat(odds, self.starts)[self.plays]
        # Of the decisive actions alone, so that a play whose decisive action is all but impossible divides no 0.
        among = np.where(self.decisive, odds, 0.0)
        total = np.add.reduceat(among, self.starts)[self.plays]
        return chance, np.divide(among, total, out=np.zeros_like(among), where=total > 0)


def _fit_shift(table: _Table, variance: float, free: Collection[str] | None = None) -> Float64:
    """How far the weights (f,) move from those of the prior, by Newton's method. A feature that tells no two actions of
    a play apart cannot move, and is left out of the equations."""
    lowest = np.minimum.reduceat(table.rows, table.starts)
    highest = np.maximum.reduceat(table.rows, table.starts)
    may_move = np.array([free is None or name in free for name in table.names])
    varies = np.flatnonzero((highest > lowest).any(axis=0) & may_move)
    rows, shift = table.rows[:, varies], np.zeros(len(table.names))
    precision = np.eye(len(varies)) / variance
    for _ in range(NEWTON_STEPS if len(varies) else 0):
        chance, among = table.chances(shift)
        means = np.add.reduceat(rows * chance[:, None], table.starts)
        gradient = rows.T @ (among - chance) - shift[varies] / variance
        # Of the chances alone: where a play has several decisive actions the curvature is less, and a step too short.
        curvature = precision + (rows * chance[:, None]).T @ rows - means.T @ means
        step = np.linalg.solve(curvature, gradient)
        shift[varies] += step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < TOLERANCE:
            break
    return shift


def _choose_variance(table: _Table) -> float:
    """The variance with the highest likelihood of plays that were left out; 0 unless that is higher than with the
    given weights by more than its standard error over plays (the rule of one standard error)."""
    if len(np.unique(table.folds)) < 2:
        return 0.0
    still = table.log_likelihoods(np.zeros(len(table.names)))
    gains = {variance: _leave_out(table, variance) - still for variance in VARIANCES}
    best = max(VARIANCES, key=lambda variance: float(gains[variance].sum()))
    gain = gains[best]
    error = math.sqrt(len(gain)) * float(gain.std(ddof=1))
    return best if float(gain.sum()) > error else 0.0


def _leave_out(table: _Table, variance: float) -> Float64:
    """The log-likelihood (k,) of each play under weights that were fitted to those of other folds."""
    found = np.zeros(len(table.starts))
    for held_out, others in _split(table.folds):
        shift = _fit_shift(table.select(others), variance)
        found[held_out] = table.select(held_out).log_likelihoods(shift)
    return found


def _split(folds: Int64) -> Iterator[tuple[Bool, Bool]]:
    for fold in np.unique(folds):
        held_out: Bool = folds == fold
        yield held_out, ~held_out
