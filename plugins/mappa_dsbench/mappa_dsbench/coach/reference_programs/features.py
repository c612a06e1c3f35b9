"""train.csv and test.csv -> X_train.pkl, y_train.pkl and X_test.pkl: numbers only, without gaps, id and targets."""

from __future__ import annotations

import json
import sys

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

MAX_CATEGORIES = 20
"""Categories of a column that get a column each, the most frequent first."""
PROSE_SHARE = 0.5
"""A text column with a larger share of distinct values is prose: its lengths are features, not its values."""
MAX_ROWS = 20_000
"""Limit on training rows; more are sampled with a fixed seed."""


def build_features(train: pd.DataFrame, test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Convert the columns of both tables to numbers, fitted on the training table."""
    tables: list[dict[str, pd.Series]] = [{}, {}]
    for name in test.columns:
        known, unknown = train[name], test[name]
        if is_numeric_dtype(known) and is_numeric_dtype(unknown):
            parts = [{"": known}, {"": unknown}]
        elif (dates := parse_dates(known)) is not None:
            parts = [date_parts(dates), date_parts(pd.to_datetime(unknown, errors="coerce", format="mixed"))]
        elif known.nunique() > max(MAX_CATEGORIES, PROSE_SHARE * len(known)):
            parts = [text_lengths(known), text_lengths(unknown)]
        else:
            common = known.value_counts().index[:MAX_CATEGORIES]
            parts = [{f" is {one}": column == one for one in common} for column in (known, unknown)]
        for columns, found in zip(tables, parts, strict=True):
            columns.update({f"{name}{part}": column for part, column in found.items()})
    train_columns, test_columns = (pd.DataFrame(columns).astype(float) for columns in tables)
    train_columns = train_columns.replace([np.inf, -np.inf], np.nan)
    middle = train_columns.median().fillna(0.0)
    return train_columns.fillna(middle), test_columns.replace([np.inf, -np.inf], np.nan).fillna(middle)


def parse_dates(column: pd.Series) -> pd.Series | None:
    """Parse a text column as dates, None where it holds something else."""
    if not column.astype(str).str.match(r"\d{4}-\d\d-\d\d|\d\d?/\d\d?/\d{4}").mean() > PROSE_SHARE:
        return None
    return pd.to_datetime(column, errors="coerce", format="mixed")


def date_parts(dates: pd.Series) -> dict[str, pd.Series]:
    """Convert dates to numbers."""
    parts = ("year", "month", "day", "day_of_week", "hour")
    return {f" {part}": getattr(dates.dt, part) for part in parts}


def text_lengths(column: pd.Series) -> dict[str, pd.Series]:
    """Convert prose to numbers: its lengths."""
    text = column.fillna("").astype(str)
    return {" letters": text.str.len(), " words": text.str.split().str.len()}


def main() -> None:
    task = json.loads(sys.argv[1])
    train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
    train = train.dropna(subset=[] if task["prediction"] == "words" else task["targets"])
    if len(train) > MAX_ROWS:
        train = train.sample(MAX_ROWS, random_state=0)
    x_train, x_test = build_features(train, test.drop(columns=task["id_column"]))
    y_train = train[task["targets"]].squeeze(axis="columns")
    x_train.to_pickle("X_train.pkl")
    y_train.to_pickle("y_train.pkl")
    x_test.to_pickle("X_test.pkl")


if __name__ == "__main__":
    main()
