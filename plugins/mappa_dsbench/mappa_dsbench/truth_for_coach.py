"""Describes the truth for a coach that may see it: the quality of a model or a submission, in context.

A single figure misleads: an accuracy of 0.89 is worthless where 0.89 of the rows are of one class. So the task's metric
is given with the values of the constant guess, of perfection and of the reference model, and with other metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import metrics as library

from mappa_core import Scene
from mappa_dsbench.contracts.check_submission import read_ids, to_submission
from mappa_dsbench.grading.grade import grade_submission
from mappa_dsbench.grading.metrics import METRICS, Values
from mappa_dsbench.grading.submission import Rejection, read_submission
from mappa_dsbench.grading.truth import Truth
from mappa_dsbench.roles import ANALYST, MODELER, TEST
from mappa_dsbench.table import Table, table_of_task

NO_TRUTH_FOR_ACTION = "The answers say nothing of this action by themselves."
NO_TRUTH_WITHOUT_PREDICTIONS = (
    "The answers say nothing of this action: no predictions of a model for the test rows are known."
)


def describe_truth(scene: Scene, truth: Truth, submission: Path | None) -> str:
    """Describe what the truth says of the action of `scene`: an Analyst's by the file `submission`, a Modeler's by its
    model's predictions."""
    table, agent = table_of_task(scene.task), scene.step.agent
    if agent == ANALYST:
        return _describe_grade("The submission", submission, truth, table)
    if agent != MODELER:
        return NO_TRUTH_FOR_ACTION
    predictions = _model_predictions(scene)
    ids = read_ids(Path(scene.task.files[TEST]), truth.problem.id_column)
    if predictions is None or predictions["values"] is None or len(predictions["values"]) != len(ids):
        return NO_TRUTH_WITHOUT_PREDICTIONS
    source = to_submission(predictions["values"], truth.problem, ids)
    return _describe_grade("What the model predicts, handed in as it is,", source, truth, table)


def _model_predictions(scene: Scene) -> Mapping[str, Any] | None:
    inspection = scene.step.inspection
    found: Mapping[str, Any] | None = None if inspection is None else inspection.facts.get("predictions")
    return found


def _describe_grade(what: str, source: Path | bytes | None, truth: Truth, table: Table) -> str:
    """Describe a grade in sentences."""
    anchors, metric = table.anchors, METRICS[truth.problem.metric]
    graded = grade_submission(truth, anchors, source)
    scale = [
        f"By {metric.name} ({metric.better} is better) the best constant guess scores {anchors.dummy:.4g}, "
        f"perfection {anchors.perfect:.4g}."
    ]
    if table.reference_score is not None:
        scale.append(f"A plain reference model, untuned, scores {table.reference_score:.4g}.")
    if graded.raw is None:
        return "\n".join([f"{what} is rejected, and counts as nothing: {graded.reason}: {graded.detail}.", *scale])
    skill, reached = table.skill(graded.earned), graded.normalised
    lines = [
        f"{what} scores {graded.raw:.4g} by {metric.name}.",
        *scale,
        f"Skill from the constant guess (0) to perfection (1): {reached:.2f}"
        + ("." if skill is None else f"; to the reference model (1): {skill:.2f}."),
    ]
    if graded.degenerate:
        lines.append(f"One value for all rows: {', '.join(graded.degenerate)}.")
    if table.is_incredible(graded.raw):
        lines.append("That is far above the reference model: were the answers found elsewhere?")
    read = read_submission(source, truth.problem, truth.ids)
    assert not isinstance(read, Rejection)  # it was graded
    return "\n".join([*lines, *_describe_other_metrics(truth, read.values)])


def _describe_other_metrics(truth: Truth, given: Values) -> list[str]:
    """Describe other metrics than the task's own, from n x m checked predictions."""
    prediction = METRICS[truth.problem.metric].prediction
    if prediction in ("number", "count"):
        errors = np.abs(given - truth.values).mean(axis=0)
        share = float(library.r2_score(truth.values, given))
        return [f"Beside it: R2 {share:.3g}, mean absolute error {', '.join(f'{one:.4g}' for one in errors)}."]
    if given.shape[1] > 1 or prediction in ("ranking", "words", "cell"):
        return []
    known, labels = truth.values[:, 0].astype(str), given[:, 0]
    if prediction in ("score", "probability"):
        if not ((labels >= 0) & (labels <= 1)).all():
            return []
        labels = (labels > 0.5).astype(int)
    labels = labels.astype(str)
    right = float(library.accuracy_score(known, labels))
    f1 = float(library.f1_score(known, labels, average="macro", zero_division=0))
    kinds, counts = np.unique(known, return_counts=True)
    how = " (from 0.5 on it counts as 1)" if prediction in ("score", "probability") else ""
    return [
        f"Beside it{how}: accuracy {right:.3g} where {counts.max() / len(known):.3g} of the rows are "
        f"{kinds[counts.argmax()]!s}; F1 {f1:.3g}, the mean over the {len(kinds)} labels; "
        f"{len(np.unique(labels))} of them are predicted."
    ]
