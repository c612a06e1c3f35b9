"""Every metric by cases worked out by hand, and against the library that computes it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as library

from mappa_dsbench.grading.metrics import METRICS, problem_kind

LABELLED = ["a", "b", "b", "c"]
GUESSED = ["a", "b", "c", "c"]

CASES: list[tuple[str, list[Any], list[Any], float]] = [
    # two of the three ones stand above the one zero, one of them ties with it
    ("roc_auc", [0, 1, 1, 1], [0.5, 0.9, 0.5, 0.7], 2.5 / 3),
    ("roc_auc", [0, 1], [-300.0, 17.0], 1.0),
    ("mean_roc_auc", [[0, 0], [1, 1]], [[0.1, 0.9], [0.9, 0.1]], 0.5),
    ("normalized_gini", [0, 1, 1, 1], [0.5, 0.9, 0.5, 0.7], 2 * 2.5 / 3 - 1),
    ("normalized_gini", [1, 0, 1, 0], [0.3, 0.3, 0.3, 0.3], 0.0),
    ("accuracy", LABELLED, GUESSED, 0.75),
    ("f1_binary", ["1", "1", "0", "0"], ["1", "0", "1", "0"], 0.5),
    ("f1_binary", ["1", "0"], ["0", "0"], 0.0),
    ("f1_binary", ["0", "0"], ["0", "0"], 0.0),
    ("f1_macro", LABELLED, GUESSED, (1 + 2 / 3 + 2 / 3) / 3),
    ("f1_micro", LABELLED, GUESSED, 0.75),
    ("qwk", [3, 8], [8, 3], -1.0),
    ("qwk", [1, 2, 3], [1, 2, 3], 1.0),
    ("qwk", [1, 2, 3], [2, 2, 2], 0.0),
    # observed 4; expected, each truth with each guess: (0+4+4 + 1+1+1 + 4+0+0) / 3 = 5
    ("qwk", [1, 2, 3], [1, 3, 3][::-1], 1 - 9 / 5),
    # 3 and 7 are far apart on the scale although no level between them occurs: 1 - 1 / ((0+1+16+9) / 2)
    ("qwk", [3, 7], [4, 7], 1 - 1 / ((1 + 16 + 9 + 0) / 2)),
    ("log_loss", [1, 0], [0.5, 0.5], math.log(2)),
    ("log_loss", [1, 0], [0.8, 0.4], -(math.log(0.8) + math.log(0.6)) / 2),
    ("log_loss", [[1, 0, 0], [0, 0, 1]], [[1 / 3] * 3, [0.25, 0.25, 0.5]], (math.log(3) + math.log(2)) / 2),
    ("log_loss", [1, 1], [0.0, 1.0], -math.log(1e-15) / 2),
    ("hit_at_3", ["x", "y", "z", "u"], ["x y z", "x z y", "x y", "u"], 0.75),
    ("map_at_3", ["x", "y", "z", "u"], ["x y z", "x z y", "x y", "u"], (1 + 1 / 3 + 0 + 1) / 4),
    ("rmse", [0.0, 0.0], [3.0, -4.0], math.sqrt(12.5)),
    ("mse", [0.0, 0.0], [3.0, -4.0], 12.5),
    ("mae", [0.0, 0.0], [3.0, -4.0], 3.5),
    ("medae", [0.0, 0.0, 0.0], [1.0, 100.0, -2.0], 2.0),
    ("r2", [1.0, 2.0, 3.0], [2.0, 2.0, 2.0], 0.0),
    ("r2", [1.0, 2.0, 3.0], [3.0, 2.0, 1.0], -3.0),
    ("mcrmse", [[0.0, 0.0], [0.0, 0.0]], [[3.0, 1.0], [-4.0, 1.0]], (math.sqrt(12.5) + 1) / 2),
    ("rmsle", [0.0, math.e - 1], [math.e - 1, math.e - 1], math.sqrt(0.5)),
    ("mean_rmsle", [[0.0, 0.0], [0.0, 0.0]], [[math.e - 1, 0.0], [math.e - 1, 0.0]], 0.5),
    ("smape", [1.0, 0.0, 0.0], [3.0, 0.0, 5.0], 100 * (1 + 0 + 2) / 3),
    ("smape_fraction", [1.0, 0.0, 0.0], [3.0, 0.0, 5.0], 1.0),
    ("smape", [-1.0, 2.0], [1.0, 2.0], 100.0),
    ("mae_cells", [[0, 1], [1, 1]], [[0, 0], [1, 1]], 0.25),
    ("pearson", [1.0, 2.0, 3.0], [10.0, 20.0, 30.0], 1.0),
    ("pearson", [1.0, 2.0, 3.0], [1.0, 3.0, 2.0], 0.5),
    ("pearson", [1.0, 2.0, 3.0], [7.0, 7.0, 7.0], 0.0),
    ("mean_spearman", [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], [[1.0, 5.0], [8.0, 5.0], [9.0, 5.0]], 0.5),
    ("jaccard_words", ["so Happy", "", "a b"], ["SO sad", "", "c"], (1 / 3 + 1 + 0) / 3),
]


def columns(values: list[Any]) -> Any:
    array = np.array(values)
    return array if array.ndim == 2 else array.reshape(-1, 1)


@pytest.mark.parametrize(("metric", "truth", "predicted", "value"), CASES)
def test_by_hand(metric: str, truth: list[Any], predicted: list[Any], value: float) -> None:
    assert METRICS[metric].compute(columns(truth), columns(predicted)) == pytest.approx(value)


def test_every_metric_has_a_case() -> None:
    assert {case[0] for case in CASES} == METRICS.keys()


FINDABLE = [(metric, truth) for metric, truth, *_ in CASES if metric != "f1_binary" or "1" in truth]


@pytest.mark.parametrize(("metric", "truth"), FINDABLE)
def test_the_truth_is_perfect(metric: str, truth: list[Any]) -> None:
    values = columns(truth)
    assert METRICS[metric].compute(values, values) == pytest.approx(METRICS[metric].perfect)


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_better_is_towards_perfect(metric: Any) -> None:
    worse = [case[3] for case in CASES if case[0] == metric.name and case[3] != metric.perfect]
    assert worse
    assert all((value < metric.perfect) == (metric.better == "higher") for value in worse)


def test_one_class_or_one_value_allows_no_ranking() -> None:
    constant, varied = columns([1, 1, 1]), columns([0.1, 0.2, 0.3])
    for metric in ("roc_auc", "mean_roc_auc", "normalized_gini", "pearson", "mean_spearman"):
        assert math.isnan(METRICS[metric].compute(constant, varied))


def test_strata_follow_what_is_predicted() -> None:
    regression = {name for name in METRICS if problem_kind(name) == "regression"}
    assert regression == {
        "rmse", "mcrmse", "mse", "mae", "medae", "r2", "rmsle", "mean_rmsle", "smape", "smape_fraction", "pearson",
        "mean_spearman",
    }  # fmt: skip


reals = st.floats(-1e6, 1e6, allow_subnormal=False)


@settings(max_examples=40)
@given(st.lists(st.tuples(reals, reals), min_size=3, max_size=30))
def test_numbers_as_the_library(pairs: list[tuple[float, float]]) -> None:
    truth, predicted = (np.array(column) for column in zip(*pairs, strict=True))
    expected = {
        "rmse": math.sqrt(library.mean_squared_error(truth, predicted)),
        "mse": library.mean_squared_error(truth, predicted),
        "mae": library.mean_absolute_error(truth, predicted),
        "medae": library.median_absolute_error(truth, predicted),
        "r2": library.r2_score(truth, predicted),
    }
    for metric, value in expected.items():
        assert METRICS[metric].compute(columns(truth), columns(predicted)) == pytest.approx(value, rel=1e-9)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), min_size=3, max_size=40))
def test_scores_as_the_library(pairs: list[tuple[int, int]]) -> None:
    truth, predicted = (np.array(column) for column in zip(*pairs, strict=True))
    auc = METRICS["roc_auc"].compute(columns(truth), columns(predicted / 9))
    if len(set(truth)) < 2:
        assert math.isnan(auc)
        return
    assert auc == pytest.approx(library.roc_auc_score(truth, predicted))
    gini = METRICS["normalized_gini"].compute(columns(truth), columns(predicted / 9))
    assert gini == pytest.approx(2 * auc - 1)
    loss = METRICS["log_loss"].compute(columns(truth), columns(predicted / 10 + 0.05))
    assert loss == pytest.approx(library.log_loss(truth, predicted / 10 + 0.05))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(3, 8), st.integers(3, 8)), min_size=3, max_size=40))
def test_levels_as_the_library(pairs: list[tuple[int, int]]) -> None:
    truth, predicted = (np.array(column) for column in zip(*pairs, strict=True))
    kappa = METRICS["qwk"].compute(columns(truth), columns(predicted))
    if len(set(truth) | set(predicted)) == 1:
        assert math.isnan(kappa)
        return
    # any wider range of levels gives the same: only distances count
    wide = library.cohen_kappa_score(truth, predicted, labels=list(range(10)), weights="quadratic")
    assert kappa == pytest.approx(wide)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("01"), st.sampled_from("01")), min_size=2, max_size=40))
def test_labels_as_the_library(pairs: list[tuple[str, str]]) -> None:
    truth, predicted = (np.array(column) for column in zip(*pairs, strict=True))
    ours = {
        name: METRICS[name].compute(columns(truth), columns(predicted)) for name in METRICS if name.startswith("f1")
    }
    ones = library.f1_score(truth == "1", predicted == "1", zero_division=0)
    assert ours["f1_binary"] == pytest.approx(ones)
    assert ours["f1_macro"] == pytest.approx(library.f1_score(truth, predicted, average="macro", zero_division=0))
    assert ours["f1_micro"] == pytest.approx(library.accuracy_score(truth, predicted))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=3, max_size=30))
def test_correlations_as_the_library(pairs: list[tuple[int, int]]) -> None:
    truth, predicted = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    if np.ptp(truth) == 0 or np.ptp(predicted) == 0:
        return
    pearson = METRICS["pearson"].compute(columns(truth), columns(predicted))
    assert pearson == pytest.approx(stats.pearsonr(truth, predicted).statistic)
    spearman = METRICS["mean_spearman"].compute(columns(truth), columns(predicted))
    assert spearman == pytest.approx(stats.spearmanr(truth, predicted).statistic)


@settings(max_examples=40)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=4, max_size=4))
def test_any_finite_prediction_is_computed(predicted: list[float]) -> None:
    """Huge numbers may overflow to a value that is not finite, and never raise."""
    for name, metric in METRICS.items():
        if metric.prediction in ("score", "number"):
            truth = columns([0, 1, 0, 1] if metric.prediction == "score" else [0.0, 1.0, 2.0, 4.0])
            assert isinstance(metric.compute(truth, columns(predicted)), float), name
        if metric.prediction == "count":
            assert isinstance(metric.compute(columns([0.0, 1.0, 2.0, 4.0]), np.abs(columns(predicted))), float), name
