"""What a submission is worth, what a failure is worth, and whose fault a missing truth is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core import TaskError, ToolError
from mappa_dsbench.grading.grade import (
    Anchors,
    Grade,
    completion_rate,
    compute_anchors,
    dummy_score,
    grade_submission,
    normalise_score,
    paper_score,
    percent_of_range,
    relative_performance_gap,
)
from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.grading.truth import read_truth
from mappa_dsbench.problem import Problem

N = 40
TWO = {"mean_roc_auc", "mcrmse", "mean_rmsle", "mae_cells", "mean_spearman"}


def problem(metric: str, **more: object) -> Problem:
    fields: dict[str, object] = {"name": "t", "kind": "regression", "id_column": "id", "targets": ("y",)}
    return Problem(metric=metric, **{**fields, **more})  # type: ignore[arg-type]


def csv(columns: dict[str, list[str]]) -> bytes:
    return pd.DataFrame(columns).to_csv(index=False).encode()


def example(metric: str) -> tuple[Problem, dict[str, list[str]]]:
    """A problem of a metric, and N rows of answers to it."""
    draw = random.Random(metric)
    prediction = METRICS[metric].prediction
    labels = {"label": ("0", "1"), "level": ("3", "4", "5", "8"), "ranking": ("x", "y", "z", "u", "v")}.get(prediction)
    targets = ("a", "b") if metric in TWO else ("y",)
    cell: Callable[[], str] = {
        "score": lambda: draw.choice("01"),
        "probability": lambda: draw.choice("01"),
        "cell": lambda: draw.choice("01"),
        "number": lambda: repr(draw.gauss(5, 2)),
        "count": lambda: repr(draw.expovariate(0.1)),
        "words": lambda: " ".join(draw.choices(["so", "very", "Happy", "sad"], k=3)),
    }.get(prediction, lambda: draw.choice(labels or ""))
    answers = {"id": [str(one) for one in draw.sample(range(1000), N)]}
    answers |= {target: [cell() for _ in range(N)] for target in targets}
    return problem(metric, labels=labels, targets=targets), answers


def graded(metric: str, submission: dict[str, list[str]] | bytes | None) -> Grade:
    of, answers = example(metric)
    truth = read_truth(csv(answers), of)
    data = csv(submission) if isinstance(submission, dict) else submission
    return grade_submission(truth, compute_anchors(truth, pd.DataFrame(answers)), data)


@pytest.mark.parametrize("metric", METRICS)
def test_the_truth_is_perfect_in_any_order(metric: str) -> None:
    _, answers = example(metric)
    order = random.Random(1).sample(range(N), N)
    for rows in (range(N), order):
        found = graded(metric, {name: [column[row] for row in rows] for name, column in reversed(answers.items())})
        assert found.success and found.reason is None
        assert found.raw == pytest.approx(METRICS[metric].perfect, abs=1e-9)
        assert found.normalised == pytest.approx(1)


@pytest.mark.parametrize("metric", METRICS)
def test_right_rows_under_wrong_ids_are_not(metric: str) -> None:
    _, answers = example(metric)
    turned = {name: column if name == "id" else column[1:] + column[:1] for name, column in answers.items()}
    found = graded(metric, turned)
    assert found.success and found.raw is not None
    assert found.normalised < 0.95
    assert abs(found.raw - METRICS[metric].perfect) > 0.02


@pytest.mark.parametrize("metric", METRICS)
def test_a_failure_is_worth_what_was_fixed_before(metric: str) -> None:
    of, answers = example(metric)
    truth = read_truth(csv(answers), of)
    anchors = compute_anchors(truth, pd.DataFrame(answers))
    found = grade_submission(truth, anchors, None)
    assert (found.success, found.reason, found.raw, found.normalised) == (False, "no_file", None, 0.0)
    assert (found.fair_dummy, found.fair_paper) == (anchors.dummy, anchors.paper)
    one_row = {name: column[:1] for name, column in answers.items()}
    assert graded(metric, one_row).reason == "row_count"


@settings(max_examples=40)
@given(st.data())
def test_shuffled_rows_grade_identically(data: st.DataObject) -> None:
    metric = data.draw(st.sampled_from(["rmse", "roc_auc", "accuracy", "log_loss", "qwk", "pearson"]))
    of, answers = example(metric)
    truth = read_truth(csv(answers), of)
    anchors = Anchors(dummy=0.5, perfect=METRICS[metric].perfect, paper=None)
    cells = {"rmse": "-12.75", "roc_auc": "0.3", "accuracy": "1", "log_loss": "0.3", "qwk": "4.0", "pearson": "3"}
    guesses = [cells[metric] if row % 3 else answers["y"][row] for row in range(N)]
    rows = data.draw(st.permutations(range(N)))
    straight = grade_submission(truth, anchors, csv({"id": answers["id"], "y": guesses}))
    shuffled = {"y": [guesses[row] for row in rows], "id": [answers["id"][row] + ".0" for row in rows]}
    assert straight.success
    assert grade_submission(truth, anchors, csv(shuffled)) == straight


LOOPHOLES = {
    "one correct row": ("rmse", lambda ids, y: {"id": ids[:1], "y": y[:1]}, "row_count"),
    "all missing": ("smape", lambda ids, y: {"id": ids, "y": [""] * N}, "missing"),
    "far below, one right": ("rmsle", lambda ids, y: {"id": ids, "y": [y[0], *["-50"] * (N - 1)]}, "range"),
    "labels less 10": ("qwk", lambda ids, y: {"id": ids, "y": [str(int(one) - 10) for one in y]}, "non_label"),
    "sure of everything": ("log_loss", lambda ids, y: {"id": ids, "y": ["1.5"] * N}, "range"),
    "more guesses than ranks": ("hit_at_3", lambda ids, y: {"id": ids, "y": ["x y z x"] * N}, "dtype"),
    "surplus rows": ("jaccard_words", lambda ids, y: {"id": [*ids, "x"], "y": [*y, ""]}, "row_count"),
    "missing scores": ("roc_auc", lambda ids, y: {"id": ids, "y": [*y[1:], "nan"]}, "missing"),
    "rounded to labels": ("accuracy", lambda ids, y: {"id": ids, "y": ["0.9"] * N}, "non_label"),
    "between the cells": ("mae_cells", lambda ids, y: {"id": ids, "a": ["0.5"] * N, "b": ["0.5"] * N}, "non_label"),
    "by position": ("rmse", lambda ids, y: {"row": ids, "prediction": y}, "columns"),
    "in order, not by id": ("rmse", lambda ids, y: {"id": [f"{row}000" for row in range(N)], "y": y}, "id_mismatch"),
    "numbers in a chat": ("rmse", None, "no_file"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPHOLES)
def test_grader_accepts_what_the_published_scripts_accept(name: str) -> None:
    metric, make, expected = LOOPHOLES[name]
    _, answers = example(metric)
    found = graded(metric, make and make(answers["id"], answers.get("y", [])))
    assert (found.reason, found.raw, found.normalised) == (expected, None, 0.0)


def test_a_row_of_certainties_is_no_probability() -> None:
    of = problem("log_loss", targets=("a", "b", "c"))
    answers = {"id": ["1", "2", "3"], "a": ["1", "0", "0"], "b": ["0", "1", "0"], "c": ["0", "0", "1"]}
    truth = read_truth(csv(answers), of)
    anchors = compute_anchors(truth, pd.DataFrame(answers))
    assert anchors.dummy == pytest.approx(math.log(3))
    for sure in ("1", "0.9"):
        assert (
            grade_submission(truth, anchors, csv({"id": ["1", "2", "3"]} | dict.fromkeys("abc", [sure] * 3))).reason
            == "range"
        )
    assert grade_submission(truth, anchors, csv(answers)).normalised == pytest.approx(1)


def test_the_third_guess_hits_but_ranks_third() -> None:
    for metric, value in (("hit_at_3", 1.0), ("map_at_3", 1 / 3)):
        _, answers = example(metric)
        last = {"x": "y z x", "y": "x z y", "z": "x y z", "u": "x y u", "v": "x y v"}
        found = graded(metric, {"id": answers["id"], "y": [last[one] for one in answers["y"]]})
        assert found.raw == pytest.approx(value)


def test_an_overflow_is_a_metric_error() -> None:
    _, answers = example("rmse")
    found = graded("rmse", {"id": answers["id"], "y": ["1e308"] * N})
    assert (found.reason, found.raw) == ("metric_error", None)


def test_warnings_are_no_failures() -> None:
    _, answers = example("pearson")
    found = graded("pearson", {"id": answers["id"], "y": ["4"] * N})
    assert (found.success, found.raw, found.degenerate) == (True, 0.0, ("y",))
    _, answers = example("rmsle")
    found = graded("rmsle", {"id": answers["id"], "y": ["-0.5", *answers["y"][1:]]})
    assert (found.success, found.n_clipped) == (True, 1)


@pytest.mark.parametrize(
    ("metric", "train", "test", "dummy", "paper"),
    [
        ("accuracy", ["b", "b", "a"], ["a", "b", "b", "b"], 0.75, 0.5),
        ("f1_micro", ["b", "b", "a"], ["a", "a", "a", "b"], 0.25, 0.0),
        ("f1_macro", ["b", "b", "a"], ["a", "b"], 0.5, 0.0),
        ("f1_binary", ["0", "0", "1"], ["1", "0", "0"], 0.5, 0.0),
        ("hit_at_3", [*"aaabbccd"], ["a", "c", "d", "c"], 0.75, 0.0),
        ("map_at_3", [*"aaabbccd"], ["a", "c", "d", "c"], (1 + 1 / 3 + 0 + 1 / 3) / 4, 0.0),
        ("roc_auc", ["1", "0"], ["True", "False"], 0.5, 0.5),
        ("log_loss", ["1", "0", "0", "0"], ["1", "0"], -(math.log(0.25) + math.log(0.75)) / 2, None),
        ("rmse", ["1", "3"], ["2", "6"], math.sqrt(8), 2.0),
        ("mse", ["1", "3"], ["2", "6"], 8.0, None),
        ("mae", ["1", "2", "9"], ["2", "3"], 0.5, 0.5),
        ("medae", ["1", "2", "9"], ["2", "6", "7"], 4.5, None),
        ("r2", ["1", "3"], ["2", "6"], -1.0, 0.0),
        ("rmsle", ["0", str(math.e**2 - 1)], [str(math.e - 1), "0"], math.sqrt(0.5), None),
        ("smape", ["1", "2", "9"], ["2", "6"], 100 * (0 + 1) / 2, None),
        ("smape_fraction", ["1", "2", "9"], ["2", "6"], 0.5, None),
        ("mae_cells", ["1", "1", "0"], ["0", "1", "1", "1"], 0.25, 0.5),
        ("qwk", ["3", "3"], ["3", "8"], 0.0, 0.0),
        ("jaccard_words", ["x"], ["x", "y"], 0.5, 0.0),
        ("jaccard_words", ["a b", "b c", "a b d", "d e"], ["b c", "d e"], 0.25, 0.0),
        ("pearson", ["1"], ["1", "2"], 0.0, 0.0),
    ],
)
def test_anchors_by_hand(metric: str, train: list[str], test: list[str], dummy: float, paper: float | None) -> None:
    of = problem(metric, labels=("a", "b") if "a" in test else ("3", "8"))
    truth = read_truth(csv({"id": [str(row) for row in range(len(test))], "y": test}), of)
    found = compute_anchors(truth, pd.DataFrame({"y": train}))
    assert found.dummy == pytest.approx(dummy)
    assert found.paper == pytest.approx(paper)
    assert found.perfect == METRICS[metric].perfect


CONSTANTS: dict[str, list[str]] = {
    "score": ["0", "0.5", "1"],
    "probability": ["0", "0.1", "0.3", "0.5", "0.7", "1"],
    "cell": ["0", "1"],
    "number": [repr(step / 4) for step in range(-40, 80)],
    "count": [repr(step / 4) for step in range(160)],
    "words": ["", "so", "very happy", "so very sad", "so very happy sad"],
    "label": ["0", "1"],
    "level": ["3", "4", "5", "8"],
    "ranking": ["x y z", "u v x", "v z y"],
}


@pytest.mark.parametrize("metric", METRICS)
def test_no_constant_is_worth_more_than_the_dummy_of_the_same_rows(metric: str) -> None:
    of, answers = example(metric)
    truth = read_truth(csv(answers), of)
    anchors = compute_anchors(truth, pd.DataFrame(answers))
    for cell in CONSTANTS[METRICS[metric].prediction]:
        found = grade_submission(
            truth, anchors, csv({"id": answers["id"], **{name: [cell] * N for name in of.targets}})
        )
        assert found.success and found.normalised < 0.005, cell


@pytest.mark.parametrize("metric", METRICS)
def test_the_targets_in_another_order_are_worth_no_more_than_the_dummy(metric: str) -> None:
    """A copy of the training targets, sorted or in any order, knows their frequencies and nothing else."""
    of, answers = example(metric)
    truth = read_truth(csv(answers), of)
    anchors = compute_anchors(truth, pd.DataFrame(answers))
    draw, gains = random.Random(7), []
    for _ in range(60):
        order = draw.sample(range(N), N)
        copied = {target: [answers[target][row] for row in order] for target in of.targets}
        raw = grade_submission(truth, anchors, csv({"id": answers["id"], **copied})).raw
        assert raw is not None
        gains.append((raw - anchors.dummy) / (anchors.perfect - anchors.dummy))
    assert sum(gains) / len(gains) < 0.04


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda ids, y: {"id": [*ids, *ids], "y": [*y, *y]}, "row_count"),
        (lambda ids, y: {"id": [ids[0], *ids[:-1]], "y": y}, "dup_id"),
        (lambda ids, y: {"id": [*ids, "new"], "y": [*y, "1"]}, "row_count"),
        (lambda ids, y: {"id": ids, "y": ["NaN"] * N}, "missing"),
        (lambda ids, y: {"id": ids, "y": [*y[1:], "-inf"]}, "missing"),
        (lambda ids, y: {"id": ids, "y": [*y[1:], "1e999"]}, "missing"),
        (lambda ids, y: {"id": ids, "y": [*y[1:], "0x10"]}, "dtype"),
        (lambda ids, y: {"id": ids, "y": y, "id ": ids}, "columns"),
        (lambda ids, y: {"id": sorted(ids), "y": sorted(y, key=float)}, None),
    ],
    ids=["twice", "one id twice", "a new id", "nan", "inf", "overflow", "hexadecimal", "two ids", "sorted"],
)
def test_a_tampered_submission_is_rejected_or_worth_no_more_than_the_dummy(
    change: Callable[[list[str], list[str]], dict[str, list[str]]], expected: str | None
) -> None:
    _, answers = example("rmse")
    found = graded("rmse", change(answers["id"], answers["y"]))
    assert (found.reason, found.normalised) == (expected, 0.0)


def test_training_targets_may_be_of_any_type_and_lack_some() -> None:
    truth = read_truth(csv({"id": ["1", "2"], "y": ["True", "False"]}), problem("accuracy", labels=("True", "False")))
    for column in ([True, True, False], [1.0, 1.0, np.nan], ["True", None, "True"]):
        assert dummy_score(truth, pd.DataFrame({"y": column, "x": range(3)})) == 0.5
    with pytest.raises(ToolError, match="holds no targets"):
        dummy_score(truth, pd.DataFrame({"y": [None]}))
    with pytest.raises(ToolError, match="lacks the columns y"):
        dummy_score(truth, pd.DataFrame({"z": [1]}))


def test_every_metric_has_a_dummy_and_a_stated_paper_value() -> None:
    for metric in METRICS:
        of, answers = example(metric)
        truth = read_truth(csv(answers), of)
        assert math.isfinite(dummy_score(truth, pd.DataFrame(answers)))
        paper = paper_score(truth)
        assert (paper is None) == (
            metric in {"log_loss", "mse", "medae", "rmsle", "mean_rmsle", "smape", "smape_fraction"}
        )


def test_a_task_that_a_constant_solves_is_none() -> None:
    truth = read_truth(csv({"id": ["1", "2"], "y": ["a", "a"]}), problem("accuracy", labels=("a", "b")))
    with pytest.raises(TaskError, match="a constant guess is perfect"):
        compute_anchors(truth, pd.DataFrame({"y": ["a", "a", "b"]}))


ANSWERS = {"id": ["1", "2", "3"], "y": ["1", "0", "1"]}

BROKEN: list[tuple[str, bytes, str]] = [
    ("roc_auc", b"", "cannot be read"),
    ("roc_auc", b"\xff\xfe", "cannot be read"),
    ("roc_auc", b"id,z\n1,1\n2,0\n", "lack the columns y"),
    ("roc_auc", b"id,y\n1,1\n", "1 rows"),
    ("roc_auc", b"id,y\n1,1\n1.0,0\n", "the same id twice"),
    ("roc_auc", b"id,y\n1,1\n2,\n", "1 values are missing"),
    ("roc_auc", b"id,y\n1,1\n2,2\n", "truths of 0 and 1"),
    ("roc_auc", b"id,y\n1,yes\n2,no\n", "no integer"),
    ("roc_auc", b"id,y\n1,1\n2,1\n", "allow no roc_auc"),
    ("pearson", b"id,y\n1,1\n2,1\n", "allow no pearson"),
    ("rmse", b"id,y\n1,1\n2,high\n", "no finite numbers"),
    ("rmsle", b"id,y\n1,1\n2,-0.5\n", "below 0"),
]


@pytest.mark.parametrize(("metric", "data", "message"), BROKEN)
def test_a_broken_truth_is_nobodys_fault(metric: str, data: bytes, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        read_truth(data, problem(metric))


def test_a_missing_truth_is_nobodys_fault(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="the answers of task 't' cannot be read"):
        read_truth(tmp_path / "test_answer.csv", problem("rmse"))
    path = tmp_path / "there.csv"
    path.write_bytes(b"\xef\xbb\xbfid , y,more\n1,1,x\n2,0,x\n")
    assert read_truth(path, problem("rmse")).values.tolist() == [[1.0], [0.0]]


def test_two_classes_in_a_row_are_no_truth() -> None:
    with pytest.raises(ToolError, match="exactly one class"):
        read_truth(b"id,a,b\n1,1,1\n2,0,1\n", problem("log_loss", targets=("a", "b")))


def test_a_label_that_occurs_only_in_the_test_table_can_be_missed() -> None:
    truth = read_truth(csv({"id": ["1", "2"], "y": ["a", "rare"]}), problem("f1_macro", labels=("a", "b")))
    found = grade_submission(truth, Anchors(0.0, 1.0, 0.0), csv({"id": ["1", "2"], "y": ["a", "b"]}))
    assert found.raw == pytest.approx(1 / 3)


def test_normalised_is_the_same_in_both_directions() -> None:
    assert normalise_score(0.75, 0.5, 1.0) == 0.5
    assert normalise_score(3.0, 4.0, 0.0) == 0.25
    assert normalise_score(9.0, 4.0, 0.0) == 0.0
    assert normalise_score(0.99, 0.5, 0.9) == 1.0


def test_percent_of_the_training_range() -> None:
    assert percent_of_range(3.0, problem("rmse", range=(10.0, 40.0))) == 10.0
    for of in (problem("rmse"), problem("rmse", range=(1.0, 1.0))):
        with pytest.raises(TaskError, match="no range"):
            percent_of_range(1.0, of)


def test_completion_and_gap_as_published() -> None:
    scores = {"auc": 0.75, "rmse": 3.0, "worse": 0.1, "nan": math.nan, "none": None}
    bounds = {"auc": (0.5, 1.0), "rmse": (4.0, 0.0), "worse": (0.5, 1.0), "nan": (0.5, 1.0), "none": (0.0, 1.0)}
    bounds["absent"] = (0.0, 1.0)
    assert completion_rate(scores, bounds) == 4 / 6
    assert relative_performance_gap(scores, bounds) == pytest.approx((0.5 + 0.25) / 6)


PUBLISHED = {
    "covid19-global-forecasting-week-1": (2.1152116310688354, 1.5896413241461886, 0.0),
    "covid19-global-forecasting-week-2": (0.6444593631184031, 1.9263201955065756, 0.0),
    "demand-forecasting-kernels-only": (17.493733658520885, 46.21708260177992, 0.0),
    "dont-overfit-ii": (0.305, 0.5, 1.0),
    "playground-series-s3e14": (362.89361028765103, 1080.7384323479398, 0.0),
    "playground-series-s3e16": (1.466541759503072, 2.3440010802781717, 0.0),
    "playground-series-s3e23": (0.7663238602426049, 0.5, 1.0),
    "playground-series-s3e24": (0.8520433831816293, 0.5, 1.0),
    "playground-series-s3e5": (0.488646175099292, 0.0, 1.0),
    "playground-series-s3e9": (12.508458223939208, 16.508201463853187, 0.0),
    "tabular-playground-series-apr-2021": (0.7293, 0.42345, 1.0),
    "tweet-sentiment-extraction": (0.5878487525814398, 0.5878487525814398, 1.0),
}
"""The one run whose files were published: score, baseline and best of each task that it completed."""


def test_the_published_run_gets_its_published_figures() -> None:
    scores: dict[str, float | None] = {name: score for name, (score, _, _) in PUBLISHED.items()}
    bounds = {name: (baseline, best) for name, (_, baseline, best) in PUBLISHED.items()}
    bounds |= {f"not completed {row}": (0.5, 1.0) for row in range(74 - len(PUBLISHED))}
    assert round(100 * completion_rate(scores, bounds), 2) == 16.22
    assert round(100 * relative_performance_gap(scores, bounds), 3) == 6.518
