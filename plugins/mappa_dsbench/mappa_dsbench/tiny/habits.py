"""What the small model's first teacher does wrong, how often, and what comes of it.

A demonstration is a sound program with some faults planted in it. Each fault has a consequence: a file is missing, an
artifact breaks its contract, a submission is rejected, the score or the verdict suffers. What makes no difference could
not be unlearned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER, X_TEST, X_TRAIN, Y_TRAIN
from mappa_dsbench.tiny.drawing import Drawn
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How often a demonstration goes wrong; probabilities, each where the fault is possible."""

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


FAULTLESS = Habits(**dict.fromkeys(Habits.__slots__, 0.0))


def sound(agent: str, drawn: Drawn, rng: Random) -> Program:
    """One of the many programs that do what is asked of the agent."""
    return _SOUND[agent](drawn, rng)


def _engineering(drawn: Drawn, rng: Random) -> Engineering:
    indexed = rng.random() < 0.2
    honest = ("median", "mean", "zero")
    saved = [X_TRAIN, Y_TRAIN, X_TEST]
    rng.shuffle(saved)
    return Engineering(
        indexed=indexed,
        popped=len(drawn.problem.targets) == 1 and rng.random() < 0.4,
        test=rng.choice(("whole", "alike") if indexed else ("drop", "alike")),
        encoding=rng.choice([one for one in ENCODE if one != "none" or not drawn.table.categorical]),
        fill=rng.choice(honest if drawn.table.missing else (*honest, *["none"] * 3)),
        scaled=rng.random() < 0.2,
        saved=tuple(saved),
    )


def _modelling(drawn: Drawn, rng: Random) -> Modelling:
    models = CLASSIFIERS if drawn.problem.kind == "classification" else REGRESSORS
    counts = METRICS[drawn.problem.metric].prediction == "count"
    suitable = [model for model in models if not (counts and model in LINEAR_REGRESSORS)]
    return Modelling(model=rng.choice(suitable), kept=rng.choice(tuple(LOAD_MODEL)))


def _analysis(drawn: Drawn, rng: Random) -> Analysis:
    one = len(drawn.problem.targets) == 1
    return Analysis(
        predicted="proba" if drawn.probable else "predict",
        loaded=rng.choice(tuple(LOAD_MODEL)),
        table=rng.choice(("dictionary", "ids", "sample") if one else ("ids", "sample")),
    )


_SOUND: Mapping[str, Callable[[Drawn, Random], Program]] = {
    DATA_ENGINEER: _engineering,
    MODELER: _modelling,
    ANALYST: _analysis,
}

Fault = Callable[[Any, Drawn], Program | None]
"""Plants a fault in a program of its agent; None where it is not possible."""


def _unfenced(program: Any, drawn: Drawn) -> Program:
    return replace(program, fenced=False)  # type: ignore[no-any-return]


def _test_forgotten(program: Engineering, drawn: Drawn) -> Engineering:
    return replace(program, saved=tuple(path for path in program.saved if path != X_TEST))


def _id_kept(program: Engineering, drawn: Drawn) -> Engineering | None:
    if program.indexed:
        return None
    return replace(program, id_kept=True, test="whole" if program.test == "drop" else "alike")


def _target_kept(program: Engineering, drawn: Drawn) -> Engineering | None:
    if program.indexed or program.popped or program.id_kept:
        return None
    return replace(program, target_kept=True, test="drop")


def _words_left(program: Engineering, drawn: Drawn) -> Engineering | None:
    return replace(program, encoding="none") if drawn.table.categorical else None


def _gaps_left(program: Engineering, drawn: Drawn) -> Engineering | None:
    return replace(program, fill="none") if drawn.table.missing else None


def _gaps_dropped(program: Engineering, drawn: Drawn) -> Engineering | None:
    return replace(program, gaps_dropped=True) if drawn.table.missing else None


def _refit(program: Engineering, drawn: Drawn) -> Engineering | None:
    if not drawn.table.missing or program.fill == "none":
        return None
    return replace(program, fill="own mean" if program.fill == "mean" else "own median")


def _model_forgotten(program: Modelling, drawn: Drawn) -> Modelling:
    return replace(program, kept="none")


def _weak(program: Modelling, drawn: Drawn) -> Modelling:
    weak, good = (WEAK_CLASSIFIERS, CLASSIFIERS) if program.model in CLASSIFIERS else (WEAK_REGRESSORS, REGRESSORS)
    return replace(program, model=weak[good.index(program.model) % len(weak)])


def _wrong_kind(program: Modelling, drawn: Drawn) -> Modelling:
    pairs = ((CLASSIFIERS, REGRESSORS), (WEAK_CLASSIFIERS, WEAK_REGRESSORS))
    other = {
        one: two for pair in pairs for ours, theirs in (pair, pair[::-1]) for one, two in zip(ours, theirs, strict=True)
    }
    return replace(program, model=other[program.model])


def _test_fitted(program: Modelling, drawn: Drawn) -> Modelling:
    return replace(program, rows=X_TEST)


def _with_index(program: Analysis, drawn: Drawn) -> Analysis:
    return replace(program, with_index=True)


def _wrong_header(program: Analysis, drawn: Drawn) -> Analysis | None:
    return replace(program, header=PREDICTION) if len(drawn.problem.targets) == 1 else None


def _ids_counted(program: Analysis, drawn: Drawn) -> Analysis | None:
    return replace(program, table="range") if len(drawn.problem.targets) == 1 else None


def _train_predicted(program: Analysis, drawn: Drawn) -> Analysis:
    return replace(program, rows=X_TRAIN)


def _labels_for_scores(program: Analysis, drawn: Drawn) -> Analysis | None:
    return replace(program, predicted="predict") if drawn.probable else None


def _wrong_side(program: Analysis, drawn: Drawn) -> Analysis | None:
    return replace(program, predicted="proba of 0") if program.predicted == "proba" and drawn.probable else None


def _scores_for_labels(program: Analysis, drawn: Drawn) -> Analysis | None:
    asked = drawn.problem.kind == "classification" and not drawn.probable
    return replace(program, predicted="proba") if asked else None


def _listed(*faults: Fault) -> Mapping[str, Fault]:
    return {fault.__name__.removeprefix("_"): fault for fault in (*faults, _unfenced)}


FAULTS: Mapping[str, Mapping[str, Fault]] = {
    DATA_ENGINEER: _listed(
        _test_forgotten, _id_kept, _target_kept, _words_left, _gaps_left, _gaps_dropped, _refit
    ),
    MODELER: _listed(_model_forgotten, _weak, _wrong_kind, _test_fitted),
    ANALYST: _listed(
        _with_index, _wrong_header, _ids_counted, _train_predicted, _labels_for_scores, _wrong_side, _scores_for_labels
    ),
}  # fmt: skip
"""By agent and name, which is that of its habit; in the order in which they are planted."""


def planted(agent: str, program: Program, faults: Iterable[str], drawn: Drawn) -> Program:
    """The program with those of the `faults` that are possible in it."""
    wanted = frozenset(faults)
    for name, plant in FAULTS[agent].items():
        if name in wanted:
            program = plant(program, drawn) or program
    return program
