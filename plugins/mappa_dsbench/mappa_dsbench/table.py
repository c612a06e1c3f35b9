"""What a DSBench task carries in `Task.meta`, as values and as JSON, and how it is read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from mappa_core import Task, TaskError
from mappa_dsbench.grading.grade import Anchors, normalised
from mappa_dsbench.problem import Problem

ROOM = 0.1
"""The share of the way from the dummy to perfection that a reference must leave for a score to be incredible."""
CLOSED = 0.9
"""The share of what the reference left open that an incredible score has closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What is known of a task's tables without the truth.

    `features` are the columns of the test table without the id, in their order; `missing` says whether one of them has
    empty cells, `categorical` whether one is text. `reference_score` is what an untuned model scores by the task's
    metric, None where no one has tried. `published` are DSBench's baseline and best score in the same unit, None for
    tasks that are not its own, or where the tables are not.
    """

    problem: Problem
    anchors: Anchors
    features: tuple[str, ...]
    missing: bool
    categorical: bool
    reference_score: float | None = None
    published: tuple[float, float] | None = None

    def skill(self, raw: float | None) -> float | None:
        """How far a score is on the way from the constant guess (0) to the reference model (1); nothing handed in is 0.
        None where no reference is known, or where it is no better than the constant guess."""
        if self.reference_score is None or not self._reached(self.reference_score):
            return None
        return 0.0 if raw is None else normalised(raw, self.anchors.dummy, self.reference_score)

    def incredible(self, raw: float) -> bool:
        """Whether a score of the task's metric lies so far above the reference model's that it has hardly been learned
        from the training table. Never where no reference is known, or where it leaves no room above it."""
        if self.reference_score is None:
            return False
        known = self._reached(self.reference_score)
        return 1 - known >= ROOM and self._reached(raw) - known >= CLOSED * (1 - known)

    def _reached(self, raw: float) -> float:
        """From 0, the constant guess, to 1, perfection."""
        return normalised(raw, self.anchors.dummy, self.anchors.perfect)


def described(features: pd.DataFrame) -> tuple[bool, bool]:
    """Whether any feature has empty cells, and whether any is text."""
    texts = (not is_numeric_dtype(features[column]) for column in features.columns)
    return bool(features.isna().any(axis=None)), any(texts)


def meta_of(table: Table) -> dict[str, Any]:
    """The table as JSON values, for `Task.meta`."""
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


def table_of(meta: Mapping[str, Any]) -> Table:
    """What `meta_of` gave. KeyError: something is missing in it."""
    problem, published = _problem(meta["problem"]), meta["published"]
    return Table(
        problem=problem,
        anchors=Anchors(meta["dummy"], meta["perfect"], meta["paper"]),
        features=tuple(meta["features"]),
        missing=meta["missing"],
        categorical=meta["categorical"],
        reference_score=meta["reference_score"],
        published=None if published is None else (published[0], published[1]),
    )


def table_in(task: Task) -> Table:
    """What `meta_of` wrote into the task.

    Raises:
        TaskError: the task is none of DSBench's.
    """
    try:
        return table_of(task.meta)
    except KeyError as error:
        raise TaskError(
            f"task {task.id!r} is no table that DSBench's team can work on: its meta lacks {error.args[0]!r}; "
            "choose tasks.use=dsbench-embedded or tasks.use=dsbench"
        ) from None


def problem_in(task: Task) -> Problem:
    """What is asked in a task. TaskError: it is none of DSBench's."""
    return table_in(task).problem


def anchors_in(task: Task) -> Anchors:
    """What the raw scores of a task are held against. TaskError: it is none of DSBench's."""
    return table_in(task).anchors


def _problem(found: Mapping[str, Any]) -> Problem:
    return Problem(
        name=found["name"],
        kind=found["kind"],
        metric=found["metric"],
        id_column=found["id_column"],
        targets=tuple(found["targets"]),
        labels=None if found["labels"] is None else tuple(found["labels"]),
        range=None if found["range"] is None else (found["range"][0], found["range"][1]),
    )
