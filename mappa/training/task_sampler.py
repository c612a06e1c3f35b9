"""Task sampling: the tasks of an iteration are a pure function of seed and iteration, so resuming needs no state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mappa.training.stratified_quota import StratifiedQuota
from mappa_core.errors import ConfigError
from mappa_core.records import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """All tasks, by number: the `order` within each stratum, and the `rank` of each within an iteration."""

    order: Sequence[Sequence[int]]
    rank: Mapping[int, int]


class TaskSampler:
    """Samples tasks in epochs of random order, every task once per epoch. An iteration that an epoch does not fill
    continues with the next, which begins with other tasks, so that no iteration holds a task twice. If `stratified`,
    every iteration holds its share of every stratum, rounded down or up."""

    def __init__(self, tasks: Sequence[Task], *, prompts: int, seed: int, stratified: bool = False) -> None:
        if len(tasks) < prompts:
            raise ConfigError(f"train.prompts={prompts}, but the source has only {len(tasks)} training tasks")
        self._tasks = tasks
        self._prompts = prompts
        self._seed = seed
        self._stratified = stratified
        self._members: dict[str, set[int]] = {}
        for index, task in enumerate(tasks):
            self._members.setdefault(self._stratum(task), set()).add(index)
        self._sizes = [len(members) for members in self._members.values()]
        self._quota = StratifiedQuota(self._sizes, prompts)
        self._epochs: list[Epoch] = []

    def sample(self, iteration: int) -> tuple[Task, ...]:
        """The tasks of `iteration`, counted from 0."""
        chosen: list[tuple[int, int, int]] = []
        for stratum, positions in enumerate(self._positions(iteration)):
            for position in positions:
                number, place = divmod(position, self._sizes[stratum])
                epoch = self._epoch(number)
                task = epoch.order[stratum][place]
                chosen.append((number, epoch.rank[task], task))
        # By rank within their epoch, so that strata are mixed.
        return tuple(self._tasks[task] for _, _, task in sorted(chosen))

    def sample_more(self, iteration: int, places: Sequence[Task], played: Collection[str]) -> dict[str, Task]:
        """Return another task of `iteration` for the place of each of `places`, by its id: in random order those whose
        ids are not in `played`; if `stratified`, of the same stratum. Where none is left, there is no entry."""
        # The 1 keeps it apart from the generators of epochs; a 0 would not, as entropy is padded with zeros.
        shuffled = np.random.default_rng([self._seed, iteration, 1]).permutation(len(self._tasks)).tolist()
        unplayed = [index for index in shuffled if self._tasks[index].id not in played]
        # Iterators, so that two places of one stratum get different tasks.
        by_stratum = {
            stratum: iter([index for index in unplayed if index in members])
            for stratum, members in self._members.items()
        }
        found = {place.id: next(by_stratum[self._stratum(place)], None) for place in places}
        return {place: self._tasks[index] for place, index in found.items() if index is not None}

    def _stratum(self, task: Task) -> str:
        return task.stratum if self._stratified else ""

    def _positions(self, iteration: int) -> list[range]:
        """Positions of the tasks that an iteration takes from each stratum, counted over all epochs."""
        before, after = self._quota.taken_before(iteration), self._quota.taken_before(iteration + 1)
        return [range(start, stop) for start, stop in zip(before, after, strict=True)]

    def _epoch(self, number: int) -> Epoch:
        while len(self._epochs) <= number:
            self._epochs.append(self._shuffled(len(self._epochs)))
        return self._epochs[number]

    def _shuffled(self, number: int) -> Epoch:
        """Shuffle an epoch. In each stratum it begins with tasks that its first iteration does not hold yet."""
        shuffled = np.random.default_rng([self._seed, number]).permutation(len(self._tasks)).tolist()
        order = [[task for task in shuffled if task in members] for members in self._members.values()]
        # The iteration in which the epoch begins: it takes the rest of the epoch before, and the first of this one.
        first_iteration = number * len(self._tasks) // self._prompts
        for stratum, positions in enumerate(self._positions(first_iteration)):
            rest = number * self._sizes[stratum] - positions.start
            if rest > 0:
                held = set(self._epochs[number - 1].order[stratum][-rest:])
                tasks = order[stratum]
                first = [task for task in tasks if task not in held][: len(positions) - rest]
                order[stratum] = [*first, *(task for task in tasks if task not in first)]
        return Epoch(order=order, rank={task: rank for rank, task in enumerate(shuffled)})
