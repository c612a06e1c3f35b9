"""The metrics of the tasks: the kind of prediction, the better direction and the computation of each.

Every metric takes two aligned arrays of n rows x m target columns, truth first. `Metric.prediction` defines their
content; they are checked before (`submission`, `truth`), so a metric never sees a missing, infinite or unknown value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import stats
from sklearn import metrics as library

from mappa_dsbench.problem import ProblemKind

Values = npt.NDArray[Any]
"""n rows x m columns."""

Prediction = Literal["score", "label", "level", "probability", "number", "count", "cell", "ranking", "words"]
"""The kind of prediction, and the truth that belongs to it.

`score`: any real number, larger where class 1 is likelier; the truth is 0 or 1.
`label`: one of the training labels, as text.
`level`: a label that is an integer on a scale.
`probability`: of class 1, or of each class where there are several columns; the truth is 0 or 1, one-hot.
`number`: any real number. `count`: one that is not negative. `cell`: 0 or 1.
`ranking`: up to three labels with spaces between them, the likeliest first; the truth is one label.
`words`: text, which may be empty.
"""

MAX_RANKS = 3
"""Largest number of labels in a ranking."""

MIN_PROBABILITY = 1e-15
"""Lower clip of probabilities, so that a certain and wrong one has a large but finite loss."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that compares predictions with the truth.

    `compute` takes truth and prediction. `columns` says whether it takes one target, or averages over any number.
    `perfect` is the value of the truth itself. `compute` is not finite where the truth allows no value (a single
    class, a constant column), or where predictions are so large that the value overflows.
    """

    name: str
    better: Literal["higher", "lower"]
    prediction: Prediction
    perfect: float
    compute: Callable[[Values, Values], float]
    columns: Literal["one", "any"] = "one"


def problem_kind(metric: str) -> ProblemKind:
    """Return the stratum of a task that is graded by `metric`, a key of METRICS."""
    return "regression" if METRICS[metric].prediction in ("number", "count") else "classification"


def is_constant(column: Values) -> bool:
    """Whether all values of a column are the same."""
    return bool((column == column[0]).all())


def _over_columns(of_column: Callable[[Values, Values], float]) -> Callable[[Values, Values], float]:
    """Average a metric of one column over all columns."""

    def mean(truth: Values, predicted: Values) -> float:
        columns = range(truth.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.mean([of_column(truth[:, one], predicted[:, one]) for one in columns]))

    return mean


def _roc_auc(truth: Values, predicted: Values) -> float:
    # Checked here, as the library only warns and its result then depends on its version.
    return float("nan") if is_constant(truth) else float(library.roc_auc_score(truth, predicted))


def _gini(truth: Values, predicted: Values) -> float:
    return 2 * _roc_auc(truth, predicted) - 1


def _f1(average: str) -> Callable[[Values, Values], float]:
    def f1(truth: Values, predicted: Values) -> float:
        return float(library.f1_score(truth, predicted, average=average, zero_division=0))

    return f1


def _f1_of_ones(truth: Values, predicted: Values) -> float:
    # Macro average over the one class that counts, as the library's "binary" fails where no row is a 1.
    return float(library.f1_score(truth, predicted, labels=["1"], average="macro", zero_division=0))


def _qwk(truth: Values, predicted: Values) -> float:
    if is_constant(truth) and is_constant(predicted):
        return float("nan") if truth[0] == predicted[0] else 0.0
    # All integers between them: the weights are then distances on the scale, not between the labels that occur.
    levels = range(min(truth.min(), predicted.min()), max(truth.max(), predicted.max()) + 1)
    return float(library.cohen_kappa_score(truth, predicted, labels=list(levels), weights="quadratic"))


def _log_loss(truth: Values, predicted: Values) -> float:
    if truth.shape[1] == 1:
        predicted = np.hstack([1 - predicted, predicted])
        classes = truth[:, 0]
    else:
        classes = truth.argmax(axis=1)
    clipped = np.clip(predicted, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    rows = clipped / clipped.sum(axis=1, keepdims=True)
    return float(library.log_loss(classes, rows, labels=list(range(rows.shape[1]))))


def _smape(scale: float) -> Callable[[Values, Values], float]:
    """Build the symmetric mean error, from 0 to 2 x `scale`; a term whose truth and prediction are both 0 is 0."""

    def smape(truth: Values, predicted: Values) -> float:
        size = np.abs(truth) + np.abs(predicted)
        terms = np.divide(2 * np.abs(predicted - truth), size, out=np.zeros(len(size)), where=size != 0)
        return float(scale * terms.mean())

    return smape


def _cells(truth: Values, predicted: Values) -> float:
    return float(library.mean_absolute_error(truth.ravel(), predicted.ravel()))


def _correlation(of_columns: Callable[..., Any]) -> Callable[[Values, Values], float]:
    """Build a correlation that is 0 for a constant prediction."""

    def correlation(truth: Values, predicted: Values) -> float:
        if is_constant(truth):
            return float("nan")
        return 0.0 if is_constant(predicted) else float(of_columns(truth, predicted).statistic)

    return correlation


def _jaccard(truth: Values, predicted: Values) -> float:
    shares = []
    for right, guess in zip(truth, predicted, strict=True):
        ours, theirs = set(right.lower().split()), set(guess.lower().split())
        shares.append(len(ours & theirs) / len(ours | theirs) if ours or theirs else 1.0)
    return float(np.mean(shares))


def _hit(truth: Values, predicted: Values) -> float:
    return float(np.mean([right in guess.split()[:MAX_RANKS] for right, guess in zip(truth, predicted, strict=True)]))


def _inverse_rank(truth: Values, predicted: Values) -> float:
    ranked = ((right, guess.split()[:MAX_RANKS]) for right, guess in zip(truth, predicted, strict=True))
    return float(np.mean([1 / (1 + guess.index(right)) if right in guess else 0.0 for right, guess in ranked]))


_ALL = (
    Metric("roc_auc", "higher", "score", 1.0, _over_columns(_roc_auc)),
    Metric("mean_roc_auc", "higher", "score", 1.0, _over_columns(_roc_auc), "any"),
    Metric("normalized_gini", "higher", "score", 1.0, _over_columns(_gini)),
    Metric("accuracy", "higher", "label", 1.0, _over_columns(library.accuracy_score)),
    Metric("f1_binary", "higher", "label", 1.0, _over_columns(_f1_of_ones)),
    Metric("f1_macro", "higher", "label", 1.0, _over_columns(_f1("macro"))),
    Metric("f1_micro", "higher", "label", 1.0, _over_columns(_f1("micro"))),
    Metric("qwk", "higher", "level", 1.0, _over_columns(_qwk)),
    Metric("log_loss", "lower", "probability", 0.0, _log_loss, "any"),
    Metric("hit_at_3", "higher", "ranking", 1.0, _over_columns(_hit)),
    Metric("map_at_3", "higher", "ranking", 1.0, _over_columns(_inverse_rank)),
    Metric("rmse", "lower", "number", 0.0, _over_columns(library.root_mean_squared_error)),
    Metric("mcrmse", "lower", "number", 0.0, _over_columns(library.root_mean_squared_error), "any"),
    Metric("mse", "lower", "number", 0.0, _over_columns(library.mean_squared_error)),
    Metric("mae", "lower", "number", 0.0, _over_columns(library.mean_absolute_error)),
    Metric("medae", "lower", "number", 0.0, _over_columns(library.median_absolute_error)),
    Metric("r2", "higher", "number", 1.0, _over_columns(library.r2_score)),
    Metric("rmsle", "lower", "count", 0.0, _over_columns(library.root_mean_squared_log_error)),
    Metric("mean_rmsle", "lower", "count", 0.0, _over_columns(library.root_mean_squared_log_error), "any"),
    Metric("smape", "lower", "number", 0.0, _over_columns(_smape(100.0))),
    Metric("smape_fraction", "lower", "number", 0.0, _over_columns(_smape(1.0))),
    Metric("mae_cells", "lower", "cell", 0.0, _cells, "any"),
    Metric("pearson", "higher", "number", 1.0, _over_columns(_correlation(stats.pearsonr))),
    Metric("mean_spearman", "higher", "number", 1.0, _over_columns(_correlation(stats.spearmanr)), "any"),
    Metric("jaccard_words", "higher", "words", 1.0, _over_columns(_jaccard)),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}
"""Metrics by name. Variants of the published scripts have separate names: `smape_fraction` beside the percentage
`smape`, `hit_at_3` beside `map_at_3`, `mse` beside `mae`."""
