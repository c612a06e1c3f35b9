"""Looks into X_train.pkl, y_train.pkl and X_test.pkl: do they fit the task's tables and each other?

The command line holds one JSON object: `id_column`, `targets`, and `prediction` of the task's metric.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mappa_dsbench.contracts.probes.leaks import leaks, refitted
from mappa_dsbench.contracts.probes.opening import Report, kind_of
from mappa_dsbench.contracts.probes.targets import as_columns, compared, order_of

X_TRAIN, Y_TRAIN, X_TEST = "X_train.pkl", "y_train.pkl", "X_test.pkl"
SHOWN = 3
MOST_COLUMNS, LONGEST_NAME = 500, 80
LARGE = 64 << 20
"""Bytes of a table beyond which features are not compared with it, column by column."""


def shape_of(value: Any) -> tuple[int, int] | None:
    """Rows and columns of features, None where they are no table."""
    if isinstance(value, pd.DataFrame) or hasattr(value, "tocsr"):
        return int(value.shape[0]), int(value.shape[1])
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.names is None:
        return int(value.shape[0]), int(value.shape[1])
    return None


def some(names: Sequence[Any]) -> str:
    """The first of some names."""
    return ", ".join(str(name)[:LONGEST_NAME] for name in names[:SHOWN]) + (", …" if len(names) > SHOWN else "")


def check_numbers(report: Report, path: str, value: Any) -> None:
    """Cells that are no finite numbers."""
    if hasattr(value, "tocsr"):
        value = value.data[:, None]
    frame = value if isinstance(value, pd.DataFrame) else pd.DataFrame(value)
    odd = [name for place, name in enumerate(frame.columns) if not numeric(frame.iloc[:, place])]
    if odd:
        report.fault("not_numeric", path, f"{len(odd)} columns: {some(odd)}")
        return
    finite = np.isfinite(frame.to_numpy(dtype=float, na_value=np.nan))
    if not finite.all():
        gaps = [name for name, whole in zip(frame.columns, finite.all(axis=0), strict=True) if not whole]
        report.fault("not_finite", path, f"{int((~finite).sum())} cells in {len(gaps)} columns: {some(gaps)}")


def numeric(column: Any) -> bool:
    """Whether a column can be taken for numbers as libraries of models take it."""
    if pd.api.types.is_numeric_dtype(column):
        return True
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        return False
    try:
        column.to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError):
        return False
    return True


def check_columns(report: Report, train: Any, test: Any) -> None:
    """Columns that differ between the features of both parts."""
    if isinstance(train, pd.DataFrame) and isinstance(test, pd.DataFrame):
        ours, theirs = list(train.columns), list(test.columns)
        if ours == theirs:
            return
        lacking = [name for name in ours if name not in theirs]
        surplus = [name for name in theirs if name not in ours]
        parts = [f"{len(lacking)} are only in {X_TRAIN}: {some(lacking)}"] if lacking else []
        parts += [f"{len(surplus)} are only in {X_TEST}: {some(surplus)}"] if surplus else []
        report.fault("columns", X_TEST, "; ".join(parts) or "they stand in another order")
    elif train.shape[1] != test.shape[1]:
        report.fault("columns", X_TEST, f"{test.shape[1]} columns; {X_TRAIN} has {train.shape[1]}")


def check_test_rows(report: Report, value: Any, rows: int, id_column: str) -> None:
    """Test features that do not stand for the rows of the test table, one by one."""
    if value.shape[0] != rows:
        report.fault("rows", X_TEST, f"{value.shape[0]} rows; test.csv has {rows}")
        return
    if isinstance(value, pd.DataFrame):
        order = order_of(value, rows, id_column)
        if order is not None and not np.array_equal(order, np.arange(rows)):
            report.fault("rows", X_TEST, "the rows stand in another order than in test.csv")


def check_target(report: Report, features: Any, y: Any, train: pd.DataFrame, task: dict[str, Any]) -> str:
    """Whether y is the target, row by row: `same`, `recoded` where it tells the same in other words, `unknown`."""
    columns, rows = as_columns(y), features.shape[0]
    if columns is None:
        report.fault("not_a_table", Y_TRAIN, f"it holds a {kind_of(y)}")
        return "unknown"
    if len(columns) != rows or rows == 0:
        report.fault("rows", Y_TRAIN, f"{len(columns)} rows; {X_TRAIN} has {rows}")
        return "unknown"
    words = task["prediction"] == "words"
    if not words and (gaps := int(columns.isna().any(axis=1).sum())):
        report.fault("not_finite", Y_TRAIN, f"{gaps} rows have gaps")
        return "unknown"
    due = len(train) if words or rows >= len(train) else len(train.dropna(subset=task["targets"]))
    if rows < due:
        report.fault("rows_dropped", X_TRAIN, f"{due - rows} of {due} rows are gone")
    found = compared(columns, features, train, task)
    if found == "other":
        report.fault("wrong_target", Y_TRAIN, "it is not the target of the rows in their order")
    return found


def names_of(value: Any) -> list[str]:
    """The names of the columns, as far as they have any."""
    names = value.columns if isinstance(value, pd.DataFrame) else []
    return [str(name)[:LONGEST_NAME] for name in names[:MOST_COLUMNS]]


def table_of(path: str, columns: Sequence[str]) -> pd.DataFrame:
    """A table of the task; of a large one, only `columns`."""
    whole = Path(path).stat().st_size <= LARGE
    return pd.read_csv(path) if whole else pd.read_csv(path, usecols=list(columns))


def main() -> None:
    task = json.loads(sys.argv[1])
    train = table_of("train.csv", [task["id_column"], *task["targets"]])
    test = table_of("test.csv", [task["id_column"]])
    given = set(pd.read_csv("test.csv", nrows=0).columns)
    report = Report()
    opened = {path: report.opened(path) for path in (X_TRAIN, Y_TRAIN, X_TEST)}
    tables = {}
    for path in (X_TRAIN, X_TEST):
        report.at(path)
        if shape_of(opened[path]) is not None:
            tables[path] = opened[path]
            check_numbers(report, path, opened[path])
        elif opened[path] is not None:
            report.fault("not_a_table", path, f"it holds a {kind_of(opened[path])}")
    x_train, x_test = tables.get(X_TRAIN), tables.get(X_TEST)
    if x_test is not None:
        check_test_rows(report, x_test, len(test), task["id_column"])
    target = "unknown"
    if x_train is not None:
        if opened[Y_TRAIN] is not None:
            report.at(Y_TRAIN)
            target = check_target(report, x_train, opened[Y_TRAIN], train, task)
        leaks(report, x_train, train, given, task)
    if x_train is not None and x_test is not None:
        check_columns(report, x_train, x_test)
        refitted(report, x_train, x_test, train, test)
    report.close(
        columns=names_of(x_train),
        rows_train=None if x_train is None else int(x_train.shape[0]),
        rows_test=None if x_test is None else int(x_test.shape[0]),
        target=target,
    )


if __name__ == "__main__":
    main()
