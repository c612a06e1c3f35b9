"""What evidence weighs where actions are ranked, in log-odds against all other actions of a trajectory.

Fitted on one half of a set of labelled failures by `docs/evidence/evidence_weights.py`, which prints this table, and
reported on the other half (docs/evidence/blame.md). What fewer than three runs of that half hold is not fitted: it
weighs `CHOSEN`, at which one action among eight is as likely as not.
"""

from __future__ import annotations

from collections.abc import Mapping

from mappa_coach_evidence.evidence import ACCUSED
from mappa_coach_evidence.rules import RULES

CHOSEN = 2.0
FIRST_PLACE = 8.0
"""What hard evidence weighs: more than all that is soft together."""

_FITTED: Mapping[str, float] = {
    "admitted failure": 0.91,
    "admitted failure, first": 0.65,
    "computed value": 0.31,
    "computed value, first": 0.43,
    "failed program": 0.66,
    "failed program, first": 0.52,
    "keeper turns": -0.50,
    "lateness": -0.49,
    "made-up value": 1.52,
    "made-up value, first": 1.25,
    "pretended check": 0.52,
    "pretended check, first": 0.61,
    "recorded progress": 0.92,
    "recorded progress, first": 0.92,
    "repeated failure": -0.15,
    "repeated failure, first": -0.15,
    "unchecked program": 0.58,
    "unchecked program, first": 0.58,
    "unproved claim": 0.30,
    "unproved claim, first": 0.30,
    "unrepaired failure": 0.95,
    "unrepaired failure, first": 0.59,
    "worker": 1.07,
    "worker turns": -0.68,
}

WEIGHTS: Mapping[str, float] = {
    **{rule.name: CHOSEN for rule in RULES if not rule.hard},
    ACCUSED: FIRST_PLACE,
    **_FITTED,
}
