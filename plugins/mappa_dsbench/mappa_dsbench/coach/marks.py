"""What an action is worth by itself, in points from 0 to 10: rules over what its programs did and what it left.

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
from mappa_dsbench.grading.submission import Reason
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER, X_TRAIN

POINTS: Mapping[str, Mapping[str, float]] = {
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
    ANALYST: {**dict.fromkeys(get_args(Reason), 4), "unfaithful": 3, "hard_labels": 3, "missing": 2},
}
"""What an action is worth that left a file with this fault."""

WITHOUT_FEATURES = 2.0
REJECTED = 4.0
CUT_OFF, NO_PROGRAM, FAILED = 0.0, 0.0, 1.0
FULL, USABLE = 10.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a file, as the check of the contracts found it. Who needs the file cannot work with a `hard` one."""

    code: str
    path: str
    detail: str
    hard: bool

    def __str__(self) -> str:
        return f"{self.path} {self.code}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one action of `agent` did and left: as it was played, or tried once more on reference artifacts.

    `results` are those of its own programs, `facts` what the check of the contracts found afterwards.
    """

    agent: str
    truncated: bool
    results: tuple[ToolResult, ...]
    facts: Mapping[str, Any]

    @property
    def faults(self) -> tuple[Fault, ...]:
        return faults_in(self.facts)


@dataclass(frozen=True, slots=True)
class Mark:
    """Points for an action, None where nothing can be said of it, and whether its agent is at fault."""

    score: float | None
    why: str
    at_fault: bool


def faults_in(facts: Mapping[str, Any]) -> tuple[Fault, ...]:
    """The faults that an Inspection lists."""
    return tuple(Fault(**one) for one in facts["faults"])


def mark_of_play(attempt: Attempt) -> Mark | None:
    """The mark of an action that does not deserve one for its files; None where it does."""
    if attempt.truncated:
        return Mark(CUT_OFF, "The reply was cut off at its token limit.", True)
    if not attempt.results and attempt.faults:
        return Mark(NO_PROGRAM, "The reply holds no program, and the files that are due are not there.", True)
    failed = [result for result in attempt.results if result.status != "ok"]
    if failed:
        lines = failed[0].stderr.strip().splitlines()
        return Mark(FAILED, f"The program failed: {lines[-1] if lines else failed[0].status}", True)
    return None


def mark_of_faults(attempt: Attempt) -> Mark | None:
    """The mark of an action that left files with faults; None where it left none."""
    faults = attempt.faults
    if not faults:
        return None
    score = min(_points(attempt, fault) for fault in faults)
    if attempt.agent == DATA_ENGINEER and len({fault.code for fault in faults}) > 1:
        score -= 1
    return Mark(score, "; ".join(map(str, faults)) + ".", True)


def mark_of_skill(skill: float | None) -> Mark:
    """The mark of a model without faults. `skill`: how far it is on the way from a constant guess to the reference
    model; None where its predictions cannot be graded."""
    if skill is None:
        return Mark(None, "The model has no faults; how good it is cannot be told.", False)
    score = USABLE + (FULL - USABLE) * skill
    return Mark(score, f"The model reaches {skill:.0%} of the way to the reference model.", skill == 0)


def _points(attempt: Attempt, fault: Fault) -> float:
    if fault.path == X_TRAIN and fault.code in ("missing", "unreadable"):
        return WITHOUT_FEATURES
    if attempt.facts.get("reason") is not None:
        return REJECTED  # `missing` is then said of values, not of the file
    return POINTS[attempt.agent][fault.code]
