"""The outcome of a rollout as recorded numbers."""

from __future__ import annotations

from mappa_dsbench.grading.grade import Grade, normalise_score
from mappa_dsbench.grading.submission import UNREADABLE
from mappa_dsbench.table import Table

REJECTED_PREFIX = "rejected_"
"""Prefix of a rejection's key; the reason follows."""


def build_outcome(grade: Grade, table: Table) -> dict[str, float]:
    """Convert a grade to figures that can be averaged, and further figures beside them.

    `success` is 1 or 0, and so is `parsed`, whether the submission is a table that can be read at all. `fair_dummy` and
    `fair_paper` lie between 0, the value of a failure in that mode and of anything worse, and 1, perfection;
    `fair_paper` is left out where the paper has no value for a failure. `skill` lies between 0, the constant guess, and
    1, the reference model, and is left out where no reference is known.

    A success has `raw`, in units of the metric, and `incredible`, which is 1 where the run is flagged; a failure has
    `rejected_REASON`, which is 1.
    """
    anchors = table.anchors
    parsed = grade.reason not in UNREADABLE
    outcome = {"success": float(grade.success), "parsed": float(parsed), "fair_dummy": grade.normalised}
    if anchors.paper is not None:
        reached = grade.fair_paper
        outcome["fair_paper"] = 0.0 if reached is None else normalise_score(reached, anchors.paper, anchors.perfect)
    if (skill := table.skill(grade.earned)) is not None:
        outcome["skill"] = skill
    if grade.raw is None:
        return {**outcome, f"{REJECTED_PREFIX}{grade.reason}": 1.0}
    return {**outcome, "raw": grade.raw, "incredible": float(table.is_incredible(grade.raw))}
