"""Reads from the training table of a published task its labels, or the range of its targets."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mappa_core import TaskError
from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.problem import Problem
from mappa_dsbench.published.catalogue import Published
from mappa_dsbench.published.check_files import CHUNK_ROWS, TaskFiles

LABEL_PREDICTIONS = ("label", "level", "ranking")
BOOLEAN_LABELS = {"True": "1", "False": "0"}


def read_problem(published: Published, files: TaskFiles) -> Problem:
    """Build the problem from the facts and the training table, of which only the targets are read, in chunks.

    Raises:
        TaskError: the table cannot be read, a label is empty, or a target that should be a number is none.
    """
    prediction = METRICS[published.metric].prediction
    if prediction == "words":
        return published.problem(id_column=files.id_column)
    try:
        if prediction in LABEL_PREDICTIONS:
            labels = set[str]().union(*_read_targets(published, files))
        else:
            ends = list(_piece_ranges(published, files))
    except (OSError, ValueError) as error:
        raise TaskError(f"{files.train}: the targets of {published.name} cannot be read: {error}") from error
    if prediction in LABEL_PREDICTIONS:
        return published.problem(id_column=files.id_column, labels=_sort_labels(labels, files))
    if not ends:
        raise TaskError(f"{files.train}: no row has a target")
    return published.problem(
        id_column=files.id_column, range=(min(low for low, _ in ends), max(high for _, high in ends))
    )


def _piece_ranges(published: Published, files: TaskFiles) -> Iterator[tuple[float, float]]:
    """Yield the smallest and the largest target of each chunk that has any."""
    for cells in _read_targets(published, files):
        numbers = pd.to_numeric(cells.replace({"": None, **BOOLEAN_LABELS})).dropna()
        if not numbers.empty:
            yield float(numbers.min()), float(numbers.max())


def _read_targets(published: Published, files: TaskFiles) -> Iterator[pd.Series]:
    """Yield the stripped cells of all target columns, one chunk of the table at a time."""
    pieces = pd.read_csv(
        files.train,
        usecols=lambda name: name.strip() in published.targets,
        dtype=str,
        keep_default_na=False,
        chunksize=CHUNK_ROWS,
        encoding="utf-8-sig",
    )
    with pieces:
        for piece in pieces:
            yield pd.Series(piece.to_numpy().ravel()).str.strip()


def _sort_labels(labels: set[str], files: TaskFiles) -> tuple[str, ...]:
    if "" in labels:
        raise TaskError(f"{files.train}: a row has no label; leave such rows out of the training table")
    try:
        return tuple(sorted(labels, key=float))
    except ValueError:
        return tuple(sorted(labels))
