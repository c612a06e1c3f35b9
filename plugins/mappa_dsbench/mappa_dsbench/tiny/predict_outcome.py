"""Predicts the outcome of a demonstration's program without running it. test_tiny.py runs some and compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mappa_dsbench.roles import (
    ANALYST,
    DATA_ENGINEER,
    MODEL,
    MODELER,
    ROLES,
    SUBMISSION,
    X_TEST,
    X_TRAIN,
    Y_TRAIN,
)
from mappa_dsbench.tiny.programs import CLASSIFIERS, WEAK_CLASSIFIERS, Analysis, Engineering, Modelling, Program
from mappa_dsbench.tiny.synthetic_tables import SyntheticTask

OK = "ok"


@dataclass(frozen=True, slots=True)
class PredictedOutcome:
    """The result of a program as agents see it: `result` is `ok`, the name of an exception, or None where nothing was
    run; `unmet` are the unmet parts of the agent's contract."""

    result: str | None
    unmet: tuple[str, ...] = ()


def predict_outcome(agent: str, program: Program, synthetic: SyntheticTask, files: Sequence[str]) -> PredictedOutcome:
    """Predict the outcome of a program; `files` are those in the workspace before it runs."""
    if not program.fenced:
        return _stopped_outcome(agent, None)
    return _PREDICTORS[agent](program, synthetic, files)


def _stopped_outcome(agent: str, result: str | None) -> PredictedOutcome:
    """Return the outcome of a program that wrote nothing."""
    return PredictedOutcome(result, tuple(f"{path} missing" for path in ROLES[agent].produces))


def _predict_engineering(program: Engineering, synthetic: SyntheticTask, files: Sequence[str]) -> PredictedOutcome:
    words = program.encoding == "none" and (synthetic.table.categorical or (program.id_kept and synthetic.text_ids))
    target = program.target_kept
    if words and (program.scaled or program.fill not in ("none", "zero")):
        return _stopped_outcome(DATA_ENGINEER, "TypeError")
    if missing := [f"{path} missing" for path in ROLES[DATA_ENGINEER].produces if path not in program.saved]:
        return PredictedOutcome(OK, tuple(missing))
    gaps = synthetic.table.missing and program.fill == "none"
    strange = target and program.encoding == "together" and program.fill not in ("median", "mean", "zero")
    unmet = {
        f"{X_TRAIN} not_numeric": words,
        f"{X_TRAIN} not_finite": gaps and not words and not program.gaps_dropped,
        f"{X_TEST} not_numeric": words,
        f"{X_TEST} not_finite": (gaps or strange) and not words,
        f"{X_TRAIN} target_inside": target,
        f"{X_TEST} columns": target and program.encoding == "none",
    }
    return PredictedOutcome(OK, tuple(word for word, there in unmet.items() if there))


def _predict_modelling(program: Modelling, synthetic: SyntheticTask, files: Sequence[str]) -> PredictedOutcome:
    if not {program.rows, Y_TRAIN} <= set(files):
        return _stopped_outcome(MODELER, "FileNotFoundError")
    classifies = program.model in (*CLASSIFIERS, *WEAK_CLASSIFIERS)
    wrong = classifies != (synthetic.problem.kind == "classification")
    strange = not synthetic.whole if classifies else synthetic.text_targets
    if program.rows == X_TEST or (wrong and strange):
        return _stopped_outcome(MODELER, "ValueError")
    if program.kept == "none":
        return PredictedOutcome(OK, (f"{MODEL} missing",))
    return PredictedOutcome(OK, (f"{MODEL} wrong_kind",) if wrong and X_TEST in files else ())


def _predict_analysis(program: Analysis, synthetic: SyntheticTask, files: Sequence[str]) -> PredictedOutcome:
    if not {MODEL, program.rows} <= set(files):
        return _stopped_outcome(ANALYST, "FileNotFoundError")
    proba = program.predicted != "predict"
    if proba and synthetic.problem.kind == "regression":
        return _stopped_outcome(ANALYST, "AttributeError")
    if program.rows == X_TRAIN and program.table != "range":
        return _stopped_outcome(ANALYST, "ValueError")
    return PredictedOutcome(
        OK, tuple(f"{SUBMISSION} {reason}" for reason in _rejection_reasons(program, synthetic)[:1])
    )


def _rejection_reasons(program: Analysis, synthetic: SyntheticTask) -> list[str]:
    """Return the reasons of a rejection, in the order of the grader's checks."""
    checks = {
        "columns": program.with_index or program.header is not None,
        "row_count": program.rows == X_TRAIN,
        "id_mismatch": program.table == "range",
        "non_label": program.predicted != "predict" and not synthetic.probable,
    }
    return [reason for reason, there in checks.items() if there]


_PREDICTORS: Mapping[str, Callable[[Any, SyntheticTask, Sequence[str]], PredictedOutcome]] = {
    DATA_ENGINEER: _predict_engineering,
    MODELER: _predict_modelling,
    ANALYST: _predict_analysis,
}
