"""How good a model is by itself: what it predicts of the test table, graded as if it were handed in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappa_core import Task
from mappa_dsbench.contracts.handing_in import as_submission, ids_of
from mappa_dsbench.grading.grade import grade, normalised
from mappa_dsbench.grading.truth import truth_at
from mappa_dsbench.roles import TEST
from mappa_dsbench.table import table_in


def skill_of(predictions: Mapping[str, Any] | None, task: Task) -> float | None:
    """From 0, a constant guess or what cannot be handed in, to 1, the reference model; perfection where none is known
    that is better than the guess. None where the truth is not shown, the predictions were not told, or they are not of
    the rows of the test table, as the test features are not.

    `predictions` are the fact of that name of the Modeler's Inspection.

    Raises:
        ToolError: the truth cannot be read.
    """
    if task.reference is None or predictions is None or predictions["values"] is None:
        return None
    table = table_in(task)
    problem, anchors = table.problem, table.anchors
    ids = ids_of(Path(task.files[TEST]), problem.id_column)
    if len(predictions["values"]) != len(ids):
        return None
    truth = truth_at(Path(task.reference), problem)
    raw = grade(truth, anchors, as_submission(predictions["values"], problem, ids)).raw
    skill = table.skill(raw)
    if skill is None:
        skill = 0.0 if raw is None else normalised(raw, anchors.dummy, anchors.perfect)
    return skill
