"""Draws synthetic tasks for demonstrations: the facts in their prompts, and some that are not.

A demonstration needs no data and runs no program: the result of a program is predicted from its faults and from the
facts drawn here.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from mappa_core import Task
from mappa_dsbench.grading.grade import Anchors
from mappa_dsbench.grading.metrics import METRICS, problem_kind
from mappa_dsbench.problem import Problem
from mappa_dsbench.table import Table, table_to_meta
from mappa_dsbench.tiny import names

PREDICTION_GROUPS = (("number", "count"), ("label", "level"), ("score", "probability"))
"""Kinds of prediction, in three groups that are drawn equally often."""
SEVERAL_TARGETS_SHARE = 0.75
"""Share of the tasks with several targets, where the metric allows any number of columns."""


@dataclass(frozen=True, slots=True)
class SyntheticTask:
    """A task as described in its prompts, and facts that they leave out: whether its ids and its targets are text
    (else numbers), and whether numeric targets are whole numbers."""

    table: Table
    text_ids: bool
    text_targets: bool
    whole: bool

    @property
    def problem(self) -> Problem:
        return self.table.problem

    @property
    def probable(self) -> bool:
        """Whether the metric requires scores or probabilities."""
        return METRICS[self.problem.metric].prediction in ("score", "probability")

    @property
    def task(self) -> Task:
        return Task(id="drawn", prompt="", stratum=self.problem.kind, meta=table_to_meta(self.table))


def draw_task(rng: Random) -> SyntheticTask:
    """Draw a task with a metric that the tiny model's programs support."""
    group = rng.choice(PREDICTION_GROUPS)
    metric = rng.choice([one for one in METRICS.values() if one.prediction in group])
    several = metric.columns == "any" and group == PREDICTION_GROUPS[0] and rng.random() < SEVERAL_TARGETS_SHARE
    named = {names.draw_identifier(rng): None}
    count = rng.choice((2, 3)) if several else 1
    while len(named) <= count:
        named[names.draw_column(rng)] = None
    id_column, *targets = named
    problem = Problem(
        name="drawn",
        kind=problem_kind(metric.name),
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
    labels = problem.kind == "classification" and group == PREDICTION_GROUPS[1]
    return SyntheticTask(
        table,
        text_ids=rng.random() < 0.25,
        text_targets=labels and rng.random() < 0.5,
        whole=problem.kind == "classification" or rng.random() < 0.2,
    )
