"""Grades a submission by its task's own metric, and says what a failure is worth.

A failed submission has no raw value. Where an average over all runs is asked for, it is replaced by a value that was
fixed before the run, in one of two ways: `dummy`, what a constant guess made from the training table is worth, and
`paper`, the penalties of the published evaluation. The published penalty is none at all for some metrics; there the
paper's average does not exist, and is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from mappa_core import TaskError
from mappa_dsbench.grading.metrics import METRICS, Values
from mappa_dsbench.grading.submission import LIMIT_BYTES, Reason, Rejected, read_submission
from mappa_dsbench.grading.truth import Truth, as_text, target_values
from mappa_dsbench.problem import Problem


@dataclass(frozen=True, slots=True)
class Anchors:
    """What raw values of a task are held against: a constant guess, perfection, and the paper's value of a failure."""

    dummy: float
    perfect: float
    paper: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What a submission is worth.

    `raw` is the task's metric, None where the submission was rejected: `reason` and `detail` say why. `fair_dummy` and
    `fair_paper` are the raw value, or what replaces it. `normalised` is 0 for the constant guess, for whatever is worse
    and for failures, and 1 for perfection. `n_clipped` values were taken for 0; the columns `degenerate` hold one value
    only.
    """

    metric: str
    success: bool
    reason: Reason | None
    detail: str
    raw: float | None
    fair_dummy: float
    fair_paper: float | None
    normalised: float
    n_clipped: int
    degenerate: tuple[str, ...]


def grade(truth: Truth, anchors: Anchors, submission: Path | bytes | None, *, limit_bytes: int = LIMIT_BYTES) -> Grade:
    """Grade a submission: its file, what it holds, or None where there is none.

    Raises:
        ToolError: the machine cannot read the file.
    """
    problem = truth.problem
    read = read_submission(submission, problem, truth.ids, limit_bytes=limit_bytes)
    if isinstance(read, Rejected):
        return _failed(problem, anchors, read)
    raw = METRICS[problem.metric].compute(truth.values, read.values)
    if not math.isfinite(raw):
        return _failed(problem, anchors, Rejected("metric_error", f"{problem.metric} is not finite"))
    return Grade(
        metric=problem.metric,
        success=True,
        reason=None,
        detail="",
        raw=raw,
        fair_dummy=raw,
        fair_paper=None if anchors.paper is None else raw,
        normalised=normalised(raw, anchors.dummy, anchors.perfect),
        n_clipped=read.n_clipped,
        degenerate=read.degenerate,
    )


def _failed(problem: Problem, anchors: Anchors, rejected: Rejected) -> Grade:
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


def anchors_of(truth: Truth, train_targets: pd.DataFrame) -> Anchors:
    """What the raw values of a task are held against. `train_targets` are the target columns of the training table.

    Raises:
        TaskError: a constant guess is perfect, so that the task tells nothing apart.
        ToolError: the training table holds targets that the metric does not know, or none.
    """
    metric = METRICS[truth.problem.metric]
    anchors = Anchors(dummy_score(truth, train_targets), metric.perfect, paper_score(truth))
    if math.isclose(anchors.dummy, anchors.perfect, abs_tol=1e-12):
        raise TaskError(f"task {truth.problem.name!r}: a constant guess is perfect by {metric.name}")
    return anchors


_FIXED_DUMMIES = {
    "roc_auc": 0.5, "mean_roc_auc": 0.5, "normalized_gini": 0.0, "qwk": 0.0, "pearson": 0.0, "mean_spearman": 0.0,
    "f1_binary": 0.0, "f1_macro": 0.0, "hit_at_3": 0.0, "map_at_3": 0.0, "jaccard_words": 0.0,
}  # fmt: skip
"""What a constant guess is worth where that does not depend on the data, or is called nothing."""


def _majority(values: Values) -> Values:
    kinds, counts = np.unique(values, return_counts=True)
    return np.asarray(kinds[counts.argmax()])


def _log_mean(values: Values) -> Values:
    return np.asarray(np.expm1(np.log1p(values).mean(axis=0)))


def _mean(values: Values) -> Values:
    return np.asarray(values.mean(axis=0))


def _median(values: Values) -> Values:
    return np.asarray(np.median(values, axis=0))


_GUESSES: Mapping[str, Callable[[Values], Values]] = {
    "accuracy": _majority,
    "f1_micro": _majority,
    "mae_cells": lambda values: (values.mean(axis=0) > 0.5).astype(int),
    "log_loss": _mean,
    "rmse": _mean,
    "mcrmse": _mean,
    "mse": _mean,
    "r2": _mean,
    "mae": _median,
    "medae": _median,
    "smape": _median,
    "smape_fraction": _median,
    "rmsle": _log_mean,
    "mean_rmsle": _log_mean,
}
"""The constant guess from n training rows x m targets, where its worth depends on the data."""


def dummy_score(truth: Truth, train_targets: pd.DataFrame) -> float:
    """What a constant guess made from the training table is worth on the test table, by the task's metric.

    F1 of one class and the mean F1 count as 0, as no constant guess is of use there. The pooled F1 is the accuracy.

    Raises:
        ToolError: the training table holds targets that the metric does not know, or none.
    """
    problem = truth.problem
    if problem.metric in _FIXED_DUMMIES:
        return _FIXED_DUMMIES[problem.metric]
    where = f"the training table of task {problem.name!r}"
    known = target_values(as_text(train_targets, problem.targets, where), problem, where)
    guess = np.broadcast_to(_GUESSES[problem.metric](known), truth.values.shape)
    return METRICS[problem.metric].compute(truth.values, guess)


def paper_score(truth: Truth) -> float | None:
    """What a failure is worth in the published evaluation; None where no value was published or can be inferred.

    Errors in the unit of the target count as half of the range of the test targets, the mean of it over the columns.
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


def normalised(raw: float, baseline: float, best: float) -> float:
    """How far `raw` is on the way from `baseline` (0) to `best` (1), whichever direction is better; never outside."""
    return min(1.0, max(0.0, (raw - baseline) / (best - baseline)))


def percent_of_range(error: float, problem: Problem) -> float:
    """An error in the unit of the target in per cent of the range of the training targets: what can be averaged.

    Raises:
        TaskError: the problem has no range, or one of no width.
    """
    if problem.range is None or problem.range[0] >= problem.range[1]:
        raise TaskError(f"task {problem.name!r}: its training targets have no range")
    low, high = problem.range
    return 100 * error / (high - low)


def completion_rate(scores: Mapping[str, float | None], tasks: Iterable[str]) -> float:
    """The share of `tasks` with a score, as DSBench counts them: one that is not a number counts, a missing one not."""
    names = list(tasks)
    return sum(scores.get(name) is not None for name in names) / len(names)


def relative_performance_gap(scores: Mapping[str, float | None], bounds: Mapping[str, tuple[float, float]]) -> float:
    """DSBench's RPG, from 0 to 1: the mean over the tasks of `bounds`, their (baseline, best) by name.

    Worse than the baseline, missing and not a number count as 0. Nothing caps it: a best that can be beaten may be.
    """
    return math.fsum(_gap(scores.get(name), *both) for name, both in bounds.items()) / len(bounds)


def _gap(score: float | None, baseline: float, best: float) -> float:
    if score is None or math.isnan(score):
        return 0.0
    return max(0.0, (score - baseline) / (best - baseline))
