"""The embedded tasks of both splits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import pandas as pd

from mappa_core import TaskError
from mappa_dsbench.embedded.cutting import Cut, cut
from mappa_dsbench.embedded.names import HELD_OUT_WORDS, TRAINING_WORDS, Draw
from mappa_dsbench.embedded.recipes import HELD_OUT, TRAINING, Recipe
from mappa_dsbench.embedded.sources import load
from mappa_dsbench.problem import Kind

Split = Literal["training", "held_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """One embedded task. Its name says nothing about the data set; it follows from the recipe alone."""

    name: str
    split: Split
    recipe: Recipe

    @property
    def kind(self) -> Kind:
        """The stratum."""
        return self.recipe.kind

    @property
    def dataset(self) -> str:
        """By which intervals are clustered: tasks of one data set are no independent evidence."""
        return self.recipe.dataset

    def cut(self) -> Cut:
        """The task's files and its Problem. TaskError: the package that holds the data set is not installed."""
        words = TRAINING_WORDS if self.split == "training" else HELD_OUT_WORDS
        return cut(_frame(self.dataset), self.recipe, name=self.name, words=words)


@cache
def _frame(dataset: str) -> pd.DataFrame:
    """Read once, as several tasks are cut from it; `cut` leaves it as it is."""
    return load(dataset)


def _named(recipe: Recipe) -> str:
    """Two recipes that read the same get the same name: the draws of a task hang on it."""
    parts = [f"{name}={getattr(recipe, name)!r}" for name in recipe.__slots__]
    return f"table-{Draw('embedded').digest('name', *parts)[:8]}"


def _catalogue() -> dict[str, Embedded]:
    tasks: dict[str, Embedded] = {}
    splits: tuple[tuple[Split, tuple[Recipe, ...]], ...] = (("training", TRAINING), ("held_out", HELD_OUT))
    for split, recipes in splits:
        for recipe in recipes:
            name = _named(recipe)
            if name in tasks:
                raise TaskError(f"two recipes are the same: {recipe}")
            tasks[name] = Embedded(name=name, split=split, recipe=recipe)
    return tasks


CATALOGUE = _catalogue()
"""Every embedded task by its name, training first."""


def tasks(split: Split) -> tuple[Embedded, ...]:
    """The tasks of one split, in the catalogue's order."""
    return tuple(task for task in CATALOGUE.values() if task.split == split)
