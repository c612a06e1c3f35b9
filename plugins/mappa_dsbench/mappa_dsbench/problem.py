"""The problem of a task: a table to predict, and the metric that grades the predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ProblemKind = Literal["classification", "regression"]
"""The stratum. It follows from what is predicted, not from the publisher's label of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One table to predict.

    A submission has the column `id_column` and the columns `targets`, one row per row of the test table. `metric` is a
    key of `metrics.METRICS`. `labels` are all values that a predicted label may take, as they stand in the training
    table; None where numbers or probabilities are predicted. `range` is the smallest and largest target of the training
    table, None for labels.
    """

    name: str
    kind: ProblemKind
    metric: str
    id_column: str
    targets: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    range: tuple[float, float] | None = None
