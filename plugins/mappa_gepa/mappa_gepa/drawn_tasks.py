"""Task sources whose tasks are drawn by the seed and the name of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from mappa_core import Split, Task


@dataclass
class DrawnTasksOptions:
    train: int = 240
    eval: int = 64
    seed: int = 0


class DrawnTasks(ABC):
    """Draws as many tasks as its options say."""

    def __init__(self, options: DrawnTasksOptions) -> None:
        self._options = options

    def load(self, split: Split) -> Sequence[Task]:
        """Draw the tasks of `split`."""
        count = self._options.train if split == "train" else self._options.eval
        names = [f"{split}-{number:04d}" for number in range(count)]
        return [self._draw(name, Random(f"{self._options.seed}/{name}")) for name in names]

    @abstractmethod
    def _draw(self, name: str, random: Random) -> Task:
        """Return the task with the id `name`."""
