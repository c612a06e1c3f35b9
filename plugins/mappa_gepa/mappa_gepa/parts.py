"""Parts of the tasks: those that proposals learn from, those that choose among candidates, and those that report."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mappa_core import ConfigError, Task

Part = Literal["propose", "choose", "report"]
BOUNDS: tuple[tuple[Part, float], ...] = (("propose", 0.4), ("choose", 0.6), ("report", 1.0))
"""Upper ends of the parts on the unit interval that tasks are hashed to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParts:
    """The tasks of each part, in the order of their source. No task, and no cluster of tasks, is in two parts."""

    propose: tuple[Task, ...]
    choose: tuple[Task, ...]
    report: tuple[Task, ...]

    @property
    def all(self) -> tuple[Task, ...]:
        return (*self.propose, *self.choose, *self.report)


def part_of(task: Task) -> Part:
    """Part of a task by the hash of its cluster, or of its id if it has none: it depends on no other task."""
    name = f"task {task.id}" if task.cluster is None else f"cluster {task.cluster}"
    digest = hashlib.blake2b(f"improve/{name}".encode(), digest_size=8).digest()
    place = int.from_bytes(digest) / 2**64
    return next(part for part, end in BOUNDS if place < end)


def split_tasks(tasks: Sequence[Task], *, propose: int, choose: int, report: int) -> TaskParts:
    """Split `tasks`, at most so many for each part. Raises ConfigError if a part gets none, or the report only one."""
    found = {part: tuple(task for task in tasks if part_of(task) == part) for part, _ in BOUNDS}
    parts = TaskParts(
        propose=found["propose"][:propose], choose=found["choose"][:choose], report=found["report"][:report]
    )
    sizes = {"propose": len(parts.propose), "choose": len(parts.choose), "report": len(parts.report)}
    if not parts.propose or not parts.choose or len(parts.report) < 2:
        listed = ", ".join(f"{part} {size}" for part, size in sizes.items())
        raise ConfigError(
            f"{len(tasks)} training tasks, parted by the hash of their clusters, leave too few ({listed}): every part "
            "needs one and the report two. Give tasks.options more tasks, or clusters that are smaller"
        )
    return parts
