"""The possible faults of the files that agents leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from mappa_dsbench.grading.submission import RejectionReason

MISSING = "missing"
UNREADABLE = "unreadable"

_ANY_FILE = {MISSING: True, UNREADABLE: True}
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
_SUBMISSION = {**dict.fromkeys(get_args(RejectionReason), True), "unfaithful": False, "hard_labels": False}

FAULT_IS_HARD: Mapping[str, bool] = {**_SUBMISSION, **_FEATURES, **_MODEL, **_ANY_FILE}
"""Every fault -> whether it is hard: the file is unusable for later agents, or they work on wrong data unnoticed. A
soft fault lowers the team's result, but stops no later agent.

Of any file: `missing`; `unreadable`: it cannot be opened, or does more than hold data.
Of features: `not_a_table`, or one without columns. `rows`: others than those of the task's table, or in another order.
`columns`: those of the test features differ from those of the training features, or stand in another order.
`target_inside`. `not_numeric`: cells that are no numbers. `not_finite`: gaps and infinite values. `wrong_target`:
`y_train.pkl` is not the target in the order of the rows. `id_inside`. `refit_on_test`: the test features were filled or
scaled by the test table's own statistics. `rows_dropped`: training rows are gone.
Of a model: `no_predict`. `predicts_badly`: it fails on the test features, or gives other rows, or what is no number.
`wrong_kind`: numbers where labels or probabilities of classes are asked for, or classes where numbers are.
`no_probabilities`: they are asked for and it has none.
Of a submission: the reasons of `submission.Reason`. `unfaithful`: not what the model predicts. `hard_labels`: labels
where scores or probabilities are asked for.
"""


def build_fault(code: str, path: str, detail: str = "") -> dict[str, Any]:
    """Build an entry of `Inspection.facts["faults"]`, as JSON values."""
    return {"code": code, "path": path, "detail": detail, "hard": FAULT_IS_HARD[code]}
