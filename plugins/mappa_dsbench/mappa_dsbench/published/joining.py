"""Completes the files of a task: ids where there are none, so that predictions and answers can be joined by them, and a
sample submission."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from mappa_core import TaskError
from mappa_dsbench.asking import guess_of
from mappa_dsbench.problem import Problem
from mappa_dsbench.published.layout import TaskFiles


def joined(files: TaskFiles, folder: Path) -> TaskFiles:
    """The same files with ids in both the test table and the answers.

    Where they have them already, nothing is written. Elsewhere the answers get the test table's ids, or both get row
    numbers from 0, which no sample submission has; these copies are written to `folder`, in pieces. Row order is the
    same in both, as it is published.

    Raises:
        TaskError: a copy cannot be written, or a table has another number of rows than was counted.
    """
    if files.ids == "joined":
        return files
    test, answers, sample = files.test, folder / files.answers.name, files.sample
    if files.ids == "row_number":
        test, sample = folder / files.test.name, None
        _copy(files.test, test, files.id_column, count(), files.test_rows)
    _copy(files.answers, answers, files.id_column, _ids(test, files.id_column), files.test_rows)
    return replace(files, test=test, answers=answers, sample=sample, ids="joined")


def with_sample(files: TaskFiles, problem: Problem, folder: Path) -> TaskFiles:
    """The same files with a sample submission, made of the ids of the test table where there is none. The test table
    has ids.

    Raises:
        TaskError: it cannot be written.
    """
    if files.sample is not None:
        return files
    sample = folder / "sample_submission.csv"
    guess = guess_of(problem)
    try:
        with sample.open("x", encoding="utf-8", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow((problem.id_column, *problem.targets))
            out.writerows((one, *[guess] * len(problem.targets)) for one in _ids(files.test, problem.id_column))
    except OSError as error:
        raise TaskError(f"{sample} cannot be written: {error}") from error
    return replace(files, sample=sample)


def _copy(source: Path, target: Path, id_column: str, ids: Iterable[object], expected: int) -> None:
    """Copy a table with `ids` in front, instead of an id column that it may have."""
    try:
        with (
            source.open(encoding="utf-8-sig", newline="") as read,
            target.open("x", encoding="utf-8", newline="") as write,
        ):
            rows, out = csv.reader(read), csv.writer(write, lineterminator="\n")
            header = next(rows)
            kept = [place for place, name in enumerate(header) if name.strip() != id_column]
            out.writerow((id_column, *(header[place] for place in kept)))
            written = 0
            for identifier, row in zip(ids, (row for row in rows if row), strict=False):
                out.writerow((identifier, *(row[place] for place in kept)))
                written += 1
    except OSError as error:
        raise TaskError(f"{target} cannot be written: {error}") from error
    if written != expected:
        target.unlink()
        # A row that is one empty cell is an empty line: were it passed over, all answers after it would be shifted.
        raise TaskError(f"{source}: {written} rows with values, but {expected} were counted; no row may be empty")


def _ids(test: Path, id_column: str) -> Iterator[str]:
    with test.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        place = [name.strip() for name in next(rows)].index(id_column)
        yield from (row[place] for row in rows if row)
