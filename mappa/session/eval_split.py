"""Splits held-out tasks: the best of many evaluations is biased upwards by chance, so the metric of a checkpoint chosen
as the best is measured on tasks that were not used for the choice."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mappa_core.config.schema import RunConfig
from mappa_core.errors import ConfigError
from mappa_core.records import Task

EvalPart = Literal["all", "selection", "report"]
"""A part of the held-out tasks: all, or the part that chooses the best checkpoint, or the part that is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutTasks:
    """Tasks to report, and tasks to choose the best checkpoint on, if those are others."""

    report: tuple[Task, ...]
    selection: tuple[Task, ...] = ()

    @property
    def part(self) -> EvalPart:
        return "report" if self.selection else "all"


def split_held_out(tasks: Sequence[Task], config: RunConfig) -> HeldOutTasks:
    """Split the first `eval.problems` of the held-out tasks as `checkpoint.best` and `eval.selection` say.

    A task is assigned by the hash of its cluster, or of its id if it has no cluster. So tasks of one cluster stay
    together, and the assignment depends neither on the other tasks nor on the seed or the run. Raises ConfigError if
    one of the two parts is empty.
    """
    tasks, share = tasks[: config.eval.problems], config.eval.selection
    if not config.checkpoint.best or share is None:
        return HeldOutTasks(report=tuple(tasks))
    parts = HeldOutTasks(
        report=tuple(task for task in tasks if not in_selection_split(task, share)),
        selection=tuple(task for task in tasks if in_selection_split(task, share)),
    )
    if not parts.report or not parts.selection:
        empty = "to report on" if not parts.report else "to choose the best checkpoint on"
        raise ConfigError(
            f"eval.selection={share:g}: of {len(tasks)} held-out tasks, parted by hash, none is left {empty}. Evaluate "
            "more tasks, take another share, or set checkpoint.best=false"
        )
    return parts


def in_selection_split(task: Task, share: float) -> bool:
    """Whether a task belongs to the `share` on which the best checkpoint is chosen."""
    name = f"task {task.id}" if task.cluster is None else f"cluster {task.cluster}"
    # A hash as a number from 0 to 1: what is below a small share is also below a larger one.
    digest = hashlib.blake2b(f"selection/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 < share
