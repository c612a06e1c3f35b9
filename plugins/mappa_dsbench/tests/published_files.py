"""Made-up files of the right shape for each of the published tasks."""

from __future__ import annotations

import csv
from pathlib import Path

from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.published.catalogue import Published

TRAIN_ROWS, TEST_ROWS = 40, 10
VALUES = {
    "score": ("0", "1"),
    "probability": ("0", "1"),
    "label": ("0", "1"),
    "level": ("3", "5", "8"),
    "ranking": ("Dengue", "Rift_Valley_fever", "Malaria", "Zika", "Chikungunya"),
    "number": ("1.5", "-0.25", "3"),
    "count": ("0", "12.5"),
    "words": ('so "very", very good', "two\nlines", ""),
}


def write(path: Path, header, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def target(task: Published, row: int) -> list[str]:
    if task.metric == "log_loss" and len(task.targets) > 1:
        return ["1" if column == row % len(task.targets) else "0" for column in range(len(task.targets))]
    values = ("False", "True") if task.name in ("spaceship-titanic", "playground-series-s3e23") else None
    values = values or VALUES[METRICS[task.metric].prediction]
    return [values[(row + column) % len(values)] for column in range(len(task.targets))]


def write_task(root: Path, task: Published, *, test_rows: int | None = None) -> Path:
    """Made-up files of the right shape: 40 training rows, 10 test rows; answers in another order. The tables' folder.

    `test_rows` is used where the catalogue knows a small number of them.
    """
    count = test_rows or TEST_ROWS
    tables = root / "data_resplit" / task.name
    ids = [f"{1000 + row}" for row in range(TRAIN_ROWS + count)]
    features = [[f"{row / 7:.4f}", f"word {row}"] for row in range(TRAIN_ROWS + count)]
    head, tail = range(TRAIN_ROWS), range(TRAIN_ROWS, TRAIN_ROWS + count)
    write(
        tables / "train.csv",
        [task.id_column, "x", "about", *task.targets],
        [[ids[row], *features[row], *target(task, row)] for row in head],
    )
    write(tables / "test.csv", [task.id_column, "x", "about"], [[ids[row], *features[row]] for row in tail])
    header = [task.id_column, *task.targets]
    write(tables / "sampleSubmission.csv", header, [[ids[row], *target(task, 0)] for row in tail])
    answers = [[ids[row], *target(task, row)] for row in reversed(tail)]
    write(root / "answers" / task.name / "test_answer.csv", header, answers)
    return tables
