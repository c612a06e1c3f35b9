"""Computes the skill of a model by itself: its predictions for the test table, graded as if submitted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappa_core import Task
from mappa_dsbench.contracts.check_submission import read_ids, to_submission
from mappa_dsbench.grading.grade import grade_submission
from mappa_dsbench.grading.truth import load_truth
from mappa_dsbench.roles import TEST
from mappa_dsbench.table import table_of_task


def compute_skill(predictions: Mapping[str, Any] | None, task: Task) -> float | None:
    """Return the skill from 0, a constant guess or an invalid submission, to 1, the reference model (perfection where
    no reference better than the guess is known). None where the truth is not shown, there are no predictions, or they
    do not match the rows of the test table.

    `predictions` is the fact of that name in the Modeler's Inspection.

    Raises:
        ToolError: the truth cannot be read.
    """
    if task.reference is None or predictions is None or predictions["values"] is None:
        return None
    table = table_of_task(task)
    problem, anchors = table.problem, table.anchors
    ids = read_ids(Path(task.files[TEST]), problem.id_column)
    if len(predictions["values"]) != len(ids):
        return None
    truth = load_truth(Path(task.reference), problem)
    graded = grade_submission(truth, anchors, to_submission(predictions["values"], problem, ids))
    skill = table.skill(graded.earned)
    return graded.normalised if skill is None else skill
