"""Probes X_train.pkl, y_train.pkl and X_test.pkl: do they fit the task's tables and each other?

The command line holds one JSON object: `id_column`, `targets`, and `prediction` of the task's metric.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mappa_dsbench.contracts.probes.leaks import check_leaks, check_refit
from mappa_dsbench.contracts.probes.open_tables import open_features, open_tables, open_target
from mappa_dsbench.contracts.probes.plain_values import SparseTable, is_date
from mappa_dsbench.contracts.probes.report import Report
from mappa_dsbench.contracts.probes.targets import compare_targets, row_order

_X_TRAIN, _Y_TRAIN, _X_TEST = "X_train.pkl", "y_train.pkl", "X_test.pkl"
MAX_SHOWN_NAMES = 3
MAX_COLUMNS, MAX_NAME_LENGTH = 500, 80
LARGE_TABLE_BYTES = 64 << 20
"""Size in bytes of a table beyond which features are not compared with its columns."""


def shorten_names(names: Sequence[Any]) -> str:
    """Format the first names of a list."""
    return ", ".join(str(name)[:MAX_NAME_LENGTH] for name in names[:MAX_SHOWN_NAMES]) + (
        ", …" if len(names) > MAX_SHOWN_NAMES else ""
    )


def check_numbers(report: Report, path: str, value: Any) -> None:
    """Report cells that are no finite numbers, and a table that has none."""
    if not value.shape[1]:
        report.add_fault("not_a_table", path, "it has no columns")
        return
    if isinstance(value, SparseTable):
        value = value.data[:, None]
    frame = value if isinstance(value, pd.DataFrame) else pd.DataFrame(value)
    odd = [name for place, name in enumerate(frame.columns) if not is_numeric_column(frame.iloc[:, place])]
    if odd:
        report.add_fault("not_numeric", path, f"{len(odd)} columns: {shorten_names(odd)}")
        return
    finite = np.isfinite(frame.to_numpy(dtype=float, na_value=np.nan))
    if not finite.all():
        gaps = [name for name, whole in zip(frame.columns, finite.all(axis=0), strict=True) if not whole]
        report.add_fault(
            "not_finite", path, f"{int((~finite).sum())} cells in {len(gaps)} columns: {shorten_names(gaps)}"
        )


def is_numeric_column(column: Any) -> bool:
    """Whether machine learning libraries accept a column as numbers."""
    if pd.api.types.is_numeric_dtype(column):
        return True
    if is_date(column.cat.categories.dtype if isinstance(column.dtype, pd.CategoricalDtype) else column.dtype):
        return False
    try:
        column.to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError):
        return False
    return True


def check_columns(report: Report, train: Any, test: Any) -> None:
    """Report columns that differ between training and test features."""
    if isinstance(train, pd.DataFrame) and isinstance(test, pd.DataFrame):
        ours, theirs = list(train.columns), list(test.columns)
        if ours == theirs:
            return
        lacking = [name for name in ours if name not in theirs]
        surplus = [name for name in theirs if name not in ours]
        parts = [f"{len(lacking)} are only in {_X_TRAIN}: {shorten_names(lacking)}"] if lacking else []
        parts += [f"{len(surplus)} are only in {_X_TEST}: {shorten_names(surplus)}"] if surplus else []
        report.add_fault("columns", _X_TEST, "; ".join(parts) or "they stand in another order")
    elif train.shape[1] != test.shape[1]:
        report.add_fault("columns", _X_TEST, f"{test.shape[1]} columns; {_X_TRAIN} has {train.shape[1]}")


def check_test_rows(report: Report, value: Any, rows: int, id_column: str) -> None:
    """Report test features that do not match the rows of the test table one by one."""
    if value.shape[0] != rows:
        report.add_fault("rows", _X_TEST, f"{value.shape[0]} rows; test.csv has {rows}")
        return
    if isinstance(value, pd.DataFrame):
        order = row_order(value, rows, id_column)
        if order is not None and not np.array_equal(order, np.arange(rows)):
            report.add_fault("rows", _X_TEST, "the rows stand in another order than in test.csv")


def check_target(
    report: Report, features: Any, columns: pd.DataFrame, train: pd.DataFrame, task: dict[str, Any]
) -> str:
    """Compare the columns of y with the target row by row; return `same`, `recoded` (equivalent values), `other` or
    `unknown`."""
    rows = features.shape[0]
    if len(columns) != rows or rows == 0:
        report.add_fault("rows", _Y_TRAIN, f"{len(columns)} rows; {_X_TRAIN} has {rows}")
        return "unknown"
    words = task["prediction"] == "words"
    if not words and (gaps := int(columns.isna().any(axis=1).sum())):
        report.add_fault("not_finite", _Y_TRAIN, f"{gaps} rows have gaps")
        return "unknown"
    due = len(train) if words or rows >= len(train) else len(train.dropna(subset=task["targets"]))
    if rows < due:
        report.add_fault("rows_dropped", _X_TRAIN, f"{due - rows} of {due} rows are gone")
    result = compare_targets(columns, features, train, task)
    if result == "other":
        report.add_fault("wrong_target", _Y_TRAIN, "it is not the target of the rows in their order")
    return result


def column_names(value: Any) -> list[str]:
    """Return the names of the columns; empty where they have none."""
    names = value.columns if isinstance(value, pd.DataFrame) else []
    return [str(name)[:MAX_NAME_LENGTH] for name in names[:MAX_COLUMNS]]


def read_table(path: str, columns: Sequence[str]) -> pd.DataFrame:
    """Read a table of the task; of a large one, only `columns`."""
    whole = Path(path).stat().st_size <= LARGE_TABLE_BYTES
    return pd.read_csv(path) if whole else pd.read_csv(path, usecols=list(columns))


def main() -> None:
    task = json.loads(sys.argv[1])
    sys.path[:] = [folder for folder in sys.path if folder]  # no module comes from the folder of the files
    train = read_table("train.csv", [task["id_column"], *task["targets"]])
    test = read_table("test.csv", [task["id_column"]])
    given = set(pd.read_csv("test.csv", nrows=0).columns)
    report = Report()
    tables = open_tables(report, {_X_TRAIN: open_features, _Y_TRAIN: open_target, _X_TEST: open_features})
    for path in (_X_TRAIN, _X_TEST):
        if path in tables:
            report.begin_file(path)
            check_numbers(report, path, tables[path])
    x_train, x_test = tables.get(_X_TRAIN), tables.get(_X_TEST)
    if x_test is not None:
        check_test_rows(report, x_test, len(test), task["id_column"])
    target = "unknown"
    if x_train is not None:
        if _Y_TRAIN in tables:
            report.begin_file(_Y_TRAIN)
            target = check_target(report, x_train, tables[_Y_TRAIN], train, task)
        check_leaks(report, x_train, train, given, task)
    if x_train is not None and x_test is not None:
        check_columns(report, x_train, x_test)
        check_refit(report, x_train, x_test, train, test)
    report.close(
        columns=column_names(x_train),
        rows_train=None if x_train is None else int(x_train.shape[0]),
        rows_test=None if x_test is None else int(x_test.shape[0]),
        target=target,
    )


if __name__ == "__main__":
    main()
