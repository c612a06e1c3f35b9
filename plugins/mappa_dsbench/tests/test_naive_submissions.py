"""What submissions are worth that learned nothing from the features: of every metric of the embedded tasks a few, and
with `make soak` all tasks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from io import BytesIO

import numpy as np
import pandas as pd
import pytest
from pandas.api.types import is_numeric_dtype

from mappa_dsbench.embedded.catalogue import CATALOGUE
from mappa_dsbench.embedded.facts import load_facts
from mappa_dsbench.embedded.make_task import EmbeddedFiles
from mappa_dsbench.grading.grade import Grade, grade_submission
from mappa_dsbench.grading.truth import read_truth
from mappa_dsbench.outcome import build_outcome

FIRST_OF_METRIC = {load_facts()[name].table.problem.metric: name for name in reversed(CATALOGUE)}
MEANS_THAT_FIT = {"table-6307c6d9": (0.716563, 0.879841), "table-0b158331": (14.418740, 16.229302)}
"""The mean of the training targets and the best guess of the training table, by the metric (both errors) on the test
rows: on the first the error of the mean is 18.6 % nearer to perfection."""


@cache
def made(name: str) -> EmbeddedFiles:
    return CATALOGUE[name].make_files()


def graded(name: str, submission: pd.DataFrame | bytes) -> Grade:
    task, facts = made(name), load_facts()[name].table
    data = submission if isinstance(submission, bytes) else submission.to_csv(index=False).encode()
    return grade_submission(read_truth(task.answer, task.problem), facts.anchors, data)


def constants(name: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Submissions of one value a column, by what it is."""
    task = made(name)
    targets = pd.read_csv(BytesIO(task.train))[list(task.problem.targets)]
    values = {"0": 0, "1": 1, "mode": targets.mode().iloc[0]}
    if all(is_numeric_dtype(targets[column]) for column in targets):
        values |= {what: getattr(targets, what)() for what in ("mean", "median", "min", "max")}
    ids = pd.read_csv(BytesIO(task.test))[[task.problem.id_column]]
    for what, value in values.items():
        yield what, ids.assign(**{column: value if np.isscalar(value) else value[column] for column in targets})


def copies(name: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Copies of the training targets in their order and in that of the ids, and the ranks of the ids."""
    task = made(name)
    key, targets = task.problem.id_column, list(task.problem.targets)
    train, test = (pd.read_csv(BytesIO(table)) for table in (task.train, task.test))
    for what, known, ids in (
        ("in order", train, test[[key]]),
        ("by id", train.sort_values(key), test[[key]].sort_values(key)),
    ):
        yield what, ids.assign(**{column: np.resize(known[column].to_numpy(), len(ids)) for column in targets})
    yield "ranks", test[[key]].assign(**dict.fromkeys(targets, test[key].astype(str).rank(pct=True)))


def check_constants(name: str) -> None:
    table = load_facts()[name].table
    assert graded(name, made(name).sample).normalised == 0.0
    for what, submission in constants(name):
        found = graded(name, submission)
        outcome = build_outcome(found, table)
        assert (found.normalised, outcome["fair_dummy"], outcome.get("skill", 0.0)) == (0.0, 0.0, 0.0), (name, what)


@pytest.mark.parametrize("metric", FIRST_OF_METRIC)
def test_no_constant_is_worth_anything(metric: str) -> None:
    check_constants(FIRST_OF_METRIC[metric])


@pytest.mark.parametrize("name", MEANS_THAT_FIT)
def test_a_constant_that_fits_the_test_rows_better_than_the_guess_is_worth_nothing(name: str) -> None:
    found = graded(name, dict(constants(name))["mean"])
    assert (found.raw, load_facts()[name].table.anchors.dummy) == pytest.approx(MEANS_THAT_FIT[name], abs=1e-6)
    assert found.constant and found.earned is None
    check_constants(name)


@pytest.mark.parametrize("name", [FIRST_OF_METRIC["rmse"], FIRST_OF_METRIC["accuracy"]])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda answers, target: pd.concat([answers[:-1], answers[:1]]), "dup_id"),
        (lambda answers, target: answers[:-1], "row_count"),
        (lambda answers, target: answers.assign(**{target: np.nan}), "missing"),
    ],
    ids=["an id twice", "a row less", "no value"],
)
def test_true_answers_in_a_broken_table_are_worth_nothing(name, change, reason) -> None:
    task = made(name)
    found = graded(name, change(pd.read_csv(BytesIO(task.answer)), task.problem.targets[0]))
    assert (found.reason, found.normalised) == (reason, 0.0)


@pytest.mark.soak
def test_nothing_that_looks_at_no_feature_is_worth_more_than_chance_on_any_task() -> None:
    worth: dict[str, list[float]] = {}
    for name in CATALOGUE:
        check_constants(name)
        for what, submission in copies(name):
            worth.setdefault(what, []).append(graded(name, submission).normalised)
    assert {what: np.mean(found) < 0.02 for what, found in worth.items()} == dict.fromkeys(worth, True)
