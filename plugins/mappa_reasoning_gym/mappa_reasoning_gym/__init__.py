"""Tasks of the library reasoning-gym, with its graders."""

from __future__ import annotations

from collections.abc import Iterable

from mappa_core import Offer, TaskSource, hookimpl
from mappa_reasoning_gym.options import ReasoningGymOptions


@hookimpl
def mappa_tasks() -> Iterable[Offer[TaskSource]]:
    yield Offer("reasoning-gym", _build_tasks, ReasoningGymOptions)


def _build_tasks(options: ReasoningGymOptions) -> TaskSource:
    from mappa_reasoning_gym.tasks import ReasoningGymTasks

    return ReasoningGymTasks(options)
