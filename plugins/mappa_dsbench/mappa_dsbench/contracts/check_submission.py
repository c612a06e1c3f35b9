"""Checks submission.csv without the truth: is it valid, and does it hold the model's predictions?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mappa_core import TaskError
from mappa_dsbench.contracts.faults import build_fault
from mappa_dsbench.grading import cells
from mappa_dsbench.grading.metrics import METRICS, Prediction, Values, is_constant
from mappa_dsbench.grading.submission import Rejection, read_submission
from mappa_dsbench.problem import Problem
from mappa_dsbench.roles import SUBMISSION

_CACHED_TABLES = 32
_MAX_ROUNDING_SHARE = 0.005
"""Largest rounding of a prediction, as a share of the range of all predictions."""
_MIN_SAME_SHARE = 0.98
"""Least share of rows whose labels are those with the highest probability."""


@lru_cache(maxsize=_CACHED_TABLES)
def read_ids(test: Path, column: str) -> tuple[str, ...]:
    """Read the ids of a test table as text. TaskError: it cannot be read."""
    try:
        table = pd.read_csv(test, dtype=object, na_filter=False, encoding="utf-8-sig", index_col=False)
        table.columns = table.columns.str.strip()
        return tuple(table[column.strip()])
    except (OSError, ValueError, KeyError) as error:
        raise TaskError(f"{test}: the ids cannot be read: {error}") from error


def to_submission(values: Sequence[Sequence[Any]], problem: Problem, ids: Sequence[str]) -> bytes:
    """Build the submission of n x m predictions for the rows of `ids`. Only invalid values are changed: counts below 0
    become 0, and the probabilities of a row are scaled to add up to 1."""
    required = METRICS[problem.metric].prediction
    given: Values = np.asarray(values)
    if required == "count":
        given = np.clip(given.astype(float), 0, None)
    elif required == "probability":
        given = np.clip(given.astype(float), 0, 1)
        sums = given.sum(axis=1, keepdims=True)
        given = given / sums if given.shape[1] > 1 and (sums > 0).all() else given
    table = pd.DataFrame(given, columns=list(problem.targets))
    table.insert(0, problem.id_column, list(ids))
    return str(table.to_csv(index=False)).encode()


def check_submission(
    file: Path | None, problem: Problem, ids: Sequence[str], predictions: Mapping[str, Any] | None, *, recoded: bool
) -> dict[str, Any]:
    """Return the facts of a submission: `reason` (why it is rejected, or None), `faithful` and `hard_labels` (None
    where unknown), and its faults.

    `predictions` are those of the model for the test table, as `inspect_files` found them, None where unknown;
    `recoded`: the model was fitted to other labels, or to numbers on another scale.
    """
    read = read_submission(file, problem, ids)
    if isinstance(read, Rejection):
        faults = [build_fault(read.reason, SUBMISSION, read.detail)]
        return {"faults": faults, "reason": read.reason, "faithful": None, "hard_labels": None}
    faults = []
    hard = _holds_hard_labels(read.values, predictions, problem)
    faithful = _is_faithful(read.values, predictions, problem, recoded)
    if hard:
        faults.append(build_fault("hard_labels", SUBMISSION, "it holds labels; how likely they are is asked for"))
    if faithful is False:
        faults.append(build_fault("unfaithful", SUBMISSION, "it does not hold what the model predicts of these rows"))
    return {"faults": faults, "reason": None, "faithful": faithful, "hard_labels": hard}


def _holds_hard_labels(values: Values, predictions: Mapping[str, Any] | None, problem: Problem) -> bool | None:
    """Whether labels were submitted where probabilities or scores are required and the model gives them."""
    if METRICS[problem.metric].prediction not in ("score", "probability"):
        return False
    if predictions is None or predictions["values"] is None:
        return None
    if predictions["how"] == "predict":
        return False
    return bool(np.isin(values, (0, 1)).all() and not np.isin(predictions["values"], (0, 1)).all())


def _is_faithful(values: Values, predictions: Mapping[str, Any] | None, problem: Problem, recoded: bool) -> bool | None:
    """Whether n x m values are the model's predictions; None where unknown."""
    if predictions is None or predictions["values"] is None:
        return None
    predicted = np.asarray(predictions["values"], dtype=object)
    if predicted.shape != values.shape:
        return False
    required = METRICS[problem.metric].prediction
    columns = zip(predicted.T, values.T, strict=True)
    if required in ("label", "cell", "ranking", "words") or not _all_numbers(predicted):
        return all(_same_labels(*pair, recoded=recoded) for pair in columns)
    if required == "probability" and bool(np.isin(values, (0, 1)).all()):
        return bool((_to_labels(predicted.astype(float)) == values).mean() >= _MIN_SAME_SHARE)
    return all(_same_numbers(*pair, required, recoded=recoded) for pair in columns)


def _all_numbers(predicted: Values) -> bool:
    return all(isinstance(one, int | float) for one in predicted.flat)


def _same_labels(predicted: Values, given: Values, *, recoded: bool) -> bool:
    """Whether labels are equal, or map one to one where the target was recoded. Of a ranking, the first one counts."""
    ours = [cells.normalize_label(str(one)) for one in predicted]
    theirs = [
        (cells.normalize_label(str(one)).split() or [""])[0] if " " in str(one) else cells.normalize_label(str(one))
        for one in given
    ]
    pairs = set(zip(ours, theirs, strict=True))
    return all(one == other for one, other in pairs) or (recoded and len(pairs) == len(set(ours)) == len(set(theirs)))


def _same_numbers(predicted: Values, given: Values, required: Prediction, *, recoded: bool) -> bool:
    """Whether numbers are equal up to rounding and clipping. Where only their order counts, or the target was recoded,
    whether they are in the same order."""
    ours, theirs = predicted.astype(float), given.astype(float)
    if required == "score" or recoded:
        return _in_order(ours, theirs)
    cut = np.clip(ours, theirs.min(), theirs.max())
    near = _MAX_ROUNDING_SHARE * np.ptp(ours) + 1e-6 * np.abs(ours)
    whole = np.clip(np.round(ours), theirs.min(), theirs.max())
    return not (is_constant(theirs) and not is_constant(ours)) and bool(
        (np.abs(cut - theirs) <= near).all() or (whole == theirs).all()
    )


def _in_order(ours: Values, theirs: Values) -> bool:
    """Whether `theirs` never falls where `ours` rises, and is constant only where `ours` is."""
    places = np.argsort(ours, kind="stable")
    rises, steps = np.diff(ours[places]), np.diff(theirs[places])
    slack = 1e-6 * max(float(np.ptp(theirs)), 1e-12)
    ties = rises <= 1e-6 * max(float(np.ptp(ours)), 1e-12)
    return bool((steps[~ties] >= -slack).all() and (is_constant(ours) or not is_constant(theirs)))


def _to_labels(predicted: Values) -> Values:
    """Convert n x m probabilities to labels, as 0 and 1."""
    if predicted.shape[1] == 1:
        return np.asarray(predicted > 0.5, dtype=int)
    return np.asarray(predicted == predicted.max(axis=1, keepdims=True), dtype=int)
