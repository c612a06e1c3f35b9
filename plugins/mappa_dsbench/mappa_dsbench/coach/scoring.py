"""Scores an action by itself, from 0 to 10 points: rules over the results of its programs and the files it left.

| score | Data Engineer | Modeler | Analyst |
|---|---|---|---|
| 10 | the contract is kept | as good as the reference model | hands in what the model says |
| 5-10 | | can be used: 5 + 5 x skill | |
| 7 | test rows are filled with what they hold themselves | | |
| 6 | the id is a feature; training rows are lost | | |
| 5 | training and test have other columns | | |
| 4 | a target is a feature; text, gaps, rows that do not fit | no probabilities where they are due | is rejected |
| 3 | the wrong target; a file is missing or no table | the wrong kind; cannot predict | not what the model says |
| 2 | there is no `X_train.pkl` | there is no model | there is no submission |
| 1 | a program fails | a program fails | a program fails |
| 0 | no program; cut off | no program; cut off | no program; cut off |

The worst fault counts; a Data Engineer with faults of several kinds loses one point more. `skill` is 0 for a constant
guess and 1 for the reference model. An Analyst is not charged with a bad model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from mappa_core import ToolResult
from mappa_dsbench.grading.submission import RejectionReason
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER, X_TRAIN

POINTS_OF_FAULT: Mapping[str, Mapping[str, float]] = {
    DATA_ENGINEER: {
        "refit_on_test": 7,
        "id_inside": 6,
        "rows_dropped": 6,
        "columns": 5,
        "target_inside": 4,
        "not_numeric": 4,
        "not_finite": 4,
        "rows": 4,
        "wrong_target": 3,
        "not_a_table": 3,
        "unreadable": 3,
        "missing": 3,
    },
    MODELER: {
        "no_probabilities": 4,
        "wrong_kind": 3,
        "no_predict": 3,
        "predicts_badly": 3,
        "unreadable": 2,
        "missing": 2,
    },
    ANALYST: {**dict.fromkeys(get_args(RejectionReason), 4), "unfaithful": 3, "hard_labels": 3, "missing": 2},
}
"""Points for an action that left a file with this fault."""

WITHOUT_FEATURES_POINTS = 2.0
REJECTED_POINTS = 4.0
CUT_OFF_POINTS, NO_PROGRAM_POINTS, FAILED_POINTS = 0.0, 0.0, 1.0
FULL_POINTS, USABLE_POINTS = 10.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFault:
    """One fault of a file, as found by the contract checks. A `hard` fault makes the file unusable."""

    code: str
    path: str
    detail: str
    hard: bool

    def __str__(self) -> str:
        return f"{self.path} {self.code}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One action of `agent` with its effects: as played, or rerun on reference artifacts.

    `results` are those of its own programs, `facts` those of the contract checks afterwards.
    """

    agent: str
    truncated: bool
    results: tuple[ToolResult, ...]
    facts: Mapping[str, Any]

    @property
    def faults(self) -> tuple[FileFault, ...]:
        return parse_faults(self.facts)


@dataclass(frozen=True, slots=True)
class ActionScore:
    """Points for an action, None where it cannot be scored, and whether its agent is at fault."""

    score: float | None
    why: str
    at_fault: bool


def parse_faults(facts: Mapping[str, Any]) -> tuple[FileFault, ...]:
    """Parse the faults of an Inspection's facts."""
    return tuple(FileFault(**one) for one in facts["faults"])


def score_execution(attempt: Attempt) -> ActionScore | None:
    """Score an action that was truncated, had no program or failed; None where its files decide."""
    if attempt.truncated:
        return ActionScore(CUT_OFF_POINTS, "The reply was cut off at its token limit.", True)
    if not attempt.results and attempt.faults:
        return ActionScore(
            NO_PROGRAM_POINTS, "The reply holds no program, and the files that are due are not there.", True
        )
    failed = [result for result in attempt.results if result.status != "ok"]
    if failed:
        lines = failed[0].stderr.strip().splitlines()
        return ActionScore(FAILED_POINTS, f"The program failed: {lines[-1] if lines else failed[0].status}", True)
    return None


def score_faults(attempt: Attempt) -> ActionScore | None:
    """Score an action that left files with faults; None where it left none."""
    faults = attempt.faults
    if not faults:
        return None
    score = min(_points_of_fault(attempt, fault) for fault in faults)
    if attempt.agent == DATA_ENGINEER and len({fault.code for fault in faults}) > 1:
        score -= 1
    return ActionScore(score, "; ".join(map(str, faults)) + ".", True)


def score_skill(skill: float | None) -> ActionScore:
    """Score a model without faults by its `skill`, from a constant guess (0) to the reference model (1); None where its
    predictions cannot be graded."""
    if skill is None:
        return ActionScore(None, "The model has no faults; how good it is cannot be told.", False)
    score = USABLE_POINTS + (FULL_POINTS - USABLE_POINTS) * skill
    return ActionScore(score, f"The model reaches {skill:.0%} of the way to the reference model.", skill == 0)


def _points_of_fault(attempt: Attempt, fault: FileFault) -> float:
    if fault.path == X_TRAIN and fault.code in ("missing", "unreadable"):
        return WITHOUT_FEATURES_POINTS
    if attempt.facts.get("reason") is not None:
        return REJECTED_POINTS  # `missing` then refers to values, not to the file
    return POINTS_OF_FAULT[attempt.agent][fault.code]
