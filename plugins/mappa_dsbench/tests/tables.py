"""Small tasks made by hand, with gaps, categories and answers, for tests of the team."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from mappa_core import Task
from mappa_dsbench.grading.grade import compute_anchors
from mappa_dsbench.grading.metrics import METRICS, problem_kind
from mappa_dsbench.grading.truth import read_truth
from mappa_dsbench.problem import Problem
from mappa_dsbench.table import Table, table_to_meta

TRAIN_ROWS, TEST_ROWS = 60, 30


@dataclass(frozen=True)
class Made:
    """A task in a folder, with its tables at hand."""

    task: Task
    train: pd.DataFrame
    test: pd.DataFrame
    answers: pd.DataFrame


def made(folder: Path, metric: str, *, name: str = "pens", targets: tuple[str, ...] = ("ink",)) -> Made:
    """A task that is graded by `metric`: features `age` and `size` (which has gaps) and `maker` (text, of which one
    value occurs in the test table alone)."""
    draw = np.random.default_rng(7)
    rows = TRAIN_ROWS + TEST_ROWS
    age = draw.normal(50, 10, rows).round(2)
    size = draw.normal(5, 2, rows).round(2)
    signal = (age - 50) / 10 + (size - 5) / 2 + draw.normal(0, 0.3, rows)
    wanted = METRICS[metric].prediction
    columns = {}
    for target in targets:
        if wanted in ("number", "count"):
            columns[target] = (np.exp(signal / 2) * 10).round(3)
        elif wanted == "label":
            columns[target] = np.where(signal > 0.5, "red", np.where(signal > -0.5, "green", "blue"))
        elif wanted == "level":
            columns[target] = np.clip(np.round(signal + 4), 2, 6).astype(int)
        else:
            columns[target] = (signal > 0).astype(int)
    maker = draw.choice(["acme", "bolt"], rows)
    maker[-3:] = "zeta"
    gaps = np.where(draw.random(rows) < 0.2, np.nan, size)
    ids = draw.permutation(np.arange(1000, 1000 + rows))
    whole = pd.DataFrame({"pen_id": ids, "age": age, "size": gaps, "maker": maker, **columns})
    train, rest = whole.iloc[:TRAIN_ROWS], whole.iloc[TRAIN_ROWS:].reset_index(drop=True)
    test, answers = rest.drop(columns=list(targets)), rest[["pen_id", *targets]]
    sample = answers.assign(**{target: train[target].iloc[0] for target in targets})
    folder.mkdir(parents=True, exist_ok=True)
    files = {"train.csv": train, "test.csv": test, "sample_submission.csv": sample}
    for file, table in files.items():
        table.to_csv(folder / file, index=False)
    (folder / "answers").mkdir()
    answers.to_csv(folder / "answers" / "answers.csv", index=False)
    problem = _problem(name, metric, targets, train)
    truth = read_truth(folder / "answers" / "answers.csv", problem)
    known = Table(
        problem=problem,
        anchors=compute_anchors(truth, train),
        features=("age", "size", "maker"),
        missing=True,
        categorical=True,
    )
    task = Task(
        id=name,
        prompt="Predict the ink of every pen.",
        reference=str(folder / "answers" / "answers.csv"),
        stratum=problem.kind,
        files={file: str(folder / file) for file in files},
        meta=table_to_meta(known),
    )
    return Made(task, train, test, answers)


def with_reference_score(made: Made, score: float) -> Made:
    """The same task where a reference model scores so much."""
    return replace(made, task=replace(made.task, meta={**made.task.meta, "reference_score": score}))


def _problem(name: str, metric: str, targets: tuple[str, ...], train: pd.DataFrame) -> Problem:
    labelled = METRICS[metric].prediction in ("label", "level")
    values = train[list(targets)]
    return Problem(
        name=name,
        kind=problem_kind(metric),
        metric=metric,
        id_column="pen_id",
        targets=targets,
        labels=tuple(sorted(map(str, values.stack().unique()))) if labelled else None,
        range=None if labelled else (float(values.min(axis=None)), float(values.max(axis=None))),
    )


def features(made: Made) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Features of both parts as a careful engineer makes them."""
    parts = []
    for table in (made.train, made.test):
        size = table["size"].fillna(made.train["size"].median())
        parts.append(pd.DataFrame({"age": table["age"], "size": size, "acme": (table["maker"] == "acme").astype(int)}))
    return parts[0], parts[1]
