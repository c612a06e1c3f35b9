"""Looks into model.pkl: what it is, and what it predicts of X_test.pkl.

The command line holds one JSON object: `prediction` of the task's metric, the number of `targets`, and the `most`
values that are told.
"""

import json
import sys
import warnings
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor

from mappa_dsbench.contracts.probes.opening import Report, kind_of, opened, said

MODEL, X_TEST, Y_TRAIN = "model.pkl", "X_test.pkl", "y_train.pkl"
NUMBERS = ("number", "count")
CHANCES = ("score", "probability")


def core(model: Any) -> Any:
    """What predicts, in the end: the last part of a pipeline, the best of a search."""
    while True:
        if getattr(model, "steps", None):
            model = model.steps[-1][1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            return model


def quietly(path: str) -> Any:
    """What a file of somebody else's holds, None where it cannot be opened."""
    try:
        return opened(path)
    except Exception:  # noqa: BLE001 - a file can fail in any way, and this one is not what is looked into
        return None


def predict(model: Any, features: Any, wanted: str, targets: int) -> tuple[str, Any]:
    """How it predicts, and n rows x m targets."""
    if wanted in CHANCES and hasattr(model, "predict_proba"):
        return "predict_proba", chances(model, model.predict_proba(features), targets)
    if wanted == "score" and hasattr(model, "decision_function"):
        return "decision_function", columns(model.decision_function(features))
    return "predict", columns(model.predict(features))


def chances(model: Any, made: Any, targets: int) -> Any:
    """The probability of class 1 of each target, or of each class where these are the targets."""
    if isinstance(made, list):
        kinds = getattr(model, "classes_", None) or [None] * len(made)
        return np.column_stack([of_ones(part, known) for part, known in zip(made, kinds, strict=True)])
    made = np.asarray(made)
    if made.ndim == 1 or (targets > 1 and made.shape[1] == targets):
        return columns(made)
    return columns(of_ones(made, getattr(model, "classes_", None)))


def of_ones(made: Any, kinds: Any) -> Any:
    """The column of class 1, else the last one."""
    ones = [place for place, one in enumerate([] if kinds is None else list(kinds)) if str(one) in ("1", "1.0", "True")]
    return np.asarray(made)[:, ones[0] if ones else -1]


def columns(made: Any) -> Any:
    """Predictions as n rows x m."""
    values = np.asarray(made)
    return values[:, None] if values.ndim == 1 else values


def judge(report: Report, model: Any, features: Any, task: dict[str, Any]) -> dict[str, Any] | None:
    """Let the model predict, and note what is wrong with that. Gives the predictions."""
    wanted = task["prediction"]
    rows = int(features.shape[0]) if hasattr(features, "shape") else len(features)
    how, values = predict(model, features, wanted, task["targets"])
    problem = None
    if values.ndim != 2 or values.shape != (rows, task["targets"]):
        problem = f"predictions of shape {values.shape}; due is {(rows, task['targets'])}"
    elif values.dtype.kind in "fc" and not np.isfinite(values).all():
        problem = f"{int((~np.isfinite(values)).sum())} predictions are no numbers"
    elif wanted in (*NUMBERS, *CHANCES) and values.dtype.kind not in "buif":
        report.fault("wrong_kind", MODEL, "it predicts labels; numbers are asked for")
        return None
    if problem is not None:
        report.fault("predicts_badly", MODEL, problem)
        return None
    check_kind(report, model, values, wanted)
    return {"how": how, "values": told(values) if values.size <= task["most"] else None}


def told(values: Any) -> list[list[Any]]:
    """Predictions as JSON values: numbers with seven digits, or text."""
    if values.dtype.kind == "f":
        return [[float(f"{one:.7g}") for one in row] for row in values.tolist()]
    return values.tolist() if values.dtype.kind in "bui" else [[str(one) for one in row] for row in values.tolist()]


def check_kind(report: Report, model: Any, values: Any, wanted: str) -> None:
    """Classes where numbers are asked for, or the other way round."""
    inner = core(model)
    if wanted in NUMBERS and (is_classifier(inner) or hasattr(inner, "predict_proba")):
        report.fault("wrong_kind", MODEL, "it tells classes apart; numbers are asked for")
    elif wanted in CHANCES and is_regressor(inner):
        report.fault("wrong_kind", MODEL, "it predicts numbers; how likely the classes are is asked for")
    elif wanted in CHANCES and not hasattr(model, "predict_proba"):
        report.fault("no_probabilities", MODEL, "it tells classes apart, and not how likely they are")
    elif wanted not in (*NUMBERS, *CHANCES) and is_regressor(inner):
        known = quietly(Y_TRAIN)
        kinds = set() if known is None else set(np.asarray(known).ravel().tolist())
        if not set(values.ravel().tolist()) <= kinds:
            report.fault("wrong_kind", MODEL, "it predicts numbers; labels are asked for")


def main() -> None:
    task = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    report = Report()
    model = report.opened(MODEL)
    predictions, name = None, kind_of(core(model))
    if model is not None and not hasattr(model, "predict"):
        report.fault("no_predict", MODEL, f"it holds a {kind_of(model)}")
    elif model is not None:
        report.at(X_TEST)
        features = quietly(X_TEST)
        report.at(MODEL)
        if features is not None:
            try:
                predictions = judge(report, model, features, task)
            except Exception as error:  # noqa: BLE001 - a model can fail in any way
                report.fault("predicts_badly", MODEL, said(error))
    report.close(model=name, predictions=predictions)


if __name__ == "__main__":
    main()
