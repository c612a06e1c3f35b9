"""Tables that are nowhere but in a demonstration: what the small model's prompts tell of a task, and what they do not.

A demonstration needs no data and runs no program. What a program would have led to follows from its faults and from
what is drawn here.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from mappa_core import Task
from mappa_dsbench.grading.grade import Anchors
from mappa_dsbench.grading.metrics import METRICS, kind_of
from mappa_dsbench.problem import Problem
from mappa_dsbench.table import Table, meta_of
from mappa_dsbench.tiny import names

PREDICTIONS = (("number", "count"), ("label", "level"), ("score", "probability"))
"""What is to be predicted, in three kinds that are drawn equally often."""
SEVERAL = 0.75
"""Share of the metrics of any number of columns that are asked of several targets."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A task as its prompts tell it, and what they do not tell: whether its ids and its targets are text (else
    numbers), and whether targets that are numbers are whole."""

    table: Table
    text_ids: bool
    text_targets: bool
    whole: bool

    @property
    def problem(self) -> Problem:
        return self.table.problem

    @property
    def probable(self) -> bool:
        """Whether the metric asks how sure a model is, and not for a label or a number."""
        return METRICS[self.problem.metric].prediction in ("score", "probability")

    @property
    def task(self) -> Task:
        return Task(id="drawn", prompt="", stratum=self.problem.kind, meta=meta_of(self.table))


def draw(rng: Random) -> Drawn:
    """A task with a metric of one of the kinds that a program of the small model can be graded by."""
    asked = rng.choice(PREDICTIONS)
    metric = rng.choice([one for one in METRICS.values() if one.prediction in asked])
    several = metric.columns == "any" and asked == PREDICTIONS[0] and rng.random() < SEVERAL
    named = {names.identifier(rng): None}
    count = rng.choice((2, 3)) if several else 1
    while len(named) <= count:
        named[names.column(rng)] = None
    id_column, *targets = named
    problem = Problem(
        name="drawn",
        kind=kind_of(metric.name),
        metric=metric.name,
        id_column=id_column,
        targets=tuple(targets),
    )
    table = Table(
        problem=problem,
        anchors=Anchors(dummy=0.0, perfect=metric.perfect, paper=None),
        features=(),
        missing=rng.random() < 0.4,
        categorical=rng.random() < 0.4,
    )
    labels = problem.kind == "classification" and asked == PREDICTIONS[1]
    return Drawn(
        table,
        text_ids=rng.random() < 0.25,
        text_targets=labels and rng.random() < 0.5,
        whole=problem.kind == "classification" or rng.random() < 0.2,
    )
