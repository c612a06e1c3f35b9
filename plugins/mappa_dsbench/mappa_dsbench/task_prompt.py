"""The task prompt: describes the facts of a problem in the same words for every task."""

from __future__ import annotations

from collections.abc import Mapping

from mappa_dsbench.grading.metrics import METRICS, Prediction
from mappa_dsbench.problem import Problem

METRIC_NAMES: Mapping[str, str] = {
    "roc_auc": "area under the ROC curve",
    "mean_roc_auc": "area under the ROC curve, averaged over the target columns",
    "normalized_gini": "normalised Gini coefficient",
    "accuracy": "accuracy",
    "f1_binary": "F1 score of class 1",
    "f1_macro": "macro-averaged F1 score",
    "f1_micro": "micro-averaged F1 score",
    "qwk": "quadratic weighted kappa",
    "log_loss": "log loss",
    "hit_at_3": "share of rows whose true label is among the first three predicted, in any order",
    "rmse": "root mean squared error",
    "mcrmse": "root mean squared error, averaged over the target columns",
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "medae": "median absolute error",
    "r2": "coefficient of determination (R2)",
    "rmsle": "root mean squared logarithmic error",
    "mean_rmsle": "root mean squared logarithmic error, averaged over the target columns",
    "smape": "symmetric mean absolute percentage error, in percent (0 to 200)",
    "smape_fraction": "symmetric mean absolute percentage error, as a fraction (0 to 2)",
    "pearson": "Pearson correlation",
    "mean_spearman": "Spearman rank correlation, averaged over the target columns",
    "jaccard_words": "Jaccard score of the sets of words, lower case",
}
PREDICTION_DESCRIPTIONS: Mapping[Prediction, str] = {
    "score": "a number, larger where class 1 is likelier; probabilities do well",
    "label": "one of the labels of the training table, written as there",
    "level": "one of the whole numbers of the training table",
    "probability": "a probability from 0 to 1",
    "number": "a number",
    "count": "a number that is not negative",
    "ranking": "up to three labels of the training table with spaces between them, the likeliest first",
    "words": "the words themselves, quoted where they hold commas",
}
MAX_LISTED_LABELS = 20
"""Longest list of labels in the prompt; more labels are not listed."""


def describe_task(problem: Problem, *, test_rows: int) -> str:
    """Describe what to predict, how it is graded, the exact header and the number of rows."""
    header = ",".join((problem.id_column, *problem.targets))
    several = len(problem.targets) > 1
    names = f"the {len(problem.targets)} columns {', '.join(problem.targets)}" if several else problem.targets[0]
    metric = METRICS[problem.metric]
    prediction = PREDICTION_DESCRIPTIONS[metric.prediction]
    lines = [
        f"Predict {names} for every row of test.csv.",
        f"Graded by: {METRIC_NAMES[problem.metric]}; {metric.better} is better.",
        f"A prediction is {prediction}." if not several else f"A prediction, in each of the columns, is {prediction}.",
    ]
    if problem.metric == "log_loss" and several:
        lines.append("The probabilities of a row add up to 1.")
    if problem.labels is not None and len(problem.labels) <= MAX_LISTED_LABELS:
        lines.append(f"Labels: {', '.join(problem.labels)}.")
    lines += [
        "",
        "submission.csv has exactly this header:",
        header,
        f"and one row for each of the {test_rows} rows of test.csv, with its {problem.id_column}. "
        "Rows may be in any order: they are joined by it.",
        "",
        "Files: train.csv (with the targets), test.csv (without them), sample_submission.csv (the form).",
    ]
    return "\n".join(lines)


def constant_guess(problem: Problem) -> str | float:
    """Return the value of a sample submission: valid and uninformative."""
    if problem.labels is not None:
        return problem.labels[0]
    prediction = METRICS[problem.metric].prediction
    return "" if prediction == "words" else 0 if prediction in ("number", "count", "cell") else 0.5
