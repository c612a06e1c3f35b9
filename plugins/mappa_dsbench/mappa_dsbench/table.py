"""The metadata of a DSBench task: as values, and as JSON in `Task.meta`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from mappa_core import Task, TaskError
from mappa_dsbench.grading.grade import Anchors, normalise_score
from mappa_dsbench.problem import Problem

MIN_ROOM_ABOVE_REFERENCE = 0.1
"""Least distance of a reference from perfection, as a share of the way from the dummy, to call a score incredible."""
MIN_CLOSED_SHARE = 0.9
"""Least share of the way from the reference to perfection that an incredible score has covered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The facts about a task's tables that need no truth.

    `features` are the columns of the test table without the id, in order; `missing` says whether one of them has empty
    cells, `categorical` whether one is text. `reference_score` is the score of an untuned model by the task's metric,
    None where none was computed. `published` are DSBench's baseline and best score in the same unit, None for tasks
    that are not DSBench's, or whose tables differ from its.
    """

    problem: Problem
    anchors: Anchors
    features: tuple[str, ...]
    missing: bool
    categorical: bool
    reference_score: float | None = None
    published: tuple[float, float] | None = None

    def skill(self, raw: float | None) -> float | None:
        """Scale a score from the constant guess (0) to the reference model (1); no submission is 0. None where no
        reference is known, or where it is no better than the constant guess."""
        if self.reference_score is None or not self._normalise(self.reference_score):
            return None
        return 0.0 if raw is None else normalise_score(raw, self.anchors.dummy, self.reference_score)

    def is_incredible(self, raw: float) -> bool:
        """Whether a score is so far above the reference model's that it was hardly learned from the training table.
        False where no reference is known, or where it leaves no room above it."""
        if self.reference_score is None:
            return False
        known = self._normalise(self.reference_score)
        return 1 - known >= MIN_ROOM_ABOVE_REFERENCE and self._normalise(raw) - known >= MIN_CLOSED_SHARE * (1 - known)

    def _normalise(self, raw: float) -> float:
        """Scale a score from the constant guess (0) to perfection (1)."""
        return normalise_score(raw, self.anchors.dummy, self.anchors.perfect)


def has_missing_and_text(features: pd.DataFrame) -> tuple[bool, bool]:
    """Return whether any feature has empty cells, and whether any is text."""
    texts = (not is_numeric_dtype(features[column]) for column in features.columns)
    return bool(features.isna().any(axis=None)), any(texts)


def table_to_meta(table: Table) -> dict[str, Any]:
    """Convert the table to JSON values for `Task.meta`."""
    problem, anchors = table.problem, table.anchors
    return {
        "problem": {
            "name": problem.name,
            "kind": problem.kind,
            "metric": problem.metric,
            "id_column": problem.id_column,
            "targets": list(problem.targets),
            "labels": None if problem.labels is None else list(problem.labels),
            "range": None if problem.range is None else list(problem.range),
        },
        "features": list(table.features),
        "missing": table.missing,
        "categorical": table.categorical,
        "dummy": anchors.dummy,
        "perfect": anchors.perfect,
        "paper": anchors.paper,
        "reference_score": table.reference_score,
        "published": None if table.published is None else list(table.published),
    }


def table_from_meta(meta: Mapping[str, Any]) -> Table:
    """Convert the values of `table_to_meta` back. KeyError: one is missing."""
    problem, published = _problem_from_meta(meta["problem"]), meta["published"]
    return Table(
        problem=problem,
        anchors=Anchors(meta["dummy"], meta["perfect"], meta["paper"]),
        features=tuple(meta["features"]),
        missing=meta["missing"],
        categorical=meta["categorical"],
        reference_score=meta["reference_score"],
        published=None if published is None else (published[0], published[1]),
    )


def table_of_task(task: Task) -> Table:
    """Read the table from a task's meta.

    Raises:
        TaskError: the task is none of DSBench's.
    """
    try:
        return table_from_meta(task.meta)
    except KeyError as error:
        raise TaskError(
            f"task {task.id!r} is no table that DSBench's team can work on: its meta lacks {error.args[0]!r}; "
            "choose tasks.use=dsbench-embedded or tasks.use=dsbench"
        ) from None


def problem_of_task(task: Task) -> Problem:
    """Return the problem of a task. TaskError: the task is none of DSBench's."""
    return table_of_task(task).problem


def anchors_of_task(task: Task) -> Anchors:
    """Return the anchors of a task's raw scores. TaskError: the task is none of DSBench's."""
    return table_of_task(task).anchors


def _problem_from_meta(meta: Mapping[str, Any]) -> Problem:
    return Problem(
        name=meta["name"],
        kind=meta["kind"],
        metric=meta["metric"],
        id_column=meta["id_column"],
        targets=tuple(meta["targets"]),
        labels=None if meta["labels"] is None else tuple(meta["labels"]),
        range=None if meta["range"] is None else (meta["range"][0], meta["range"][1]),
    )
