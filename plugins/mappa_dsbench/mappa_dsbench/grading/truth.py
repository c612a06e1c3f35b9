"""The true values of a test table. Errors in them are faults of the machinery, never of a team."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd

from mappa_core import ToolError
from mappa_dsbench.grading import cells
from mappa_dsbench.grading.metrics import METRICS, Values
from mappa_dsbench.grading.submission import check_problem
from mappa_dsbench.problem import Problem

MAX_CACHED_TRUTHS = 64
"""Answer files that are cached."""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The truth of a problem's test table: n ids as text, and n rows x m targets."""

    problem: Problem
    ids: tuple[str, ...]
    values: Values


def read_truth(source: Path | bytes, problem: Problem) -> Truth:
    """Read the CSV file of the answers, which has the id and the targets among its columns.

    Raises:
        TaskError: the problem contradicts itself.
        ToolError: the file is missing, cannot be read, or does not fit the problem, its metric included.
    """
    check_problem(problem)
    where = f"the answers of task {problem.name!r}"
    columns = [problem.id_column, *problem.targets]
    try:
        data = source if isinstance(source, bytes) else source.read_bytes()
        table = pd.read_csv(BytesIO(data), dtype=object, na_filter=False, encoding="utf-8-sig", index_col=False)
    except (OSError, pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ToolError(f"{where} cannot be read: {error}") from error
    table.columns = table.columns.str.strip()
    if lacking := [name for name in columns if name.strip() not in table.columns]:
        raise ToolError(f"{where} lack the columns {', '.join(lacking[:5])}")
    table = table[[name.strip() for name in columns]]
    if len(table) < 2:
        raise ToolError(f"{where} have {len(table)} rows; a metric needs two")
    ids = tuple(table.iloc[:, 0])
    form = cells.choose_id_form(ids)
    if len({form(one) for one in ids}) < len(ids):
        raise ToolError(f"{where} have the same id twice")
    truth = Truth(problem, ids, parse_targets(table.iloc[:, 1:], problem, where))
    value = METRICS[problem.metric].compute(truth.values, truth.values)
    if not np.isfinite(value):
        raise ToolError(f"{where} allow no {problem.metric}: a column holds one value only")
    return truth


@lru_cache(maxsize=MAX_CACHED_TRUTHS)
def load_truth(path: Path, problem: Problem) -> Truth:
    """Return `read_truth` of a file, cached. Raises: as `read_truth`."""
    return read_truth(path, problem)


def parse_targets(table: pd.DataFrame, problem: Problem, where: str) -> Values:
    """Parse true targets, n rows x m, for the metric of `problem`. `where` names the table in messages.

    Raises:
        ToolError: a value is missing or is none that the metric knows.
    """
    prediction = METRICS[problem.metric].prediction
    texts = np.asarray(table, dtype=object)
    if prediction == "words":
        return texts
    labels = {cells.normalize_label(one) for one in problem.labels or ()}
    if gaps := sum(cells.is_absent(cell) and cells.normalize_label(cell) not in labels for cell in texts.flat):
        raise ToolError(f"{where}: {gaps} values are missing")
    if prediction in ("number", "count"):
        numbers = _parse_numbers(texts, where)
        if prediction == "count" and (numbers < 0).any():
            raise ToolError(f"{where}: values below 0, which {problem.metric} does not allow")
        return numbers
    known = np.asarray(table.map(cells.normalize_label), dtype=object)
    if prediction in ("label", "ranking"):
        return known.astype(str)
    integers = _parse_integers(known, where)
    if prediction != "level" and not np.isin(integers, (0, 1)).all():
        raise ToolError(f"{where}: {problem.metric} needs truths of 0 and 1")
    if prediction == "probability" and integers.shape[1] > 1 and (integers.sum(axis=1) != 1).any():
        raise ToolError(f"{where}: a row does not have exactly one class")
    return integers


def targets_as_text(table: pd.DataFrame, targets: Sequence[str], where: str) -> pd.DataFrame:
    """Convert target columns to text, without rows that lack a target. `where` names the table in messages.

    Raises:
        ToolError: a column is not there, or no row is left.
    """
    if lacking := [name for name in targets if name not in table.columns]:
        raise ToolError(f"{where} lacks the columns {', '.join(lacking[:5])}")
    texts = table[list(targets)].dropna().astype(str).astype(object)
    if texts.empty:
        raise ToolError(f"{where} holds no targets")
    return texts


def _parse_numbers(texts: Values, where: str) -> Values:
    parsed = [cells.parse_number(cell) for cell in texts.flat]
    numbers = np.array([np.inf if one is None else one for one in parsed], dtype=float).reshape(texts.shape)
    if not np.isfinite(numbers).all():
        raise ToolError(f"{where}: {int((~np.isfinite(numbers)).sum())} values are no finite numbers")
    return numbers


def _parse_integers(known: Values, where: str) -> Values:
    try:
        return known.astype(int)
    except (ValueError, OverflowError) as error:
        raise ToolError(f"{where}: a value is no integer: {error}") from error
