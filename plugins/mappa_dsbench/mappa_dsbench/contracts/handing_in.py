"""Looks into submission.csv: is it accepted, and does it hold what the model predicts? That needs no truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mappa_core import TaskError
from mappa_dsbench.contracts.faults import fault
from mappa_dsbench.grading import cells
from mappa_dsbench.grading.metrics import METRICS, Prediction, Values, constant
from mappa_dsbench.grading.submission import Rejected, read_submission
from mappa_dsbench.problem import Problem
from mappa_dsbench.roles import SUBMISSION

_CACHED_TABLES = 32
_ROUNDING = 0.005
"""The share of the range of all predictions by which one may be rounded."""
_SAME = 0.98
"""The share of rows in which labels must be those that the probabilities stand for."""


@lru_cache(maxsize=_CACHED_TABLES)
def ids_of(test: Path, column: str) -> tuple[str, ...]:
    """The ids of a test table, as they stand there. TaskError: it cannot be read."""
    try:
        table = pd.read_csv(test, dtype=object, na_filter=False, encoding="utf-8-sig", index_col=False)
        table.columns = table.columns.str.strip()
        return tuple(table[column.strip()])
    except (OSError, ValueError, KeyError) as error:
        raise TaskError(f"{test}: the ids cannot be read: {error}") from error


def as_submission(values: Sequence[Sequence[Any]], problem: Problem, ids: Sequence[str]) -> bytes:
    """The file that hands in n x m predictions for the rows of `ids` as they are, except where they have to be mended:
    counts below 0 become 0, and the probabilities of a row are made to add up to 1."""
    wanted = METRICS[problem.metric].prediction
    given: Values = np.asarray(values)
    if wanted == "count":
        given = np.clip(given.astype(float), 0, None)
    elif wanted == "probability":
        given = np.clip(given.astype(float), 0, 1)
        sums = given.sum(axis=1, keepdims=True)
        given = given / sums if given.shape[1] > 1 and (sums > 0).all() else given
    table = pd.DataFrame(given, columns=list(problem.targets))
    table.insert(0, problem.id_column, list(ids))
    return str(table.to_csv(index=False)).encode()


def handed_in(
    file: Path | None, problem: Problem, ids: Sequence[str], predictions: Mapping[str, Any] | None, *, recoded: bool
) -> dict[str, Any]:
    """The facts of a submission: `reason` (why it is rejected, or None), `faithful` and `hard_labels` (None where that
    cannot be told), and its faults.

    `predictions` are those of the model for the test table, as `look_into` found them, None where they are not known;
    `recoded`: the model was taught other labels, or numbers on another scale.
    """
    read = read_submission(file, problem, ids)
    if isinstance(read, Rejected):
        faults = [fault(read.reason, SUBMISSION, read.detail)]
        return {"faults": faults, "reason": read.reason, "faithful": None, "hard_labels": None}
    faults = []
    hard = _hard(read.values, predictions, problem)
    faithful = _faithful(read.values, predictions, problem, recoded)
    if hard:
        faults.append(fault("hard_labels", SUBMISSION, "it holds labels; how likely they are is asked for"))
    if faithful is False:
        faults.append(fault("unfaithful", SUBMISSION, "it does not hold what the model predicts of these rows"))
    return {"faults": faults, "reason": None, "faithful": faithful, "hard_labels": hard}


def _hard(values: Values, predictions: Mapping[str, Any] | None, problem: Problem) -> bool | None:
    """Whether labels were handed in where the model tells how likely they are, and that is asked for."""
    if METRICS[problem.metric].prediction not in ("score", "probability"):
        return False
    if predictions is None or predictions["values"] is None:
        return None
    if predictions["how"] == "predict":
        return False
    return bool(np.isin(values, (0, 1)).all() and not np.isin(predictions["values"], (0, 1)).all())


def _faithful(values: Values, predictions: Mapping[str, Any] | None, problem: Problem, recoded: bool) -> bool | None:
    """Whether n x m values are what the model predicts; None where that cannot be told."""
    if predictions is None or predictions["values"] is None:
        return None
    made = np.asarray(predictions["values"], dtype=object)
    if made.shape != values.shape:
        return False
    wanted = METRICS[problem.metric].prediction
    columns = zip(made.T, values.T, strict=True)
    if wanted in ("label", "cell", "ranking", "words") or not _all_numbers(made):
        return all(_same_labels(*pair, recoded=recoded) for pair in columns)
    if wanted == "probability" and bool(np.isin(values, (0, 1)).all()):
        return bool((_decided(made.astype(float)) == values).mean() >= _SAME)
    return all(_same_numbers(*pair, wanted, recoded=recoded) for pair in columns)


def _all_numbers(made: Values) -> bool:
    return all(isinstance(one, int | float) for one in made.flat)


def _same_labels(made: Values, given: Values, *, recoded: bool) -> bool:
    """Labels that are equal, or one to one where the model was taught others. Of a ranking, the first one counts."""
    ours = [cells.label(str(one)) for one in made]
    theirs = [(cells.label(str(one)).split() or [""])[0] if " " in str(one) else cells.label(str(one)) for one in given]
    pairs = set(zip(ours, theirs, strict=True))
    return all(one == other for one, other in pairs) or (recoded and len(pairs) == len(set(ours)) == len(set(theirs)))


def _same_numbers(made: Values, given: Values, wanted: Prediction, *, recoded: bool) -> bool:
    """Numbers that are equal but for rounding and what was cut off at either end. Where only their order counts, or the
    model was taught another scale, those in the same order."""
    ours, theirs = made.astype(float), given.astype(float)
    if wanted == "score" or recoded:
        return _in_order(ours, theirs)
    cut = np.clip(ours, theirs.min(), theirs.max())
    near = _ROUNDING * np.ptp(ours) + 1e-6 * np.abs(ours)
    whole = np.clip(np.round(ours), theirs.min(), theirs.max())
    return not (constant(theirs) and not constant(ours)) and bool(
        (np.abs(cut - theirs) <= near).all() or (whole == theirs).all()
    )


def _in_order(ours: Values, theirs: Values) -> bool:
    """Whether `theirs` never falls where `ours` rises, and tells something apart wherever that does."""
    places = np.argsort(ours, kind="stable")
    rises, steps = np.diff(ours[places]), np.diff(theirs[places])
    slack = 1e-6 * max(float(np.ptp(theirs)), 1e-12)
    ties = rises <= 1e-6 * max(float(np.ptp(ours)), 1e-12)
    return bool((steps[~ties] >= -slack).all() and (constant(ours) or not constant(theirs)))


def _decided(made: Values) -> Values:
    """The labels that n x m probabilities stand for, as 0 and 1."""
    if made.shape[1] == 1:
        return np.asarray(made > 0.5, dtype=int)
    return np.asarray(made == made.max(axis=1, keepdims=True), dtype=int)
