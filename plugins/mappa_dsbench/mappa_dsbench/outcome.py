"""What a rollout came to, as the numbers that are recorded on it."""

from __future__ import annotations

from mappa_dsbench.grading.grade import Grade, normalised
from mappa_dsbench.table import Table

REJECTED = "rejected_"
"""Begins the key of a rejection; its reason follows."""


def outcome_of(grade: Grade, table: Table) -> dict[str, float]:
    """A grade as figures that can be averaged, and what is told beside them.

    `success` is 1 or 0. `fair_dummy` and `fair_paper` lie between 0, what a failure counts as in that mode (and
    whatever is worse), and 1, perfection; `fair_paper` is left out where the paper has no value for a failure. `skill`
    lies between 0, the constant guess, and 1, the reference model, and is left out where none is known.

    A success has `raw`, in units of the metric, and `incredible`, which is 1 where the run is to be flagged; another
    rollout has `rejected_REASON`, which is 1.
    """
    anchors = table.anchors
    found = {"success": float(grade.success), "fair_dummy": grade.normalised}
    if anchors.paper is not None:
        reached = grade.fair_paper
        found["fair_paper"] = 0.0 if reached is None else normalised(reached, anchors.paper, anchors.perfect)
    if (skill := table.skill(grade.raw)) is not None:
        found["skill"] = skill
    if grade.raw is None:
        return {**found, f"{REJECTED}{grade.reason}": 1.0}
    return {**found, "raw": grade.raw, "incredible": float(table.incredible(grade.raw))}
