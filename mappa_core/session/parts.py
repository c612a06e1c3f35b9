"""Held-out tasks in two parts: those that the best checkpoint is chosen on, and those that are reported.

The best of many evaluations is too good by what chance gave it. So the figure of a checkpoint that was chosen by its
figures is taken on tasks that had no say in the choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mappa_core.config.schema import RunConfig
from mappa_core.errors import ConfigError
from mappa_core.records import Task

Part = Literal["all", "selection", "report"]
"""Which held-out tasks: all of them; or, where a part of them chooses the best checkpoint, that one or the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The tasks that are reported, and those that the best checkpoint is chosen on: none of them where that is not
    asked for, or is done on the tasks that are reported."""

    report: tuple[Task, ...]
    selection: tuple[Task, ...] = ()

    @property
    def part(self) -> Part:
        """Which part of the tasks those are that are reported."""
        return "report" if self.selection else "all"


def parts_of(tasks: Sequence[Task], config: RunConfig) -> Parts:
    """Held-out tasks as `checkpoint.best` and `eval.selection` part them.

    A task goes by the hash of its cluster, or of its id where it stands for itself: so tasks of one cluster stay
    together, and where a task goes does not depend on the others, the seed or the run.

    Raises:
        ConfigError: one of the two parts is empty.
    """
    share = config.eval.selection
    if not config.checkpoint.best or share is None:
        return Parts(report=tuple(tasks))
    chosen = [chooses(task, share) for task in tasks]
    parts = Parts(
        report=tuple(task for task, is_chosen in zip(tasks, chosen, strict=True) if not is_chosen),
        selection=tuple(task for task, is_chosen in zip(tasks, chosen, strict=True) if is_chosen),
    )
    if not parts.report or not parts.selection:
        empty = "to report on" if not parts.report else "to choose the best checkpoint on"
        raise ConfigError(
            f"eval.selection={share:g}: of {len(tasks)} held-out tasks, parted by hash, none is left {empty}. Evaluate "
            "more tasks, take another share, or set checkpoint.best=false"
        )
    return parts


def chooses(task: Task, share: float) -> bool:
    """Whether a task is one of the `share` that the best checkpoint is chosen on."""
    name = f"task {task.id}" if task.cluster is None else f"cluster {task.cluster}"
    digest = hashlib.blake2b(f"selection/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 < share
