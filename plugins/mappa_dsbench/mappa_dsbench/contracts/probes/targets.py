"""Compares an agent's target with the task's target, row by row."""

from typing import Any

import numpy as np
import pandas as pd

MIN_DISTINCT_SHARE = 0.5
"""Least share of rows with distinct features, so that rows can be matched by them."""


def to_columns(y: Any) -> pd.DataFrame | None:
    """Convert targets of any type to n rows x m columns, None where they are no targets."""
    if isinstance(y, pd.DataFrame):
        return y.reset_index(drop=True)
    if isinstance(y, (pd.Series, pd.Index, pd.api.extensions.ExtensionArray, list, tuple)):
        return pd.DataFrame({0: pd.Series(y).reset_index(drop=True)})
    if isinstance(y, np.ndarray) and y.ndim in (1, 2) and y.dtype.names is None:
        return pd.DataFrame(y)
    return None


def row_order(features: Any, rows: int, id_column: str) -> Any:
    """Return the row positions in a table of `rows` rows that the features' index names; None where it names none."""
    index = features.index if isinstance(features, pd.DataFrame) else None
    if index is None or index.name == id_column or index.nlevels > 1 or not pd.api.types.is_integer_dtype(index):
        return None
    places = index.to_numpy()
    return places if len(places) and places.min() >= 0 and places.max() < rows else None


def compare_targets(columns: pd.DataFrame, features: Any, train: pd.DataFrame, task: dict[str, Any]) -> str:
    """Return `same`, `recoded` (one to one: other labels, another scale), `other`, or `unknown` where the rows of the
    features cannot be matched with the training table."""
    known = merge_one_hot(train[task["targets"]], columns)
    if has_default_index(features, len(train)) and same_values(known.to_numpy(), columns.to_numpy()):
        return "same"
    if len(known.columns) != len(columns.columns):
        return "other"
    order = row_order(features, len(known), task["id_column"])
    if order is not None and not np.array_equal(order, np.arange(len(order))):
        return compare_columns(known.iloc[order], columns)
    due = known if task["prediction"] == "words" else known.dropna()
    expected = next((one for one in (known, due) if len(one) == len(columns)), None)
    result = "unknown" if expected is None else compare_columns(expected, columns)
    if result in ("same", "recoded"):
        return result
    by_rows = match_rows(columns, features, train, known)
    if by_rows != "unknown" or expected is not None:
        return by_rows if by_rows != "unknown" else result
    return "same" if len(columns) < len(due) and is_subsequence(columns, due) else "unknown"


def has_default_index(features: Any, rows: int) -> bool:
    """Whether the index of the features is that of all rows of a table in order."""
    index = features.index if isinstance(features, pd.DataFrame) else pd.RangeIndex(features.shape[0])
    return isinstance(index, pd.RangeIndex) and (index.start, index.step, len(index)) == (0, 1, rows)


def same_values(ours: Any, theirs: Any) -> bool:
    """Whether two arrays are equal without any conversion."""
    return ours.shape == theirs.shape and bool((ours == theirs).all())


def merge_one_hot(known: pd.DataFrame, columns: pd.DataFrame) -> pd.DataFrame:
    """Merge one-hot targets into one column of classes where the agent's target has one column."""
    if len(known.columns) > 1 and len(columns.columns) == 1 and (known.sum(axis=1, numeric_only=True) == 1).all():
        return pd.DataFrame({0: known.to_numpy(dtype=float).argmax(axis=1)})
    return known


def compare_columns(expected: pd.DataFrame, columns: pd.DataFrame) -> str:
    """Compare all columns row by row; return the worst result."""
    result = {compare_column(expected.iloc[:, one], columns.iloc[:, one]) for one in range(len(columns.columns))}
    return "other" if "other" in result else "recoded" if "recoded" in result else "same"


def match_rows(columns: pd.DataFrame, features: Any, train: pd.DataFrame, known: pd.DataFrame) -> str:
    """Compare the target of each row with that of the training rows with equal features: `same`, `other`, or `unknown`
    where the features were changed, or do not tell the rows apart."""
    if not isinstance(features, pd.DataFrame) or not features.columns.is_unique:
        return "unknown"
    names = [name for name in features.columns if name in train.columns and name not in known.columns]
    kept = [
        name
        for name in names
        if pd.api.types.is_numeric_dtype(train[name]) and is_unchanged(features[name], train[name])
    ]
    rows, ours = (list(zip(*(table[name].tolist() for name in kept), strict=True)) for table in (train, features))
    if not kept or len(set(rows)) < MIN_DISTINCT_SHARE * len(rows):
        return "unknown"
    targets: dict[Any, set[Any]] = {}
    for row, target in zip(rows, rows_as_text(known), strict=True):
        targets.setdefault(row, set()).add(target)
    right = (target in targets.get(row, ()) for row, target in zip(ours, rows_as_text(columns), strict=True))
    return "same" if all(right) else "other"


def is_unchanged(made: Any, column: Any) -> bool:
    """Whether all values of a feature occur in a column of the table that has no gaps."""
    values = to_numbers(made)
    return values is not None and not column.isna().any() and bool(np.isin(values, column.to_numpy()).all())


def compare_column(known: Any, given: Any) -> str:
    """Compare two columns of one length row by row: `same`, `recoded` or `other`."""
    ours, theirs = to_numbers(known), to_numbers(given)
    if ours is not None and theirs is not None:
        if np.allclose(ours, theirs, rtol=1e-5, atol=1e-8, equal_nan=True):
            return "same"
        places = np.argsort(ours, kind="stable")
        up, along = np.diff(ours[places]) > 0, np.diff(theirs[places])
        return "recoded" if up.any() and (along[up] > 0).all() and (along[~up] == 0).all() else "other"
    words, others = column_as_text(known), column_as_text(given)
    if (words == others).all():
        return "same"
    pairs = len(set(zip(words, others, strict=True)))
    return "recoded" if 1 < pairs == len(set(words)) == len(set(others)) else "other"


def is_subsequence(columns: pd.DataFrame, due: pd.DataFrame) -> bool:
    """Whether the rows of `columns` are a subsequence of those of `due`."""
    rows = iter(rows_as_text(due))
    return all(any(row == one for row in rows) for one in rows_as_text(columns))


def rows_as_text(columns: pd.DataFrame) -> list[tuple[str, ...]]:
    """Convert the rows of a table to text."""
    return list(zip(*(column_as_text(columns.iloc[:, one]) for one in range(len(columns.columns))), strict=True))


def to_numbers(column: Any) -> Any:
    """Convert a column to numbers, None where it holds something else."""
    try:
        return np.asarray(column, dtype=float)
    except (TypeError, ValueError):
        return None


def column_as_text(column: Any) -> Any:
    """Convert a column to text, in which 1, 1.0 and True are equal."""
    values = to_numbers(column)
    if values is not None:
        return np.array([repr(float(f"{one:.7g}")) for one in values])
    return np.array([str(one).strip() for one in column], dtype=object)
