"""Dynamic sampling: which tasks of an iteration are replaced, because all their samples have the same rewards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from mappa.store.writer import Store
from mappa.training.task_sampler import TaskSampler
from mappa_core.credit.build_experience import ExperienceBuilder
from mappa_core.experience import Experience
from mappa_core.records import Task, Trajectory

REPLACED_EVENT = "replaced"
"""Event, written when a round of dynamic sampling is decided: the `tasks` of its `iteration` that are replaced."""


class DynamicSampling:
    """Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476, section 3.2), in at most `rounds` rounds an iteration.

    A task has spread if two of its samples were rewarded differently for what an agent did in the same turn: then a
    group of `groups: turn` has an advantage other than 0. Decisions are recorded, and stand after a resume.
    """

    def __init__(self, rounds: int, *, sampler: TaskSampler, builder: ExperienceBuilder, store: Store) -> None:
        self.rounds = rounds
        self._sampler = sampler
        self._builder = builder
        self._store = store
        self._decided: dict[int, list[Sequence[str]]] = {}
        for event in store.events(REPLACED_EVENT):
            self._decided.setdefault(event.body["iteration"], []).append(event.body["tasks"])

    def choose(
        self, iteration: int, number: int, trajectories: Sequence[Trajectory], played: Collection[str]
    ) -> Mapping[str, Task]:
        """Choose, in round `number` from 0, further tasks by the ids of those they replace. `played`: ids of all tasks
        of the iteration so far."""
        decided = self._decided.setdefault(iteration, [])
        tasks = {trajectory.task.id: trajectory.task for trajectory in trajectories}
        if number < len(decided):
            # Decided before a resume, and not anew: verdicts that failed then may have been given since.
            return self._sampler.sample_more(iteration, [tasks[name] for name in decided[number]], played)
        spread = tasks_with_spread(self._builder.build(trajectories))
        equal = [task for name, task in tasks.items() if name not in spread]
        further = self._sampler.sample_more(iteration, equal, played)
        # Recorded even if nothing is replaced, or a resume would decide this round anew.
        decided.append(tuple(further))
        self._store.record_event(REPLACED_EVENT, iteration=iteration, tasks=decided[number])
        return further


def tasks_with_spread(experience: Experience) -> frozenset[str]:
    """Return the tasks with a group (agent and turn) whose rows, those of positive weight, differ in reward."""
    rows = np.flatnonzero(experience.weight > 0)
    reward, group = experience.reward[rows], experience.group[rows]
    # Lowest and highest reward by group. NaN is the neutral element of fmin and fmax, and a comparison with it is
    # false, so groups without a row of positive weight have no spread.
    low, high = np.full((2, group.max(initial=-1) + 1), np.nan)
    np.fmin.at(low, group, reward)
    np.fmax.at(high, group, reward)
    in_group_with_spread = (high > low)[group]
    tasks = np.unique(experience.task[rows[in_group_with_spread]])
    return frozenset(experience.tasks[task] for task in tasks)
