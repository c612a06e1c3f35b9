"""train.csv and test.csv -> X_train.pkl, y_train.pkl and X_test.pkl: numbers only, without gaps, id and targets."""

from __future__ import annotations

import json
import sys

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

CATEGORIES = 20
"""How many categories of a column get a column of their own, the commonest first."""
PROSE = 0.5
"""A column of text in which more than this share of values are different is prose: it is measured, not matched."""
ROWS = 20_000
"""Training rows that are used at most, drawn with a fixed seed."""


def features(train: pd.DataFrame, test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The columns of both tables as numbers, by what the training table knows of them."""
    made: list[dict[str, pd.Series]] = [{}, {}]
    for name in test.columns:
        known, asked = train[name], test[name]
        if is_numeric_dtype(known) and is_numeric_dtype(asked):
            parts = [{"": known}, {"": asked}]
        elif (dates := as_dates(known)) is not None:
            parts = [moments(dates), moments(pd.to_datetime(asked, errors="coerce", format="mixed"))]
        elif known.nunique() > max(CATEGORIES, PROSE * len(known)):
            parts = [lengths(known), lengths(asked)]
        else:
            common = known.value_counts().index[:CATEGORIES]
            parts = [{f" is {one}": column == one for one in common} for column in (known, asked)]
        for columns, found in zip(made, parts, strict=True):
            columns.update({f"{name}{part}": column for part, column in found.items()})
    train_columns, test_columns = (pd.DataFrame(columns).astype(float) for columns in made)
    train_columns = train_columns.replace([np.inf, -np.inf], np.nan)
    middle = train_columns.median().fillna(0.0)
    return train_columns.fillna(middle), test_columns.replace([np.inf, -np.inf], np.nan).fillna(middle)


def as_dates(column: pd.Series) -> pd.Series | None:
    """The dates of a column of text, None where it holds something else."""
    if not column.astype(str).str.match(r"\d{4}-\d\d-\d\d|\d\d?/\d\d?/\d{4}").mean() > PROSE:
        return None
    return pd.to_datetime(column, errors="coerce", format="mixed")


def moments(dates: pd.Series) -> dict[str, pd.Series]:
    """A date as numbers."""
    parts = ("year", "month", "day", "day_of_week", "hour")
    return {f" {part}": getattr(dates.dt, part) for part in parts}


def lengths(column: pd.Series) -> dict[str, pd.Series]:
    """Prose as numbers."""
    text = column.fillna("").astype(str)
    return {" letters": text.str.len(), " words": text.str.split().str.len()}


def main() -> None:
    task = json.loads(sys.argv[1])
    train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
    train = train.dropna(subset=[] if task["prediction"] == "words" else task["targets"])
    if len(train) > ROWS:
        train = train.sample(ROWS, random_state=0)
    x_train, x_test = features(train, test.drop(columns=task["id_column"]))
    y_train = train[task["targets"]].squeeze(axis="columns")
    x_train.to_pickle("X_train.pkl")
    y_train.to_pickle("y_train.pkl")
    x_test.to_pickle("X_test.pkl")


if __name__ == "__main__":
    main()
