"""Grades a submission by its task's metric, and defines the values of failures.

A failed submission has no raw value. For averages over all runs it is replaced by a value that was fixed before the
run, in one of two modes: `dummy`, the score of a constant guess made from the training table, and `paper`, the penalty
of the published evaluation. For some metrics no penalty was published; there the paper's average is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from mappa_core import TaskError
from mappa_dsbench.grading.metrics import MAX_RANKS, METRICS, Values
from mappa_dsbench.grading.submission import MAX_SUBMISSION_BYTES, Rejection, RejectionReason, read_submission
from mappa_dsbench.grading.truth import Truth, parse_targets, targets_as_text
from mappa_dsbench.problem import Problem


@dataclass(frozen=True, slots=True)
class Anchors:
    """The anchors of a task's raw values: a constant guess, perfection, and the paper's value of a failure."""

    dummy: float
    perfect: float
    paper: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The grade of a submission.

    `raw` is the task's metric, None where the submission was rejected: `reason` and `detail` say why. `fair_dummy` and
    `fair_paper` are the raw value, or its replacement. `normalised` is 0 for the constant guess, for anything worse,
    for failures and for every `constant`, and 1 for perfection. `n_clipped` values were set to 0; the columns
    `degenerate` hold one value only, and of a `constant` all do.
    """

    metric: str
    success: bool
    reason: RejectionReason | None
    detail: str
    raw: float | None
    fair_dummy: float
    fair_paper: float | None
    normalised: float
    n_clipped: int
    degenerate: tuple[str, ...]
    constant: bool = False

    @property
    def earned(self) -> float | None:
        """The raw value; None of a failure and of a constant, which are worth nothing."""
        return None if self.constant else self.raw


def grade_submission(
    truth: Truth, anchors: Anchors, submission: Path | bytes | None, *, limit_bytes: int = MAX_SUBMISSION_BYTES
) -> Grade:
    """Grade a submission: its path, its content, or None where there is none.

    Raises:
        ToolError: the machine cannot read the file.
    """
    problem = truth.problem
    read = read_submission(submission, problem, truth.ids, limit_bytes=limit_bytes)
    if isinstance(read, Rejection):
        return _failed_grade(problem, anchors, read)
    raw = METRICS[problem.metric].compute(truth.values, read.values)
    if not math.isfinite(raw):
        return _failed_grade(problem, anchors, Rejection("metric_error", f"{problem.metric} is not finite"))
    # The guess of the anchors is the best constant of the training table. Another one may fit the test rows better, by
    # chance, and has learned as little from the features.
    constant = set(read.degenerate) == set(problem.targets) and not math.isclose(raw, anchors.perfect, abs_tol=1e-12)
    return Grade(
        metric=problem.metric,
        success=True,
        reason=None,
        detail="",
        raw=raw,
        fair_dummy=raw,
        fair_paper=None if anchors.paper is None else raw,
        normalised=0.0 if constant else normalise_score(raw, anchors.dummy, anchors.perfect),
        n_clipped=read.n_clipped,
        degenerate=read.degenerate,
        constant=constant,
    )


def _failed_grade(problem: Problem, anchors: Anchors, rejected: Rejection) -> Grade:
    return Grade(
        metric=problem.metric,
        success=False,
        reason=rejected.reason,
        detail=rejected.detail,
        raw=None,
        fair_dummy=anchors.dummy,
        fair_paper=anchors.paper,
        normalised=0.0,
        n_clipped=0,
        degenerate=(),
    )


def compute_anchors(truth: Truth, train_targets: pd.DataFrame) -> Anchors:
    """Compute the anchors of a task. `train_targets` are the target columns of the training table.

    Raises:
        TaskError: a constant guess is perfect, so that the task cannot rank submissions.
        ToolError: the training table holds targets that the metric does not know, or none.
    """
    metric = METRICS[truth.problem.metric]
    anchors = Anchors(dummy_score(truth, train_targets), metric.perfect, paper_score(truth))
    if math.isclose(anchors.dummy, anchors.perfect, abs_tol=1e-12):
        raise TaskError(f"task {truth.problem.name!r}: a constant guess is perfect by {metric.name}")
    return anchors


MAX_QUANTILES = 201
"""Constants that are tried for a relative error."""
MAX_COMMON_WORDS = 5
"""Words that are tried together as a text."""

_FIXED_DUMMIES = {
    "roc_auc": 0.5, "mean_roc_auc": 0.5, "normalized_gini": 0.0, "qwk": 0.0, "pearson": 0.0, "mean_spearman": 0.0,
}  # fmt: skip
"""The score of a constant guess where it is the same whatever is guessed."""


def _majority(values: Values) -> Values:
    return np.asarray(_most_frequent(values, 1)[0])


def _most_frequent(values: Values, count: int) -> Values:
    """Return up to `count` of the values that occur, the most frequent first and equally frequent ones in order."""
    kinds, counts = np.unique(values, return_counts=True)
    return np.asarray(kinds[np.argsort(-counts, kind="stable")[:count]])


def _log_mean(values: Values) -> Values:
    return np.asarray(np.expm1(np.log1p(values).mean(axis=0)))


def _mean(values: Values) -> Values:
    return np.asarray(values.mean(axis=0))


def _median(values: Values) -> Values:
    return np.asarray(np.median(values, axis=0))


def _middle_of_shortest_half(values: Values) -> Values:
    """Return the number from which half of the values lie least far away: it has the least median error."""
    ordered = np.sort(values[:, 0])
    half = len(ordered) // 2 + 1
    starts = np.arange(len(ordered) - half + 1)
    first = int(np.argmin(ordered[starts + half - 1] - ordered[starts]))
    return np.asarray([(ordered[first] + ordered[first + half - 1]) / 2])


def _best_by(metric: str, candidates: Callable[[Values], Iterable[Values]]) -> Callable[[Values], Values]:
    """Build the guess that is the best of `candidates` on the training rows."""

    def guess(values: Values) -> Values:
        def score(candidate: Values) -> float:
            return METRICS[metric].compute(values, np.broadcast_to(candidate, values.shape))

        best = max if METRICS[metric].better == "higher" else min
        return best(candidates(values), key=score)

    return guess


def _quantiles(values: Values) -> Iterable[Values]:
    """Return at most `MAX_QUANTILES` numbers among the values, evenly spread over their ranks."""
    return [np.asarray([value]) for value in np.unique(np.quantile(values, np.linspace(0, 1, MAX_QUANTILES)))]


def _common_words(values: Values) -> Iterable[Values]:
    """Return the most frequent text, and the most frequent words, from one to `MAX_COMMON_WORDS` of them together."""
    words = [word for text in values.flat for word in text.lower().split()] or [""]
    common = _most_frequent(np.asarray(words), MAX_COMMON_WORDS)
    together = [" ".join(common[:count]) for count in range(1, MAX_COMMON_WORDS + 1)]
    return [np.asarray(text, dtype=object) for text in (_most_frequent(values.astype(str), 1)[0], *together)]


_GUESSES: Mapping[str, Callable[[Values], Values]] = {
    "accuracy": _majority,
    "f1_binary": lambda _: np.asarray("1"),
    "f1_micro": _majority,
    "hit_at_3": lambda values: np.asarray(" ".join(_most_frequent(values, MAX_RANKS))),
    "map_at_3": lambda values: np.asarray(" ".join(_most_frequent(values, MAX_RANKS))),
    "jaccard_words": _best_by("jaccard_words", _common_words),
    "mae_cells": lambda values: (values.mean(axis=0) > 0.5).astype(int),
    "log_loss": _mean,
    "rmse": _mean,
    "mcrmse": _mean,
    "mse": _mean,
    "r2": _mean,
    "mae": _median,
    "medae": _middle_of_shortest_half,
    "smape": _best_by("smape", _quantiles),
    "smape_fraction": _best_by("smape_fraction", _quantiles),
    "rmsle": _log_mean,
    "mean_rmsle": _log_mean,
}
"""The best constant guess from n training rows x m targets, where its score depends on the data."""


def dummy_score(truth: Truth, train_targets: pd.DataFrame) -> float:
    """Compute the score of a constant guess from the training table on the test table, by the task's metric.

    Macro F1 counts every class alike, so labels drawn by their frequencies score more than any constant: 1 / classes
    in expectation, which is the most that a guess without features can.

    Raises:
        ToolError: the training table holds targets that the metric does not know, or none.
    """
    problem = truth.problem
    if problem.metric in _FIXED_DUMMIES:
        return _FIXED_DUMMIES[problem.metric]
    where = f"the training table of task {problem.name!r}"
    known = parse_targets(targets_as_text(train_targets, problem.targets, where), problem, where)
    if problem.metric == "f1_macro":
        return 1 / len(np.unique(known))
    guess = np.broadcast_to(_GUESSES[problem.metric](known), truth.values.shape)
    return METRICS[problem.metric].compute(truth.values, guess)


def paper_score(truth: Truth) -> float | None:
    """Return the value of a failure in the published evaluation; None where none was published or can be inferred.

    For errors in the unit of the target it is half of the range of the test targets, averaged over the columns.
    """
    match truth.problem.metric:
        case "accuracy" | "roc_auc" | "mean_roc_auc":
            return 0.5
        case "rmse" | "mcrmse" | "mae" | "mae_cells":
            return float(np.mean(np.ptp(truth.values, axis=0)) / 2)
        case "log_loss" | "mse" | "medae" | "rmsle" | "mean_rmsle" | "smape" | "smape_fraction":
            return None
        case _:
            return 0.0


def normalise_score(raw: float, baseline: float, best: float) -> float:
    """Scale `raw` from `baseline` (0) to `best` (1), whichever direction is better, clipped to this range."""
    return min(1.0, max(0.0, (raw - baseline) / (best - baseline)))


def percent_of_range(error: float, problem: Problem) -> float:
    """Convert an error in the unit of the target to per cent of the range of the training targets, for averages.

    Raises:
        TaskError: the problem has no range, or one of no width.
    """
    if problem.range is None or problem.range[0] >= problem.range[1]:
        raise TaskError(f"task {problem.name!r}: its training targets have no range")
    low, high = problem.range
    return 100 * error / (high - low)


def completion_rate(scores: Mapping[str, float | None], tasks: Iterable[str]) -> float:
    """Compute the share of `tasks` with a score, as DSBench counts them: NaN counts, a missing score does not."""
    names = list(tasks)
    return sum(scores.get(name) is not None for name in names) / len(names)


def relative_performance_gap(scores: Mapping[str, float | None], bounds: Mapping[str, tuple[float, float]]) -> float:
    """Compute DSBench's RPG: the mean over the tasks of `bounds`, their (baseline, best) by name; 0 to 1 and more.

    Scores below the baseline, missing scores and NaN count as 0. There is no cap: a score may be better than the best.
    """
    return math.fsum(_gap(scores.get(name), *both) for name, both in bounds.items()) / len(bounds)


def _gap(score: float | None, baseline: float, best: float) -> float:
    if score is None or math.isnan(score):
        return 0.0
    return max(0.0, (score - baseline) / (best - baseline))
