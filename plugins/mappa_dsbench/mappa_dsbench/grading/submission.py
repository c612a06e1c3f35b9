"""Reads a submission as untrusted data, and joins it to the ids of the test table.

The checks have a fixed order, and the first one that fails is the reason. Nothing is repaired silently: no row is
dropped, filled or rounded, and rows are matched by id alone, never by order. The one repair is counted: a `count`
above -1 and below 0 becomes 0.
"""

from __future__ import annotations

import csv
import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from mappa_core import TaskError, ToolError
from mappa_dsbench.grading import cells
from mappa_dsbench.grading.metrics import MAX_RANKS, METRICS, Prediction, Values, is_constant
from mappa_dsbench.problem import Problem

RejectionReason = Literal[
    "no_file", "irregular", "too_large", "unreadable", "columns", "row_count", "dup_id", "id_mismatch", "missing",
    "dtype", "non_label", "range", "metric_error",
]  # fmt: skip
"""Why a submission is rejected, in the order of the checks.

`no_file`: there is none. `irregular`: a link, a folder or anything else that is no regular file. `too_large`.
`unreadable`: no CSV file in UTF-8, an empty one, or one with several headers.
`columns`: others than the id and the targets. `row_count`. `dup_id`. `id_mismatch`: ids that the test table lacks.
`missing`: an empty, undefined or infinite value. `dtype`: no number where one is due. `non_label`: no label of the
training table. `range`: a number that the metric does not allow. `metric_error`: the metric is not finite.
"""

UNREADABLE: tuple[RejectionReason, ...] = ("no_file", "irregular", "too_large", "unreadable")
"""Reasons for which there is no table to check."""

MAX_SUBMISSION_BYTES = 256 << 20
"""Size limit of a submission: twice the largest published one."""

MAX_ROW_COMMAS = 10_000
"""Commas of one row, outside quotes, that are read: the table's parser keeps all cells of a row before it refuses
them."""

ROW_SUM_TOLERANCE = 1e-3
"""Tolerance of the sum of a row's probabilities, which are then scaled to add up to 1."""

_LINE, _QUOTED = re.compile(rb"[^\r\n]+"), re.compile(rb'"[^"]*"')
_SHOWN = 3
_SHOWN_CHARACTERS = 40
_NO_REGULAR_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV)


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason why a submission is not graded. `detail` says in one line what was found and what was expected."""

    reason: RejectionReason
    detail: str


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """Checked predictions, n test rows x m targets, in the order of the test ids and of `Problem.targets`.

    `n_clipped` counts values below 0 that were set to 0; `degenerate` names the columns that hold one value only.
    """

    values: Values
    n_clipped: int
    degenerate: tuple[str, ...]


class _RejectedError(Exception):
    def __init__(self, reason: RejectionReason, detail: str) -> None:
        super().__init__(detail)
        self.rejected = Rejection(reason, detail)


def read_submission(
    source: Path | bytes | None, problem: Problem, ids: Sequence[str], *, limit_bytes: int = MAX_SUBMISSION_BYTES
) -> Submission | Rejection:
    """Check a submission and align it with `ids`, the ids of the test table as text.

    `source` is the path, the content, or None where there is no submission.

    Raises:
        TaskError: the problem contradicts itself.
        ToolError: the machine cannot read the file.
    """
    check_problem(problem)
    try:
        data = _read_content(source, limit_bytes)
        rows = _align(_parse_rows(data, problem, len(ids)), problem, ids)
        return _check_values(rows, problem)
    except _RejectedError as refusal:
        return refusal.rejected


def check_problem(problem: Problem) -> None:
    """Check that a problem can be graded.

    Raises:
        TaskError: the metric is unknown, does not take these columns, or needs labels that are missing or no integers.
    """
    metric = METRICS.get(problem.metric)
    if metric is None:
        raise TaskError(f"task {problem.name!r}: unknown metric {problem.metric!r}; there are {', '.join(METRICS)}")
    if not problem.targets or (metric.columns == "one" and len(problem.targets) > 1):
        raise TaskError(f"task {problem.name!r}: {metric.name} is not for {len(problem.targets)} targets")
    columns = [column.strip() for column in (problem.id_column, *problem.targets)]
    if len(set(columns)) < len(columns):
        raise TaskError(f"task {problem.name!r}: two of its columns have the same name")
    if metric.prediction in ("label", "level", "ranking") and not problem.labels:
        raise TaskError(f"task {problem.name!r}: {metric.name} needs the labels of the training table")
    if metric.prediction == "level" and not all(cells.is_integer(one) for one in problem.labels or ()):
        raise TaskError(f"task {problem.name!r}: {metric.name} needs labels that are integers")


def _read_content(source: Path | bytes | None, limit_bytes: int) -> bytes:
    if source is None:
        raise _RejectedError("no_file", "there is no submission")
    data = source if isinstance(source, bytes) else _read_file(source, limit_bytes)
    if len(data) > limit_bytes:
        raise _RejectedError("too_large", f"{len(data)} bytes; at most {limit_bytes} are read")
    return data


def _read_file(path: Path, limit_bytes: int) -> bytes:
    """Read a regular file. It is opened before it is checked, as a program could swap it in between."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _RejectedError("no_file", f"there is no {path.name}") from error
    except PermissionError as error:
        raise _RejectedError("unreadable", f"{path.name} may not be read") from error
    except OSError as error:
        if error.errno in _NO_REGULAR_FILE:
            raise _RejectedError("irregular", f"{path.name} is no regular file") from error
        raise ToolError(f"cannot read the submission {path}: {error}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _RejectedError("irregular", f"{path.name} is no regular file")
        if status.st_size > limit_bytes:
            raise _RejectedError("too_large", f"{status.st_size} bytes; at most {limit_bytes} are read")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit_bytes + 1)
    except OSError as error:
        raise ToolError(f"cannot read the submission {path}: {error}") from error
    finally:
        os.close(descriptor)


def _parse_rows(data: bytes, problem: Problem, expected: int) -> pd.DataFrame:
    """Parse the rows below the header as text, by stripped column name."""
    data = data.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    if not data:
        raise _RejectedError("unreadable", "the file is empty")
    if b"\0" in data:
        raise _RejectedError("unreadable", "the file holds bytes that are no text")
    header = _parse_header(data, problem)
    _refuse_wide_rows(data)
    try:
        # One row more than expected is enough to detect too many rows.
        table = pd.read_csv(BytesIO(data), header=None, dtype=object, na_filter=False, nrows=expected + 2)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise _RejectedError("unreadable", _one_line(str(error))) from error
    table.columns = pd.Index(header)
    body = table.iloc[1:]
    again = np.logical_and.reduce([body[name].str.strip() == name for name in header])
    if again.any():
        raise _RejectedError("unreadable", f"there are several headers; another one in row {int(again.argmax()) + 2}")
    if len(body) != expected:
        found = "more" if len(body) > expected else str(len(body))
        raise _RejectedError("row_count", f"{found} rows; {expected} are due")
    return body


def _parse_header(data: bytes, problem: Problem) -> list[str]:
    """Parse the column names. Their number is checked before they are parsed: a header may fill the whole file."""
    due = [name.strip() for name in (problem.id_column, *problem.targets)]
    line = next(_LINE.finditer(data))[0]
    if line.count(b",") > sum(name.count(",") + 1 for name in due):
        raise _RejectedError("columns", f"far more columns than {_shorten(due)}")
    try:
        [names] = csv.reader([line.decode()], strict=True)
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise _RejectedError("unreadable", f"the header: {_one_line(str(error))}") from error
    found = [name.strip() for name in names]
    if Counter(found) != Counter(due):
        raise _RejectedError("columns", f"{_shorten(found)}; due are {_shorten(due)}")
    return found


def _refuse_wide_rows(data: bytes) -> None:
    for line in _LINE.finditer(data):
        if data.count(b",", *line.span()) > MAX_ROW_COMMAS and _QUOTED.sub(b"", line[0]).count(b",") > MAX_ROW_COMMAS:
            raise _RejectedError("unreadable", f"a row has more than {MAX_ROW_COMMAS:,} columns")


def _align(rows: pd.DataFrame, problem: Problem, ids: Sequence[str]) -> pd.DataFrame:
    """Join the rows to the test ids, in their order."""
    form = cells.choose_id_form(ids)
    given = pd.Index(rows[problem.id_column.strip()].map(form))
    if not given.is_unique:
        twice = given[given.duplicated()].unique()
        raise _RejectedError("dup_id", f"{len(twice)} ids occur more than once: {_shorten(twice)}")
    places = given.get_indexer(pd.Index([form(one) for one in ids]))
    if (places < 0).any():
        lacking = [one for one, place in zip(ids, places, strict=True) if place < 0]
        raise _RejectedError("id_mismatch", f"{len(lacking)} ids of the test table are not there: {_shorten(lacking)}")
    return rows.iloc[places][[target.strip() for target in problem.targets]]


def _check_values(rows: pd.DataFrame, problem: Problem) -> Submission:
    prediction = METRICS[problem.metric].prediction
    labels = frozenset(cells.normalize_label(one) for one in problem.labels or ())
    if prediction != "words":
        _reject_cells(
            rows, lambda cell: cells.is_absent(cell) and cells.normalize_label(cell) not in labels, "missing", "values"
        )
    if prediction == "words":
        values: Values = np.asarray(rows)
    elif prediction in ("label", "level", "cell", "ranking"):
        values = _parse_labels(rows, prediction, labels)
    else:
        values = _parse_numbers(rows)
    n_clipped = 0
    if prediction == "probability":
        values = _check_probabilities(values)
    if prediction == "count":
        values, n_clipped = _check_counts(values)
    columns = zip(problem.targets, values.T, strict=True)
    return Submission(values, n_clipped, tuple(name for name, column in columns if is_constant(column)))


def _parse_labels(rows: pd.DataFrame, prediction: Prediction, labels: frozenset[str]) -> Values:
    if prediction == "ranking":
        _reject_cells(
            rows, lambda cell: len(cell.split()) > MAX_RANKS, "dtype", f"cells with more than {MAX_RANKS} labels"
        )
        _reject_cells(
            rows,
            lambda cell: any(cells.normalize_label(one) not in labels for one in cell.split()),
            "non_label",
            "cells",
        )
        return np.asarray(rows.map(lambda cell: " ".join(cells.normalize_label(one) for one in cell.split())))
    allowed = frozenset({"0", "1"}) if prediction == "cell" else labels
    _reject_cells(rows, lambda cell: cells.normalize_label(cell) not in allowed, "non_label", "values")
    known = rows.apply(lambda column: column.map({cell: cells.normalize_label(cell) for cell in column.unique()}))
    return np.asarray(known, dtype=str if prediction == "label" else int)


def _parse_numbers(rows: pd.DataFrame) -> Values:
    values = np.asarray(rows.map(cells.parse_number), dtype=float)
    if np.isnan(values).any():
        _reject_cells(rows, lambda cell: cells.parse_number(cell) is None, "dtype", "values that are no numbers")
    if not np.isfinite(values).all():
        raise _RejectedError("missing", f"{int((~np.isfinite(values)).sum())} values are too large to be numbers")
    return values


def _check_probabilities(values: Values) -> Values:
    outside = int(((values < 0) | (values > 1)).sum())
    if outside:
        raise _RejectedError("range", f"{outside} probabilities are not between 0 and 1")
    if values.shape[1] == 1:
        return values
    sums = values.sum(axis=1, keepdims=True)
    off = int((np.abs(sums - 1) > ROW_SUM_TOLERANCE).sum())
    if off:
        raise _RejectedError("range", f"the probabilities of {off} rows do not add up to 1")
    return np.asarray(values / sums)


def _check_counts(values: Values) -> tuple[Values, int]:
    if (low := int((values <= -1).sum())) > 0:
        raise _RejectedError("range", f"{low} values are -1 or less")
    return np.maximum(values, 0.0), int((values < 0).sum())


def _reject_cells(rows: pd.DataFrame, wrong: Callable[[str], bool], reason: RejectionReason, what: str) -> None:
    """Reject the submission where any cell is `wrong`, naming the first such cells."""
    faults = {name: [cell for cell in column.unique() if wrong(cell)] for name, column in rows.items()}
    faulty = {name: found for name, found in faults.items() if found}
    if faulty:
        first, found = next(iter(faulty.items()))
        count = sum(int(rows[name].isin(bad).sum()) for name, bad in faulty.items())
        raise _RejectedError(reason, f"{count} {what}; the first in {first!r}: {_shorten(found)}")


def _shorten(texts: Iterable[str]) -> str:
    """Format the first of some texts, shortened, as they are untrusted."""
    *shown, last = [*(list(texts)[: _SHOWN + 1]), ""][: _SHOWN + 1]
    return ", ".join(repr(one[:_SHOWN_CHARACTERS]) for one in shown) + (", …" if last else "")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
