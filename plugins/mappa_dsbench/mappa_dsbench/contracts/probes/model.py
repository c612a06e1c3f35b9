"""Probes model.pkl: its class, and its predictions for X_test.pkl.

The command line holds one JSON object: `prediction` of the task's metric, the number of `targets`, and `most`, the
limit on reported values. The model predicts in the process that opened it; what its outputs mean is computed here.
"""

import json
import sys
import warnings
from functools import partial
from typing import Any

import joblib
import numpy as np
from scipy import sparse
from sklearn.base import is_classifier, is_regressor

from mappa_dsbench.contracts.probes.open_tables import open_features, open_tables, open_target
from mappa_dsbench.contracts.probes.opener import error_line, known_type, open_apart, type_name
from mappa_dsbench.contracts.probes.plain_values import SparseTable, values_from_plain, values_to_plain
from mappa_dsbench.contracts.probes.report import Report

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


def try_model(model: Any, features: Any, required: str) -> dict[str, Any]:
    """Let an opened model predict; return what it is and what it gave as plain values."""
    inner = final_estimator(model)
    answer = {"type": type_name(inner), "outer": type_name(model), "predicts": hasattr(model, "predict")}
    if features is None or not answer["predicts"]:
        return answer
    classifies = is_classifier(inner) or hasattr(inner, "predict_proba")
    answer["kind"] = "classifier" if classifies else "regressor" if is_regressor(inner) else None
    answer["tells_probabilities"] = hasattr(model, "predict_proba")
    try:
        with joblib.parallel_config(backend="threading"):  # processes could not be started here
            return answer | {"outputs": predict(model, features, required)}
    except Exception as error:  # noqa: BLE001 - a model can fail in any way
        return answer | {"failed": error_line(error)}


def predict(model: Any, features: Any, required: str) -> dict[str, Any]:
    """Return the method of prediction, its arrays, one or one per target, and the classes of each."""
    if isinstance(features, SparseTable):
        features = sparse.csr_matrix(features[1:], shape=features.shape)
        features.check_format(full_check=True)
    if required in PROBABILITY_PREDICTIONS and hasattr(model, "predict_proba"):
        how, predicted, kinds = "predict_proba", model.predict_proba(features), getattr(model, "classes_", None)
    elif required == "score" and hasattr(model, "decision_function"):
        how, predicted, kinds = "decision_function", model.decision_function(features), None
    else:
        how, predicted, kinds = "predict", model.predict(features), None
    single = not isinstance(predicted, list)
    parts = [predicted] if single else predicted
    classes = [None] * len(parts) if kinds is None else [kinds] if single else kinds
    return {
        "how": how,
        "single": single,
        "parts": [values_to_plain(part) for part in parts],
        "classes": [None if one is None else values_to_plain(one) for one in classes],
    }


def read_predictions(outputs: dict[str, Any], targets: int) -> tuple[str, Any]:
    """Return the method of prediction, and n rows x m targets, of what a model gave."""
    parts = [values_from_plain(part) for part in outputs["parts"]]
    kinds = [None if one is None else values_from_plain(one) for one in outputs["classes"]]
    if outputs["how"] != "predict_proba":
        return outputs["how"], as_matrix(parts[0] if outputs["single"] else np.asarray(parts))
    if not outputs["single"]:
        columns = [positive_class_column(part, known) for part, known in zip(parts, kinds, strict=True)]
        return outputs["how"], np.column_stack(columns)
    predicted = parts[0]
    if predicted.ndim == 1 or (targets > 1 and predicted.shape[1] == targets):
        return outputs["how"], as_matrix(predicted)
    return outputs["how"], as_matrix(positive_class_column(predicted, kinds[0]))


def positive_class_column(predicted: Any, kinds: Any) -> Any:
    """Return the column of class 1, else the last one."""
    ones = [place for place, one in enumerate([] if kinds is None else list(kinds)) if str(one) in ("1", "1.0", "True")]
    return np.asarray(predicted)[:, ones[0] if ones else -1]


def as_matrix(predicted: Any) -> Any:
    """Convert predictions to n rows x m columns."""
    values = np.asarray(predicted)
    return values[:, None] if values.ndim == 1 else values


def check_predictions(report: Report, answer: dict[str, Any], rows: int, task: dict[str, Any]) -> dict[str, Any] | None:
    """Report faults of what a model predicted of `rows` rows; return the predictions, None where they are unusable."""
    required = task["prediction"]
    how, values = read_predictions(answer["outputs"], task["targets"])
    problem = None
    if values.ndim != 2 or values.shape != (rows, task["targets"]):
        problem = f"predictions of shape {values.shape}; due is {(rows, task['targets'])}"
    elif values.dtype.kind == "f" and not np.isfinite(values).all():
        problem = f"{int((~np.isfinite(values)).sum())} predictions are no numbers"
    elif required in (*NUMERIC_PREDICTIONS, *PROBABILITY_PREDICTIONS) and values.dtype.kind not in "buif":
        report.add_fault("wrong_kind", _MODEL, "it predicts labels; numbers are asked for")
        return None
    if problem is not None:
        report.add_fault("predicts_badly", _MODEL, problem)
        return None
    check_kind(report, answer, values, required)
    return {"how": how, "values": to_json_values(values) if values.size <= task["most"] else None}


def to_json_values(values: Any) -> list[list[Any]]:
    """Convert predictions to JSON values: numbers with seven digits, or text."""
    if values.dtype.kind == "f":
        return [[float(f"{one:.7g}") for one in row] for row in values.tolist()]
    return values.tolist() if values.dtype.kind in "bui" else [[str(one) for one in row] for row in values.tolist()]


def check_kind(report: Report, answer: dict[str, Any], values: Any, required: str) -> None:
    """Report a classifier where numbers are required, or the other way round."""
    kind = answer["kind"]
    if required in NUMERIC_PREDICTIONS and kind == "classifier":
        report.add_fault("wrong_kind", _MODEL, "it tells classes apart; numbers are asked for")
    elif required in PROBABILITY_PREDICTIONS and kind == "regressor":
        report.add_fault("wrong_kind", _MODEL, "it predicts numbers; how likely the classes are is asked for")
    elif required in PROBABILITY_PREDICTIONS and not answer["tells_probabilities"]:
        report.add_fault("no_probabilities", _MODEL, "it tells classes apart, and not how likely they are")
    elif required not in (*NUMERIC_PREDICTIONS, *PROBABILITY_PREDICTIONS) and kind == "regressor":
        known = open_tables(report, {_Y_TRAIN: open_target}, checked=False).get(_Y_TRAIN)
        kinds = set() if known is None else set(known.to_numpy().ravel().tolist())
        report.begin_file(_MODEL)
        if not set(values.ravel().tolist()) <= kinds:
            report.add_fault("wrong_kind", _MODEL, "it predicts numbers; labels are asked for")


def check_answer(report: Report, answer: dict[str, Any], rows: int, task: dict[str, Any]) -> dict[str, Any] | None:
    """Report faults of a model that could be opened; return its predictions, None where there are none."""
    if not answer["predicts"]:
        report.add_fault("no_predict", _MODEL, f"it holds a {known_type(answer['outer'])}")
    elif "failed" in answer:
        report.add_fault("predicts_badly", _MODEL, str(answer["failed"]))
    elif "outputs" in answer:
        try:
            return check_predictions(report, answer, rows, task)
        except Exception as error:  # noqa: BLE001 - what a model gives can be of any kind
            report.add_fault("predicts_badly", _MODEL, error_line(error))
    return None


def main() -> None:
    task = json.loads(sys.argv[1])
    sys.path[:] = [folder for folder in sys.path if folder]  # no module comes from the folder of the files
    warnings.simplefilter("ignore")
    report = Report()
    features = open_tables(report, {_X_TEST: open_features}, checked=False, exact=True).get(_X_TEST)
    job = partial(try_model, features=features, required=task["prediction"])
    answer = open_apart(report, {_MODEL: job}).get(_MODEL)
    rows = 0 if features is None else int(features.shape[0])
    predictions = None if answer is None else check_answer(report, answer, rows, task)
    report.close(model=known_type("NoneType" if answer is None else answer["type"]), predictions=predictions)


if __name__ == "__main__":
    main()
