"""Makes the four files of a task from a frame and a recipe. A pure function: the same bytes on every machine.

Rows are sampled, split and shuffled; ids are random and unique, and do not reveal a row's original position; columns
and categories get neutral names; missing values stay missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from pandas.api.types import is_numeric_dtype

from mappa_core import TaskError
from mappa_dsbench.embedded.names import Draw, Naming
from mappa_dsbench.embedded.recipes import Recipe
from mappa_dsbench.embedded.sources import BLOCK_COLUMN
from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.problem import Problem
from mappa_dsbench.task_prompt import constant_guess

TEST_PERCENT = 35


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedFiles:
    """A task's files, CSV in UTF-8. `answer` holds the id and the targets of the rows of `test`, in their order.

    `columns` maps the names in the files to those of the data set, for people who inspect a task.
    """

    problem: Problem
    train: bytes
    test: bytes
    sample: bytes
    answer: bytes
    columns: Mapping[str, str]


def make_files(frame: pd.DataFrame, recipe: Recipe, *, name: str, words: Sequence[str]) -> EmbeddedFiles:
    """Make the task `name` from a data set. `name` is the seed of all draws; `words` are the neutral words to use.

    TaskError: the recipe does not fit the frame, or the split leaves a label that the training table lacks.
    """
    draw = Draw(name)
    known = _derive_targets(_select_columns(frame, recipe), recipe)
    sample = _sample_rows(known, recipe, draw)
    train, test = _split(sample, recipe, draw)
    neutral = _NeutralNames(sample, recipe, Naming(draw, words), draw)
    parts = [neutral.rename_columns(part, start) for part, start in ((train, 0), (test, len(train)))]
    problem = _build_problem(name, recipe, neutral, parts[0])
    _check_labels(problem, parts[1])
    return _to_files(problem, neutral, *parts)


def _select_columns(frame: pd.DataFrame, recipe: Recipe) -> pd.DataFrame:
    wanted = [*(recipe.columns or frame.columns), *recipe.targets, BLOCK_COLUMN]
    unknown = [column for column in (*wanted[:-1], *recipe.drop) if column not in frame.columns]
    if unknown:
        raise TaskError(f"the data set {recipe.dataset!r} has no column {', '.join(unknown)}")
    return frame[[column for column in frame.columns if column in wanted and column not in recipe.drop]]


def _derive_targets(frame: pd.DataFrame, recipe: Recipe) -> pd.DataFrame:
    """Keep the rows with known targets, and convert the targets to the form to predict."""
    frame = frame.dropna(subset=list(recipe.targets)).reset_index(drop=True)
    if recipe.common is not None:
        label = frame[recipe.targets[0]]
        frame = frame[label.map(label.value_counts()) >= recipe.common].reset_index(drop=True)
    if recipe.above is not None:
        frame = frame.assign(**{at: (frame[at] > recipe.above).astype(int) for at in recipe.targets})
    if recipe.equals is not None:
        frame = frame.assign(**{at: (frame[at] == recipe.equals).astype(int) for at in recipe.targets})
    return frame


def _sample_rows(frame: pd.DataFrame, recipe: Recipe, draw: Draw) -> pd.DataFrame:
    """Sample at most `rows` rows, in a random order."""
    return frame.iloc[draw.order("rows", len(frame))[: recipe.rows]].reset_index(drop=True)


def _split(frame: pd.DataFrame, recipe: Recipe, draw: Draw) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split into training and test part, stratified by label, or by whole blocks where there are any."""
    if BLOCK_COLUMN in frame.columns:
        held = _held_blocks(frame[BLOCK_COLUMN], draw)
        frame = frame.drop(columns=BLOCK_COLUMN)
    else:
        groups = frame[recipe.targets[0]] if recipe.kind == "classification" else pd.Series(0, index=frame.index)
        place = groups.groupby(groups).cumcount()
        held = place < groups.map(groups.value_counts()) * TEST_PERCENT // 100
    order = draw.order("order", len(frame))
    shuffle, mask = frame.iloc[order], held.iloc[order]
    return shuffle[~mask].reset_index(drop=True), shuffle[mask].reset_index(drop=True)


def _held_blocks(blocks: pd.Series, draw: Draw) -> pd.Series:
    """Choose the rows of the test part: blocks in a random order, until they hold enough rows."""
    sizes = blocks.value_counts()
    names = sorted(sizes.index)
    held: list[int] = []
    for at in draw.order("split", len(names)):
        if 100 * sizes[held].sum() < len(blocks) * TEST_PERCENT:
            held.append(names[at])
    return blocks.isin(held)


class _NeutralNames:
    """The neutral names of one task: of its columns, its categories and its rows."""

    def __init__(self, frame: pd.DataFrame, recipe: Recipe, naming: Naming, draw: Draw) -> None:
        columns = [column for column in frame.columns if column != BLOCK_COLUMN]
        self._features = draw.shuffle("columns", [column for column in columns if column not in recipe.targets])
        self.id_column = naming.identifier()
        names = naming.columns(len(columns))
        self.names = dict(zip((*self._features, *recipe.targets), names, strict=True))
        self.targets = tuple(self.names[target] for target in recipe.targets)
        self._values = {
            column: dict(zip(values, naming.values(len(values)), strict=True))
            for column in columns
            if (values := _draw_categories(frame[column], column, draw))
        }
        self._ids = _draw_ids(len(frame), draw)

    def rename_columns(self, part: pd.DataFrame, start: int) -> pd.DataFrame:
        """Build the table of id, features and targets; `start` is the number of rows that already got an id."""
        columns = {
            name: part[column].map(self._values[column]) if column in self._values else part[column]
            for column, name in self.names.items()
        }
        return pd.DataFrame({self.id_column: self._ids[start : start + len(part)], **columns})


def _draw_categories(column: pd.Series, name: str, draw: Draw) -> list[str]:
    """Return the categories of a text column in a random order; none where it holds numbers."""
    return [] if is_numeric_dtype(column) else draw.shuffle(f"values of {name}", sorted(column.dropna().unique()))


def _draw_ids(count: int, draw: Draw) -> list[int] | list[str]:
    """Draw unique ids: numbers of six or seven digits, or words that no CSV reader parses as numbers."""
    found: dict[str, None] = {}
    at = 0
    while len(found) < count:
        found[draw.digest("id", at)[:5]] = None
        at += 1
    if draw.number("ids", below=4) == 0:
        return [f"k{text}" for text in found]
    return [100_000 + int(text, 16) for text in found]


def _build_problem(name: str, recipe: Recipe, neutral: _NeutralNames, train: pd.DataFrame) -> Problem:
    targets = train[list(neutral.targets)]
    numbers = recipe.kind == "regression"
    labels = METRICS[recipe.metric].prediction in ("label", "level")
    return Problem(
        name=name,
        kind=recipe.kind,
        metric=recipe.metric,
        id_column=neutral.id_column,
        targets=neutral.targets,
        labels=tuple(map(str, sorted(targets.iloc[:, 0].unique()))) if labels else None,
        range=(float(targets.min().min()), float(targets.max().max())) if numbers else None,
    )


def _check_labels(problem: Problem, test: pd.DataFrame) -> None:
    if problem.labels is None:
        return
    strange = sorted({str(label) for label in test[problem.targets[0]]} - set(problem.labels))
    if strange:
        raise TaskError(f"{problem.name}: the labels {', '.join(strange)} occur in no row of the training table")


def _to_files(problem: Problem, neutral: _NeutralNames, train: pd.DataFrame, test: pd.DataFrame) -> EmbeddedFiles:
    targets = list(problem.targets)
    sample = test[[problem.id_column]].assign(**dict.fromkeys(targets, constant_guess(problem)))
    return EmbeddedFiles(
        problem=problem,
        train=_to_csv(train),
        test=_to_csv(test.drop(columns=targets)),
        sample=_to_csv(sample),
        answer=_to_csv(test[[problem.id_column, *targets]]),
        columns={name: column for column, name in neutral.names.items()},
    )


def _to_csv(frame: pd.DataFrame) -> bytes:
    return str(frame.to_csv(index=False, lineterminator="\n")).encode()
