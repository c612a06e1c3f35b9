"""Finds leaks in features: the target, the id, and statistics of the test table."""

from typing import Any

import numpy as np
import pandas as pd

from mappa_dsbench.contracts.probes.plain_values import SparseTable
from mappa_dsbench.contracts.probes.report import Report
from mappa_dsbench.contracts.probes.targets import to_numbers

_X_TRAIN, _X_TEST = "X_train.pkl", "X_test.pkl"
MAX_COMPARED_COLUMNS = 2000
"""Number of columns beyond which only names are compared, not values."""
MAX_LABELS = 50
MIN_LABEL_ROWS = 5
"""Least number of rows of a label that is compared."""


def check_leaks(report: Report, features: Any, train: pd.DataFrame, given: set[str], task: dict[str, Any]) -> None:
    """Report the target or the id among the training features, by name or by value; `given` are the columns of the
    test table."""
    names = list(features.columns) if isinstance(features, pd.DataFrame) else []
    targets, id_column = task["targets"], task["id_column"]
    made = [name for target in targets for name in dummy_column_names(target, train[target]) if name in names]
    if inside := [name for name in dict.fromkeys([*targets, *made]) if name in names and name not in given]:
        report.add_fault("target_inside", _X_TRAIN, f"the columns {', '.join(inside[:3])}")
    elif features.shape[0] == len(train) and features.shape[1] <= MAX_COMPARED_COLUMNS:
        revealing = [target for target in targets if reveals_target(features, names, train[target], given)]
        if revealing:
            report.add_fault("target_inside", _X_TRAIN, f"a column holds what {', '.join(revealing[:3])} says")
    signs = {id_column, *(f"{id_column}_{one}" for one in train[id_column])}
    if not signs.isdisjoint(names) or (not names and holds_ids(features, train[id_column])):
        report.add_fault("id_inside", _X_TRAIN, f"the column {id_column}")


def dummy_column_names(target: str, values: Any) -> list[str]:
    """Return the names of a target's one-hot columns, as pandas gives them."""
    kinds = pd.unique(values)
    return [f"{target}_{one}" for one in kinds] if len(kinds) <= MAX_LABELS else []


def reveals_target(features: Any, names: list[Any], target: Any, given: set[str]) -> bool:
    """Whether a column that is no feature of the task holds the target or the indicator of one of its labels. Rare
    labels are left out, as the rows of a rare category may happen to be those of a rare label."""
    places = [place for place in range(features.shape[1]) if not names or names[place] not in given]
    table = to_matrix(features.iloc[:, places] if names else features) if places else None
    if table is None:
        return False
    kinds, values = pd.unique(target), to_numbers(target)
    signs = [target.to_numpy() == one for one in kinds] if 1 < len(kinds) <= MAX_LABELS else []
    revealing = [sign for sign in signs if sign.sum() >= MIN_LABEL_ROWS] + ([] if values is None else [values])
    return any(np.array_equal(column, one) for column in table.T for one in revealing)


def holds_ids(features: Any, ids: Any) -> bool:
    """Whether a column holds the ids, which are numbers."""
    table, values = to_matrix(features), to_numbers(ids)
    if table is None or values is None or table.shape[0] != len(values):
        return False
    return bool((table == values[:, None]).all(axis=0).any())


def to_matrix(features: Any) -> Any:
    """Convert features to n x p numbers, None where they are not numeric, or are sparse."""
    if isinstance(features, SparseTable):
        return None
    return to_numbers(features)


def check_refit(report: Report, x_train: Any, x_test: Any, train: pd.DataFrame, test: pd.DataFrame) -> None:
    """Report test features that were filled or scaled by statistics of the test table."""
    if not isinstance(x_train, pd.DataFrame) or not isinstance(x_test, pd.DataFrame) or len(x_test) != len(test):
        return
    if not x_train.columns.is_unique or not x_test.columns.is_unique:
        return
    shared = [name for name in test.columns if name in x_test.columns and name in x_train.columns]
    filled = [name for name in shared if filled_by_own_statistics(x_test[name], train[name], test[name])]
    scaled = [name for name in shared if scaled_by_own_statistics(x_train[name], x_test[name], test[name])]
    if filled or scaled:
        what = ("filled" if filled else "scaled", len(filled or scaled), ", ".join((filled or scaled)[:3]))
        report.add_fault(
            "refit_on_test", _X_TEST, "{} by the test table's own statistics: {} columns: {}".format(*what)
        )


def filled_by_own_statistics(made: Any, train: Any, test: Any) -> bool:
    """Whether the gaps of a test column were filled with its own mean, median or mode, not the training table's."""
    gaps = test.isna().to_numpy()
    values, raw = to_numbers(made), to_numbers(test)
    if not gaps.any() or gaps.all() or values is None or raw is None or to_numbers(train) is None:
        return False
    x, y = raw[~gaps], values[~gaps]
    spread = np.ptp(x)
    if spread == 0 or not np.isfinite(values).all() or np.ptp(values[gaps]) != 0:
        return False
    scale = np.ptp(y) / spread  # the column may be shifted and scaled
    start = y[x.argmin()] - scale * x.min()
    if scale == 0 or not np.allclose(start + scale * x, y, rtol=1e-6, atol=1e-9):
        return False
    fill = (values[gaps][0] - start) / scale
    close = 1e-6 * spread
    own, theirs = column_statistics(test), column_statistics(train)
    return bool(min(abs(fill - own)) < close and min(abs(fill - theirs)) >= close)


def column_statistics(column: Any) -> Any:
    """Return mean, median and mode of the known values, and 0."""
    return np.array([column.mean(), column.median(), *column.mode()[:1], 0.0], dtype=float)


def scaled_by_own_statistics(x_train: Any, x_test: Any, test: Any) -> bool:
    """Whether training and test part both have mean 0 and deviation 1, as only separate scaling gives."""
    raw = to_numbers(test)
    if raw is None or len(x_test) < 3 or (abs(np.nanmean(raw)) < 1e-6 and abs(np.nanstd(raw) - 1) < 1e-3):
        return False
    parts = [to_numbers(one) for one in (x_train, x_test)]
    return all(
        values is not None
        and abs(values.mean()) < 1e-6
        and min(abs(values.std(ddof=ddof) - 1) for ddof in (0, 1)) < 1e-6
        for values in parts
    )
