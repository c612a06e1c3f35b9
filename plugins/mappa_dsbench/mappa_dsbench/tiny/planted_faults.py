"""The faults planted in demonstrations, and their probabilities.

A demonstration is a sound program with some faults planted in it. Each fault has a consequence: a file is missing, an
artifact breaks its contract, a submission is rejected, the score or the verdict is lower. A fault without a consequence
could not be unlearned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER, X_TEST, X_TRAIN, Y_TRAIN
from mappa_dsbench.tiny.programs import (
    CLASSIFIERS,
    ENCODE,
    LINEAR_REGRESSORS,
    LOAD_MODEL,
    PREDICTION,
    REGRESSORS,
    WEAK_CLASSIFIERS,
    WEAK_REGRESSORS,
    Analysis,
    Engineering,
    Modelling,
    Program,
)
from mappa_dsbench.tiny.synthetic_tables import SyntheticTask


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultProbabilities:
    """The probability of each planted fault where it is possible. The field names are keys of the shipped manifest."""

    unfenced: float = 0.08
    """the program stands in no fence"""

    test_forgotten: float = 0.66
    """X_test.pkl is not written"""
    id_kept: float = 0.55
    """the id is a feature"""
    target_kept: float = 0.06
    """the target is a feature"""
    words_left: float = 0.52
    """categories stay text"""
    gaps_left: float = 0.35
    """what is missing stays missing"""
    gaps_dropped: float = 0.08
    """training rows with gaps are left out"""
    refit: float = 0.52
    """the gaps of the test table are filled with its own statistics"""

    model_forgotten: float = 0.64
    """model.pkl is not written"""
    weak: float = 0.52
    """a model that hardly learns"""
    wrong_kind: float = 0.35
    """a regressor for labels, a classifier for numbers"""
    test_fitted: float = 0.08
    """the model is fitted to the test features"""

    with_index: float = 0.66
    """the submission has a column more, of row numbers"""
    wrong_header: float = 0.14
    """the predictions have a name that is not the target's"""
    ids_counted: float = 0.07
    """the ids are numbers from 0"""
    train_predicted: float = 0.08
    """the training rows are predicted"""
    labels_for_scores: float = 0.58
    """labels where the metric asks how sure the model is"""
    wrong_side: float = 0.15
    """the probability of the other class"""
    scores_for_labels: float = 0.25
    """probabilities where the metric asks for labels"""

    again: float = 0.55
    """a fault that was pointed out is there in the next turn, too"""


NO_FAULTS = FaultProbabilities(**dict.fromkeys(FaultProbabilities.__slots__, 0.0))


def draw_sound_program(agent: str, synthetic: SyntheticTask, rng: Random) -> Program:
    """Draw one of the many programs that meet the agent's contract."""
    return _SOUND_PROGRAMS[agent](synthetic, rng)


def _draw_engineering(synthetic: SyntheticTask, rng: Random) -> Engineering:
    indexed = rng.random() < 0.2
    honest = ("median", "mean", "zero")
    saved = [X_TRAIN, Y_TRAIN, X_TEST]
    rng.shuffle(saved)
    return Engineering(
        indexed=indexed,
        popped=len(synthetic.problem.targets) == 1 and rng.random() < 0.4,
        test=rng.choice(("whole", "alike") if indexed else ("drop", "alike")),
        encoding=rng.choice([one for one in ENCODE if one != "none" or not synthetic.table.categorical]),
        fill=rng.choice(honest if synthetic.table.missing else (*honest, *["none"] * 3)),
        scaled=rng.random() < 0.2,
        saved=tuple(saved),
    )


def _draw_modelling(synthetic: SyntheticTask, rng: Random) -> Modelling:
    models = CLASSIFIERS if synthetic.problem.kind == "classification" else REGRESSORS
    counts = METRICS[synthetic.problem.metric].prediction == "count"
    suitable = [model for model in models if not (counts and model in LINEAR_REGRESSORS)]
    return Modelling(model=rng.choice(suitable), kept=rng.choice(tuple(LOAD_MODEL)))


def _draw_analysis(synthetic: SyntheticTask, rng: Random) -> Analysis:
    one = len(synthetic.problem.targets) == 1
    return Analysis(
        predicted="proba" if synthetic.probable else "predict",
        loaded=rng.choice(tuple(LOAD_MODEL)),
        table=rng.choice(("dictionary", "ids", "sample") if one else ("ids", "sample")),
    )


_SOUND_PROGRAMS: Mapping[str, Callable[[SyntheticTask, Random], Program]] = {
    DATA_ENGINEER: _draw_engineering,
    MODELER: _draw_modelling,
    ANALYST: _draw_analysis,
}

FaultPlanter = Callable[[Any, SyntheticTask], Program | None]
"""Plants a fault in a program of its agent; None where it is not possible."""


def _unfenced(program: Any, synthetic: SyntheticTask) -> Program:
    return replace(program, fenced=False)  # type: ignore[no-any-return]


def _test_forgotten(program: Engineering, synthetic: SyntheticTask) -> Engineering:
    return replace(program, saved=tuple(path for path in program.saved if path != X_TEST))


def _id_kept(program: Engineering, synthetic: SyntheticTask) -> Engineering | None:
    if program.indexed:
        return None
    return replace(program, id_kept=True, test="whole" if program.test == "drop" else "alike")


def _target_kept(program: Engineering, synthetic: SyntheticTask) -> Engineering | None:
    if program.indexed or program.popped or program.id_kept:
        return None
    return replace(program, target_kept=True, test="drop")


def _words_left(program: Engineering, synthetic: SyntheticTask) -> Engineering | None:
    return replace(program, encoding="none") if synthetic.table.categorical else None


def _gaps_left(program: Engineering, synthetic: SyntheticTask) -> Engineering | None:
    return replace(program, fill="none") if synthetic.table.missing else None


def _gaps_dropped(program: Engineering, synthetic: SyntheticTask) -> Engineering | None:
    return replace(program, gaps_dropped=True) if synthetic.table.missing else None


def _refit(program: Engineering, synthetic: SyntheticTask) -> Engineering | None:
    if not synthetic.table.missing or program.fill == "none":
        return None
    return replace(program, fill="own mean" if program.fill == "mean" else "own median")


def _model_forgotten(program: Modelling, synthetic: SyntheticTask) -> Modelling:
    return replace(program, kept="none")


def _weak(program: Modelling, synthetic: SyntheticTask) -> Modelling:
    weak, good = (WEAK_CLASSIFIERS, CLASSIFIERS) if program.model in CLASSIFIERS else (WEAK_REGRESSORS, REGRESSORS)
    return replace(program, model=weak[good.index(program.model) % len(weak)])


def _wrong_kind(program: Modelling, synthetic: SyntheticTask) -> Modelling:
    pairs = ((CLASSIFIERS, REGRESSORS), (WEAK_CLASSIFIERS, WEAK_REGRESSORS))
    other = {
        one: two for pair in pairs for ours, theirs in (pair, pair[::-1]) for one, two in zip(ours, theirs, strict=True)
    }
    return replace(program, model=other[program.model])


def _test_fitted(program: Modelling, synthetic: SyntheticTask) -> Modelling:
    return replace(program, rows=X_TEST)


def _with_index(program: Analysis, synthetic: SyntheticTask) -> Analysis:
    return replace(program, with_index=True)


def _wrong_header(program: Analysis, synthetic: SyntheticTask) -> Analysis | None:
    return replace(program, header=PREDICTION) if len(synthetic.problem.targets) == 1 else None


def _ids_counted(program: Analysis, synthetic: SyntheticTask) -> Analysis | None:
    return replace(program, table="range") if len(synthetic.problem.targets) == 1 else None


def _train_predicted(program: Analysis, synthetic: SyntheticTask) -> Analysis:
    return replace(program, rows=X_TRAIN)


def _labels_for_scores(program: Analysis, synthetic: SyntheticTask) -> Analysis | None:
    return replace(program, predicted="predict") if synthetic.probable else None


def _wrong_side(program: Analysis, synthetic: SyntheticTask) -> Analysis | None:
    return replace(program, predicted="proba of 0") if program.predicted == "proba" and synthetic.probable else None


def _scores_for_labels(program: Analysis, synthetic: SyntheticTask) -> Analysis | None:
    needs_labels = synthetic.problem.kind == "classification" and not synthetic.probable
    return replace(program, predicted="proba") if needs_labels else None


def _by_name(*faults: FaultPlanter) -> Mapping[str, FaultPlanter]:
    return {fault.__name__.removeprefix("_"): fault for fault in (*faults, _unfenced)}


FAULT_PLANTERS: Mapping[str, Mapping[str, FaultPlanter]] = {
    DATA_ENGINEER: _by_name(
        _test_forgotten, _id_kept, _target_kept, _words_left, _gaps_left, _gaps_dropped, _refit
    ),
    MODELER: _by_name(_model_forgotten, _weak, _wrong_kind, _test_fitted),
    ANALYST: _by_name(
        _with_index, _wrong_header, _ids_counted, _train_predicted, _labels_for_scores, _wrong_side, _scores_for_labels
    ),
}  # fmt: skip
"""Planters by agent and name of the fault, in the order in which faults are planted."""


def plant_faults(agent: str, program: Program, faults: Iterable[str], synthetic: SyntheticTask) -> Program:
    """Plant those of the `faults` in the program that are possible in it."""
    wanted = frozenset(faults)
    for name, plant in FAULT_PLANTERS[agent].items():
        if name in wanted:
            program = plant(program, synthetic) or program
    return program
