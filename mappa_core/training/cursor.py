"""Which tasks an iteration uses: a pure function of seed and iteration, so that a resumed run needs no cursor file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mappa_core.errors import ConfigError
from mappa_core.records import Task


class TaskCursor:
    """Epochs of random order without repetition. What does not fill a last iteration of an epoch is left out of that
    epoch (other tasks in each), so that no iteration holds a task twice."""

    def __init__(self, tasks: Sequence[Task], *, prompts: int, seed: int) -> None:
        if len(tasks) < prompts:
            raise ConfigError(f"train.prompts={prompts}, but the source has only {len(tasks)} training tasks")
        self._tasks = tasks
        self._prompts = prompts
        self._seed = seed
        self._per_epoch = len(tasks) // prompts

    def take(self, iteration: int) -> tuple[Task, ...]:
        """The tasks of `iteration`, counted from 0."""
        epoch, place = divmod(iteration, self._per_epoch)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._tasks))
        chosen = order[place * self._prompts : (place + 1) * self._prompts]
        return tuple(self._tasks[index] for index in chosen)
