"""Is what an agent calls the target the target of the task, row by row?"""

from typing import Any

import numpy as np
import pandas as pd

KNOWN_APART = 0.5
"""The least share of rows that features must tell apart, so that rows can be found by them."""


def as_columns(y: Any) -> pd.DataFrame | None:
    """Targets of any form, n rows x m, None where they are none."""
    if isinstance(y, pd.DataFrame):
        return y.reset_index(drop=True)
    if isinstance(y, (pd.Series, pd.Index, pd.api.extensions.ExtensionArray, list, tuple)):
        return pd.DataFrame({0: pd.Series(y).reset_index(drop=True)})
    if isinstance(y, np.ndarray) and y.ndim in (1, 2) and y.dtype.names is None:
        return pd.DataFrame(y)
    return None


def order_of(features: Any, rows: int, id_column: str) -> Any:
    """The places in a table of `rows` rows that features stand for, by their index; None where it does not tell."""
    index = features.index if isinstance(features, pd.DataFrame) else None
    if index is None or index.name == id_column or index.nlevels > 1 or not pd.api.types.is_integer_dtype(index):
        return None
    places = index.to_numpy()
    return places if len(places) and places.min() >= 0 and places.max() < rows else None


def compared(columns: pd.DataFrame, features: Any, train: pd.DataFrame, task: dict[str, Any]) -> str:
    """`same`, `recoded` (one to one: other labels, another scale), `other`, or `unknown` where the rows of the features
    cannot be found in the training table."""
    known = in_one(train[task["targets"]], columns)
    if is_plain(features, len(train)) and same(known.to_numpy(), columns.to_numpy()):
        return "same"
    if len(known.columns) != len(columns.columns):
        return "other"
    order = order_of(features, len(known), task["id_column"])
    if order is not None and not np.array_equal(order, np.arange(len(order))):
        return agreed(known.iloc[order], columns)
    due = known if task["prediction"] == "words" else known.dropna()
    expected = next((one for one in (known, due) if len(one) == len(columns)), None)
    found = "unknown" if expected is None else agreed(expected, columns)
    if found in ("same", "recoded"):
        return found
    by_rows = matched(columns, features, train, known)
    if by_rows != "unknown" or expected is not None:
        return by_rows if by_rows != "unknown" else found
    return "same" if len(columns) < len(due) and is_part(columns, due) else "unknown"


def is_plain(features: Any, rows: int) -> bool:
    """Whether features stand for all rows of a table in their order, as far as their index tells."""
    index = features.index if isinstance(features, pd.DataFrame) else pd.RangeIndex(features.shape[0])
    return isinstance(index, pd.RangeIndex) and (index.start, index.step, len(index)) == (0, 1, rows)


def same(ours: Any, theirs: Any) -> bool:
    """Whether two tables hold the same values, at the first glance."""
    return ours.shape == theirs.shape and bool((ours == theirs).all())


def in_one(known: pd.DataFrame, columns: pd.DataFrame) -> pd.DataFrame:
    """The targets, as one column of classes where there is one column for each class and one is given."""
    if len(known.columns) > 1 and len(columns.columns) == 1 and (known.sum(axis=1, numeric_only=True) == 1).all():
        return pd.DataFrame({0: known.to_numpy(dtype=float).argmax(axis=1)})
    return known


def agreed(expected: pd.DataFrame, columns: pd.DataFrame) -> str:
    """How all columns agree, row by row: as the worst of them."""
    found = {alike(expected.iloc[:, one], columns.iloc[:, one]) for one in range(len(columns.columns))}
    return "other" if "other" in found else "recoded" if "recoded" in found else "same"


def matched(columns: pd.DataFrame, features: Any, train: pd.DataFrame, known: pd.DataFrame) -> str:
    """Whether each row has the target that a row of the training table with the same features has: `same`, `other`, or
    `unknown` where the features are not those of the table any more, or do not tell the rows apart."""
    if not isinstance(features, pd.DataFrame) or not features.columns.is_unique:
        return "unknown"
    names = [name for name in features.columns if name in train.columns and name not in known.columns]
    kept = [
        name for name in names if pd.api.types.is_numeric_dtype(train[name]) and is_kept(features[name], train[name])
    ]
    rows, ours = (list(zip(*(table[name].tolist() for name in kept), strict=True)) for table in (train, features))
    if not kept or len(set(rows)) < KNOWN_APART * len(rows):
        return "unknown"
    targets: dict[Any, set[Any]] = {}
    for row, target in zip(rows, in_words(known), strict=True):
        targets.setdefault(row, set()).add(target)
    right = (target in targets.get(row, ()) for row, target in zip(ours, in_words(columns), strict=True))
    return "same" if all(right) else "other"


def is_kept(made: Any, column: Any) -> bool:
    """Whether all values of a feature are those of a column of the table, which has no gaps."""
    values = numbers(made)
    return values is not None and not column.isna().any() and bool(np.isin(values, column.to_numpy()).all())


def alike(known: Any, given: Any) -> str:
    """How two columns of one length agree, row by row: `same`, `recoded` or `other`."""
    ours, theirs = numbers(known), numbers(given)
    if ours is not None and theirs is not None:
        if np.allclose(ours, theirs, rtol=1e-5, atol=1e-8, equal_nan=True):
            return "same"
        places = np.argsort(ours, kind="stable")
        up, along = np.diff(ours[places]) > 0, np.diff(theirs[places])
        return "recoded" if up.any() and (along[up] > 0).all() and (along[~up] == 0).all() else "other"
    words, others = as_words(known), as_words(given)
    if (words == others).all():
        return "same"
    pairs = len(set(zip(words, others, strict=True)))
    return "recoded" if 1 < pairs == len(set(words)) == len(set(others)) else "other"


def is_part(columns: pd.DataFrame, due: pd.DataFrame) -> bool:
    """Whether the rows of `columns` are rows of `due` in their order, some of them left out."""
    rows = iter(in_words(due))
    return all(any(row == one for row in rows) for one in in_words(columns))


def in_words(columns: pd.DataFrame) -> list[tuple[str, ...]]:
    """The rows of a table as text."""
    return list(zip(*(as_words(columns.iloc[:, one]) for one in range(len(columns.columns))), strict=True))


def numbers(column: Any) -> Any:
    """A column as numbers, None where it holds something else."""
    try:
        return np.asarray(column, dtype=float)
    except (TypeError, ValueError):
        return None


def as_words(column: Any) -> Any:
    """A column as text, in which 1, 1.0 and True are the same."""
    values = numbers(column)
    if values is not None:
        return np.array([repr(float(f"{one:.7g}")) for one in values])
    return np.array([str(one).strip() for one in column], dtype=object)
