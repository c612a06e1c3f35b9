"""Completes the files of a task: adds missing ids, by which predictions and answers are joined, and a missing sample
submission."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from mappa_core import TaskError
from mappa_dsbench.problem import Problem
from mappa_dsbench.published.check_files import TaskFiles
from mappa_dsbench.task_prompt import constant_guess


def join_ids(files: TaskFiles, folder: Path) -> TaskFiles:
    """Return the files with ids in both the test table and the answers.

    Where both have ids, nothing is written. Otherwise the answers get the test table's ids, or both get row numbers
    from 0, which no sample submission has; these copies are written to `folder`, row by row. Both are in the same row
    order, as published.

    Raises:
        TaskError: a table cannot be read or a copy written, or a table has another number of rows than was counted.
    """
    if files.ids == "joined":
        return files
    test, answers, sample = files.test, folder / files.answers.name, files.sample
    if files.ids == "row_number":
        test, sample = folder / files.test.name, None
        _copy_with_ids(files.test, test, files.id_column, count(), files.test_rows)
    _copy_with_ids(files.answers, answers, files.id_column, _read_ids(test, files.id_column), files.test_rows)
    return replace(files, test=test, answers=answers, sample=sample, ids="joined")


def add_sample(files: TaskFiles, problem: Problem, folder: Path) -> TaskFiles:
    """Return the files with a sample submission; where there is none, it is made from the ids of the test table.

    Raises:
        TaskError: it cannot be written, or the test table not read.
    """
    if files.sample is not None:
        return files
    sample = folder / "sample_submission.csv"
    guess = constant_guess(problem)
    try:
        with sample.open("x", encoding="utf-8", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow((problem.id_column, *problem.targets))
            out.writerows((one, *[guess] * len(problem.targets)) for one in _read_ids(files.test, problem.id_column))
    except OSError as error:
        raise TaskError(f"{sample} cannot be written: {error}") from error
    return replace(files, sample=sample)


def _copy_with_ids(source: Path, target: Path, id_column: str, ids: Iterable[object], expected: int) -> None:
    """Copy a table with `ids` as the first column, replacing an existing id column."""
    rows = _read_rows(source)
    header = next(rows)
    kept = [place for place, name in enumerate(header) if name.strip() != id_column]
    written = 0
    try:
        with target.open("x", encoding="utf-8", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow((id_column, *(header[place] for place in kept)))
            for identifier, row in zip(ids, rows, strict=False):
                out.writerow((identifier, *(row[place] for place in kept)))
                written += 1
    except OSError as error:
        raise TaskError(f"{target} cannot be written: {error}") from error
    except TaskError:
        target.unlink()
        raise
    if written != expected:
        target.unlink()
        # A row of one empty cell is an empty line: if it were skipped, all answers after it would be shifted.
        raise TaskError(f"{source}: {written} rows with values, but {expected} were counted; no row may be empty")


def _read_ids(test: Path, id_column: str) -> Iterator[str]:
    rows = _read_rows(test)
    place = [name.strip() for name in next(rows)].index(id_column)
    return (row[place] for row in rows)


def _read_rows(source: Path) -> Iterator[list[str]]:
    """Yield the rows of a table, its header first, without empty lines. TaskError: it cannot be read, or a row has
    another number of cells than the header."""
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header = next(rows)
            yield header
            for row in filter(None, rows):
                if len(row) != len(header):
                    raise TaskError(f"{source}:{rows.line_num}: {len(row)} cells, but the header has {len(header)}")
                yield row
    except (csv.Error, UnicodeDecodeError) as error:
        raise TaskError(f"{source} cannot be copied with ids: {error}") from error
