"""What can be wrong with a file that an agent leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from mappa_dsbench.grading.submission import Reason

MISSING = "missing"
UNREADABLE = "unreadable"

_ANYBODY = {MISSING: True, UNREADABLE: True}
_FEATURES = {
    "not_a_table": True,
    "rows": True,
    "columns": True,
    "target_inside": True,
    "not_numeric": True,
    "not_finite": True,
    "wrong_target": True,
    "id_inside": False,
    "refit_on_test": False,
    "rows_dropped": False,
}
_MODEL = {
    "no_predict": True,
    "predicts_badly": True,
    "wrong_kind": True,
    "no_probabilities": False,
}
_SUBMISSION = {**dict.fromkeys(get_args(Reason), True), "unfaithful": False, "hard_labels": False}

FAULTS: Mapping[str, bool] = {**_SUBMISSION, **_FEATURES, **_MODEL, **_ANYBODY}
"""Every fault -> whether it is hard: whoever needs the file cannot work with it, or works on what is wrong without
seeing it. A soft one costs the team something, and nobody stumbles over it.

Of any file: `missing`; `unreadable`: it cannot be opened, or does more than hold data.
Of features: `not_a_table`. `rows`: others than those of the task's table, or in another order. `columns`: those of the
test features differ from those of the training features, or stand in another order. `target_inside`. `not_numeric`:
cells that are no numbers. `not_finite`: gaps and infinite values. `wrong_target`: `y_train.pkl` is not the target in
the order of the rows. `id_inside`. `refit_on_test`: the test features were filled or scaled by the test table's own
statistics. `rows_dropped`: training rows are gone.
Of a model: `no_predict`. `predicts_badly`: it fails on the test features, or gives other rows, or what is no number.
`wrong_kind`: numbers where labels or probabilities of classes are asked for, or classes where numbers are.
`no_probabilities`: they are asked for and it has none.
Of a submission: the reasons of `submission.Reason`. `unfaithful`: not what the model predicts. `hard_labels`: labels
where scores or probabilities are asked for.
"""


def fault(code: str, path: str, detail: str = "") -> dict[str, Any]:
    """A fault as it stands in `Inspection.facts["faults"]`, as JSON values."""
    return {"code": code, "path": path, "detail": detail, "hard": FAULTS[code]}
