"""What features know that they should not: the target, the id, and what the test table says of itself."""

from typing import Any

import numpy as np
import pandas as pd

from mappa_dsbench.contracts.probes.opening import Report
from mappa_dsbench.contracts.probes.targets import numbers

X_TRAIN, X_TEST = "X_train.pkl", "X_test.pkl"
WIDEST = 2000
"""Columns beyond which values are not compared, only names."""
LABELS = 50
RARE = 5
"""Rows."""


def leaks(report: Report, features: Any, train: pd.DataFrame, given: set[str], task: dict[str, Any]) -> None:
    """The target or the id among the training features, by name or by value; `given` are the columns of the test
    table."""
    names = list(features.columns) if isinstance(features, pd.DataFrame) else []
    targets, id_column = task["targets"], task["id_column"]
    made = [name for target in targets for name in derived(target, train[target]) if name in names]
    if inside := [name for name in dict.fromkeys([*targets, *made]) if name in names and name not in given]:
        report.fault("target_inside", X_TRAIN, f"the columns {', '.join(inside[:3])}")
    elif features.shape[0] == len(train) and features.shape[1] <= WIDEST:
        told = [target for target in targets if told_by(features, names, train[target], given)]
        if told:
            report.fault("target_inside", X_TRAIN, f"a column holds what {', '.join(told[:3])} says")
    signs = {id_column, *(f"{id_column}_{one}" for one in train[id_column])}
    if not signs.isdisjoint(names) or (not names and holds(features, train[id_column])):
        report.fault("id_inside", X_TRAIN, f"the column {id_column}")


def derived(target: str, values: Any) -> list[str]:
    """How columns are called that stand for the single labels of a target."""
    kinds = pd.unique(values)
    return [f"{target}_{one}" for one in kinds] if len(kinds) <= LABELS else []


def told_by(features: Any, names: list[Any], target: Any, given: set[str]) -> bool:
    """Whether a column that is no feature of the task holds the target, or says of each row whether it has one of the
    labels: one that is not rare, as the rows of a rare category may happen to be those of a rare label."""
    places = [place for place in range(features.shape[1]) if not names or names[place] not in given]
    table = as_numbers(features.iloc[:, places] if names else features) if places else None
    if table is None:
        return False
    kinds, values = pd.unique(target), numbers(target)
    signs = [target.to_numpy() == one for one in kinds] if 1 < len(kinds) <= LABELS else []
    told = [sign for sign in signs if sign.sum() >= RARE] + ([] if values is None else [values])
    return any(np.array_equal(column, one) for column in table.T for one in told)


def holds(features: Any, ids: Any) -> bool:
    """Whether a column holds the ids, which are numbers."""
    table, values = as_numbers(features), numbers(ids)
    if table is None or values is None or table.shape[0] != len(values):
        return False
    return bool((table == values[:, None]).all(axis=0).any())


def as_numbers(features: Any) -> Any:
    """Features as n x p numbers, None where they are not, or are sparse."""
    if hasattr(features, "tocsr"):
        return None
    return numbers(features)


def refitted(report: Report, x_train: Any, x_test: Any, train: pd.DataFrame, test: pd.DataFrame) -> None:
    """Test features that were filled or scaled by statistics of the test table."""
    if not isinstance(x_train, pd.DataFrame) or not isinstance(x_test, pd.DataFrame) or len(x_test) != len(test):
        return
    if not x_train.columns.is_unique or not x_test.columns.is_unique:
        return
    shared = [name for name in test.columns if name in x_test.columns and name in x_train.columns]
    filled = [name for name in shared if filled_alone(x_test[name], train[name], test[name])]
    scaled = [name for name in shared if scaled_alone(x_train[name], x_test[name], test[name])]
    if filled or scaled:
        what = ("filled" if filled else "scaled", len(filled or scaled), ", ".join((filled or scaled)[:3]))
        report.fault("refit_on_test", X_TEST, "{} by the test table's own statistics: {} columns: {}".format(*what))


def filled_alone(made: Any, train: Any, test: Any) -> bool:
    """Whether the gaps of a column were filled with its own mean, median or mode, and not the training table's."""
    gaps = test.isna().to_numpy()
    values, raw = numbers(made), numbers(test)
    if not gaps.any() or gaps.all() or values is None or raw is None or numbers(train) is None:
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
    own, theirs = statistics(test), statistics(train)
    return bool(min(abs(fill - own)) < close and min(abs(fill - theirs)) >= close)


def statistics(column: Any) -> Any:
    """Mean, median and mode of what is there, and 0."""
    return np.array([column.mean(), column.median(), *column.mode()[:1], 0.0], dtype=float)


def scaled_alone(x_train: Any, x_test: Any, test: Any) -> bool:
    """Whether both parts of a column have mean 0 and deviation 1, which only each by itself can have made."""
    raw = numbers(test)
    if raw is None or len(x_test) < 3 or (abs(np.nanmean(raw)) < 1e-6 and abs(np.nanstd(raw) - 1) < 1e-3):
        return False
    parts = [numbers(one) for one in (x_train, x_test)]
    return all(
        values is not None
        and abs(values.mean()) < 1e-6
        and min(abs(values.std(ddof=ddof) - 1) for ddof in (0, 1)) < 1e-6
        for values in parts
    )
