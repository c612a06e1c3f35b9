"""What a program of a demonstration would lead to, had it been run. test_tiny.py runs some and compares."""

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
from mappa_dsbench.tiny.drawing import Drawn
from mappa_dsbench.tiny.programs import CLASSIFIERS, WEAK_CLASSIFIERS, Analysis, Engineering, Modelling, Program

OK = "ok"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What agents are told of a program: `result` is `ok`, the name of an exception, or None where nothing was run;
    `unmet` is what of the agent's contract is not met."""

    result: str | None
    unmet: tuple[str, ...] = ()


def foresee(agent: str, program: Program, drawn: Drawn, files: Sequence[str]) -> Outcome:
    """What comes of a program; `files` are those that lie in the workspace before it."""
    if not program.fenced:
        return _stopped(agent, None)
    return _FORESEEN[agent](program, drawn, files)


def _stopped(agent: str, result: str | None) -> Outcome:
    """Nothing was written."""
    return Outcome(result, tuple(f"{path} missing" for path in ROLES[agent].produces))


def _engineered(program: Engineering, drawn: Drawn, files: Sequence[str]) -> Outcome:
    words = program.encoding == "none" and (drawn.table.categorical or (program.id_kept and drawn.text_ids))
    target = program.target_kept
    if words and (program.scaled or program.fill not in ("none", "zero")):
        return _stopped(DATA_ENGINEER, "TypeError")
    if missing := [f"{path} missing" for path in ROLES[DATA_ENGINEER].produces if path not in program.saved]:
        return Outcome(OK, tuple(missing))
    gaps = drawn.table.missing and program.fill == "none"
    strange = target and program.encoding == "together" and program.fill not in ("median", "mean", "zero")
    unmet = {
        f"{X_TRAIN} not_numeric": words,
        f"{X_TRAIN} not_finite": gaps and not words and not program.gaps_dropped,
        f"{X_TEST} not_numeric": words,
        f"{X_TEST} not_finite": (gaps or strange) and not words,
        f"{X_TRAIN} target_inside": target,
        f"{X_TEST} columns": target and program.encoding == "none",
    }
    return Outcome(OK, tuple(word for word, there in unmet.items() if there))


def _modelled(program: Modelling, drawn: Drawn, files: Sequence[str]) -> Outcome:
    if not {program.rows, Y_TRAIN} <= set(files):
        return _stopped(MODELER, "FileNotFoundError")
    classifies = program.model in (*CLASSIFIERS, *WEAK_CLASSIFIERS)
    wrong = classifies != (drawn.problem.kind == "classification")
    strange = not drawn.whole if classifies else drawn.text_targets
    if program.rows == X_TEST or (wrong and strange):
        return _stopped(MODELER, "ValueError")
    if program.kept == "none":
        return Outcome(OK, (f"{MODEL} missing",))
    return Outcome(OK, (f"{MODEL} wrong_kind",) if wrong and X_TEST in files else ())


def _analysed(program: Analysis, drawn: Drawn, files: Sequence[str]) -> Outcome:
    if not {MODEL, program.rows} <= set(files):
        return _stopped(ANALYST, "FileNotFoundError")
    proba = program.predicted != "predict"
    if proba and drawn.problem.kind == "regression":
        return _stopped(ANALYST, "AttributeError")
    if program.rows == X_TRAIN and program.table != "range":
        return _stopped(ANALYST, "ValueError")
    return Outcome(OK, tuple(f"{SUBMISSION} {reason}" for reason in _rejected(program, drawn)[:1]))


def _rejected(program: Analysis, drawn: Drawn) -> list[str]:
    """Why a submission is rejected, in the order in which the grader looks."""
    found = {
        "columns": program.with_index or program.header is not None,
        "row_count": program.rows == X_TRAIN,
        "id_mismatch": program.table == "range",
        "non_label": program.predicted != "predict" and not drawn.probable,
    }
    return [reason for reason, there in found.items() if there]


_FORESEEN: Mapping[str, Callable[[Any, Drawn, Sequence[str]], Outcome]] = {
    DATA_ENGINEER: _engineered,
    MODELER: _modelled,
    ANALYST: _analysed,
}
