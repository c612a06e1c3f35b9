"""Probes model.pkl: its class, and its predictions for X_test.pkl.

The command line holds one JSON object: `prediction` of the task's metric, the number of `targets`, and `most`, the
limit on reported values.
"""

import json
import sys
import warnings
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor

from mappa_dsbench.contracts.probes.safe_unpickle import Report, error_line, open_pickle, type_name

_MODEL, _X_TEST, _Y_TRAIN = "model.pkl", "X_test.pkl", "y_train.pkl"
NUMERIC_PREDICTIONS = ("number", "count")
PROBABILITY_PREDICTIONS = ("score", "probability")


def final_estimator(model: Any) -> Any:
    """Return the estimator that predicts: the last step of a pipeline, the best of a search."""
    while True:
        if getattr(model, "steps", None):
            model = model.steps[-1][1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            return model


def open_or_none(path: str) -> Any:
    """Open a file of another agent, None where it cannot be opened."""
    try:
        return open_pickle(path)
    except Exception:  # noqa: BLE001 - a file can fail in any way, and this one is not being checked
        return None


def predict(model: Any, features: Any, required: str, targets: int) -> tuple[str, Any]:
    """Return the method of prediction, and n rows x m targets."""
    if required in PROBABILITY_PREDICTIONS and hasattr(model, "predict_proba"):
        return "predict_proba", class_probabilities(model, model.predict_proba(features), targets)
    if required == "score" and hasattr(model, "decision_function"):
        return "decision_function", as_matrix(model.decision_function(features))
    return "predict", as_matrix(model.predict(features))


def class_probabilities(model: Any, predicted: Any, targets: int) -> Any:
    """Return the probability of class 1 of each target, or of each class where the classes are the targets."""
    if isinstance(predicted, list):
        kinds = getattr(model, "classes_", None) or [None] * len(predicted)
        return np.column_stack(
            [positive_class_column(part, known) for part, known in zip(predicted, kinds, strict=True)]
        )
    predicted = np.asarray(predicted)
    if predicted.ndim == 1 or (targets > 1 and predicted.shape[1] == targets):
        return as_matrix(predicted)
    return as_matrix(positive_class_column(predicted, getattr(model, "classes_", None)))


def positive_class_column(predicted: Any, kinds: Any) -> Any:
    """Return the column of class 1, else the last one."""
    ones = [place for place, one in enumerate([] if kinds is None else list(kinds)) if str(one) in ("1", "1.0", "True")]
    return np.asarray(predicted)[:, ones[0] if ones else -1]


def as_matrix(predicted: Any) -> Any:
    """Convert predictions to n rows x m columns."""
    values = np.asarray(predicted)
    return values[:, None] if values.ndim == 1 else values


def check_predictions(report: Report, model: Any, features: Any, task: dict[str, Any]) -> dict[str, Any] | None:
    """Let the model predict, and report faults of the predictions; return them, None where they are unusable."""
    required = task["prediction"]
    rows = int(features.shape[0]) if hasattr(features, "shape") else len(features)
    how, values = predict(model, features, required, task["targets"])
    problem = None
    if values.ndim != 2 or values.shape != (rows, task["targets"]):
        problem = f"predictions of shape {values.shape}; due is {(rows, task['targets'])}"
    elif values.dtype.kind in "fc" and not np.isfinite(values).all():
        problem = f"{int((~np.isfinite(values)).sum())} predictions are no numbers"
    elif required in (*NUMERIC_PREDICTIONS, *PROBABILITY_PREDICTIONS) and values.dtype.kind not in "buif":
        report.add_fault("wrong_kind", _MODEL, "it predicts labels; numbers are asked for")
        return None
    if problem is not None:
        report.add_fault("predicts_badly", _MODEL, problem)
        return None
    check_kind(report, model, values, required)
    return {"how": how, "values": to_json_values(values) if values.size <= task["most"] else None}


def to_json_values(values: Any) -> list[list[Any]]:
    """Convert predictions to JSON values: numbers with seven digits, or text."""
    if values.dtype.kind == "f":
        return [[float(f"{one:.7g}") for one in row] for row in values.tolist()]
    return values.tolist() if values.dtype.kind in "bui" else [[str(one) for one in row] for row in values.tolist()]


def check_kind(report: Report, model: Any, values: Any, required: str) -> None:
    """Report a classifier where numbers are required, or the other way round."""
    inner = final_estimator(model)
    if required in NUMERIC_PREDICTIONS and (is_classifier(inner) or hasattr(inner, "predict_proba")):
        report.add_fault("wrong_kind", _MODEL, "it tells classes apart; numbers are asked for")
    elif required in PROBABILITY_PREDICTIONS and is_regressor(inner):
        report.add_fault("wrong_kind", _MODEL, "it predicts numbers; how likely the classes are is asked for")
    elif required in PROBABILITY_PREDICTIONS and not hasattr(model, "predict_proba"):
        report.add_fault("no_probabilities", _MODEL, "it tells classes apart, and not how likely they are")
    elif required not in (*NUMERIC_PREDICTIONS, *PROBABILITY_PREDICTIONS) and is_regressor(inner):
        known = open_or_none(_Y_TRAIN)
        kinds = set() if known is None else set(np.asarray(known).ravel().tolist())
        if not set(values.ravel().tolist()) <= kinds:
            report.add_fault("wrong_kind", _MODEL, "it predicts numbers; labels are asked for")


def main() -> None:
    task = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    report = Report()
    model = report.open(_MODEL)
    predictions, name = None, type_name(final_estimator(model))
    if model is not None and not hasattr(model, "predict"):
        report.add_fault("no_predict", _MODEL, f"it holds a {type_name(model)}")
    elif model is not None:
        report.begin_file(_X_TEST)
        features = open_or_none(_X_TEST)
        report.begin_file(_MODEL)
        if features is not None:
            try:
                predictions = check_predictions(report, model, features, task)
            except Exception as error:  # noqa: BLE001 - a model can fail in any way
                report.add_fault("predicts_badly", _MODEL, error_line(error))
    report.close(model=name, predictions=predictions)


if __name__ == "__main__":
    main()
