"""The embedded tasks of both splits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import pandas as pd

from mappa_core import TaskError
from mappa_dsbench.embedded.make_task import EmbeddedFiles, make_files
from mappa_dsbench.embedded.names import HELD_OUT_WORDS, TRAINING_WORDS, Draw
from mappa_dsbench.embedded.recipes import HELD_OUT, TRAINING, Recipe
from mappa_dsbench.embedded.sources import load_dataset
from mappa_dsbench.problem import ProblemKind

EmbeddedSplit = Literal["training", "held_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedTask:
    """One embedded task. Its name does not reveal the data set; it is a hash of the recipe."""

    name: str
    split: EmbeddedSplit
    recipe: Recipe

    @property
    def kind(self) -> ProblemKind:
        """The stratum."""
        return self.recipe.kind

    @property
    def dataset(self) -> str:
        """The cluster for confidence intervals: tasks of one data set are not independent."""
        return self.recipe.dataset

    def make_files(self) -> EmbeddedFiles:
        """Make the task's files and its Problem. TaskError: the package that holds the data set is not installed."""
        words = TRAINING_WORDS if self.split == "training" else HELD_OUT_WORDS
        return make_files(_load_frame(self.dataset), self.recipe, name=self.name, words=words)


@cache
def _load_frame(dataset: str) -> pd.DataFrame:
    """Load a data set once, as several tasks are made from it; `make_files` does not change it."""
    return load_dataset(dataset)


def _task_name(recipe: Recipe) -> str:
    """Derive a task's name, the seed of its draws, from the recipe: equal recipes get equal names."""
    parts = [f"{name}={getattr(recipe, name)!r}" for name in recipe.__slots__]
    return f"table-{Draw('embedded').digest('name', *parts)[:8]}"


def _build_catalogue() -> dict[str, EmbeddedTask]:
    tasks: dict[str, EmbeddedTask] = {}
    splits: tuple[tuple[EmbeddedSplit, tuple[Recipe, ...]], ...] = (("training", TRAINING), ("held_out", HELD_OUT))
    for split, recipes in splits:
        for recipe in recipes:
            name = _task_name(recipe)
            if name in tasks:
                raise TaskError(f"two recipes are the same: {recipe}")
            tasks[name] = EmbeddedTask(name=name, split=split, recipe=recipe)
    return tasks


CATALOGUE = _build_catalogue()
"""Every embedded task by name, training first."""


def tasks_of_split(split: EmbeddedSplit) -> tuple[EmbeddedTask, ...]:
    """Return the tasks of one split, in the catalogue's order."""
    return tuple(task for task in CATALOGUE.values() if task.split == split)
