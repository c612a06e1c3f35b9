"""Task sources for files and Hugging Face data sets, whose rows have columns for the prompt, the answer and an id."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappa_core.defaults.row_files import FileFormat, Rows, read_dataset, read_rows
from mappa_core.errors import TaskError
from mappa_core.protocols import Split
from mappa_core.records import Task


@dataclass
class TaskColumns:
    """Mapping from the columns of a row to a task. All other columns with plain values are stored in `meta`."""

    prompt: str = "prompt"
    """Column with the problem text."""
    reference: str | None = "answer"
    """Column with the reference answer: text, a number or null. Set to null if the tasks have no answers."""
    id: str = "id"
    """Column with the task's id; a row without one is identified by its number."""
    stratum: str | None = None
    """Column whose value groups tasks in reports, bias statistics and sampling."""
    suffix: str = ""
    """Text appended to every prompt."""


@dataclass
class FileOptions(TaskColumns):
    path: str = "???"
    """File with the training tasks; without eval_path also with the evaluation tasks."""
    eval_path: str | None = None
    """File with the held-out tasks."""
    format: FileFormat = "auto"
    """`auto`: by the suffix of the file, or else its content."""


@dataclass
class HuggingFaceOptions(TaskColumns):
    path: str = "???"
    """Id of a data set on the Hugging Face hub, or a local folder."""
    name: str | None = None
    """Configuration of the data set, if it has several."""
    revision: str | None = None
    """Branch, tag or commit of the data set."""
    train_split: str = "train"
    eval_split: str = "test"


class FileTasks:
    """Task source of one or two files. With only `path`, both splits use it: no held-out set for training."""

    def __init__(self, options: FileOptions) -> None:
        self._options = options

    def load(self, split: Split) -> Sequence[Task]:
        """Raises TaskError with file and row if the file cannot be used."""
        options = self._options
        path = options.path if split == "train" or options.eval_path is None else options.eval_path
        return build_tasks(read_rows(path, options.format), options, Path(path).stem)


class HuggingFaceTasks:
    """Task source of a data set from the hub or a local folder."""

    def __init__(self, options: HuggingFaceOptions) -> None:
        self._options = options

    def load(self, split: Split) -> Sequence[Task]:
        """Raises TaskError if the data set, the split or a row cannot be used, ConfigError without `datasets`."""
        options = self._options
        name = options.train_split if split == "train" else options.eval_split
        rows = read_dataset(options.path, name, config=options.name, revision=options.revision)
        return build_tasks(rows, options, f"{Path(options.path).name}-{name}")


def build_tasks(rows: Rows, columns: TaskColumns, source: str) -> tuple[Task, ...]:
    """Build tasks from rows; one without an id gets `source` and its number. Raises TaskError for an unusable row."""
    tasks: list[Task] = []
    index_by_id: dict[str, int] = {}
    for index, row in enumerate(rows.rows):
        try:
            task = _task(row, columns, f"{source}-{index + 1}")
        except _BadRow as error:
            raise TaskError(f"{rows.place(index)}: {error}") from None
        first = index_by_id.setdefault(task.id, index)
        if first != index:
            raise TaskError(f"{rows.place(index)}: the id {task.id!r} is already that of {rows.place(first)}")
        tasks.append(task)
    return tuple(tasks)


class _BadRow(Exception):
    """Error in a row; the caller adds the location."""


def _task(row: Mapping[str, Any], columns: TaskColumns, unnamed: str) -> Task:
    named = {columns.prompt, columns.reference, columns.id, columns.stratum}
    return Task(
        id=_id(row, columns.id) or unnamed,
        prompt=_prompt(row, columns.prompt) + columns.suffix,
        reference=None if columns.reference is None else _reference(row, columns.reference),
        stratum="all" if columns.stratum is None else _stratum(row, columns.stratum),
        meta={column: value for column, value in row.items() if column not in named and _is_plain(value)},
    )


def _cell(row: Mapping[str, Any], column: str, option: str) -> Any:
    if column not in row:
        there = f"no column {column!r}; the columns here are {', '.join(map(str, row))}"
        raise _BadRow(f"{there}. Name the right one with tasks.options.{option}")
    return row[column]


def _prompt(row: Mapping[str, Any], column: str) -> str:
    prompt = _cell(row, column, "prompt")
    if not isinstance(prompt, str):
        raise _BadRow(f"{column!r} is not text: {prompt!r}. Name the column of the problem with tasks.options.prompt")
    if not prompt.strip():
        raise _BadRow(f"{column!r} is empty: every task needs a problem, so leave such rows out of the file")
    return prompt


def _reference(row: Mapping[str, Any], column: str) -> str | None:
    value = _cell(row, column, "reference")
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    raise _BadRow(
        f"{column!r} is neither text nor a number: {value!r}. An answer that is not known is null, and "
        "tasks.options.reference=null says that no task has one"
    )


def _id(row: Mapping[str, Any], column: str) -> str | None:
    value = row.get(column)
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise _BadRow(
        f"{column!r} is neither text nor a whole number: {value!r}. Without an id a row is known by its number; name "
        "another column with tasks.options.id"
    )


def _stratum(row: Mapping[str, Any], column: str) -> str:
    value = _cell(row, column, "stratum")
    if value is None:
        raise _BadRow(f"{column!r} is null; every task needs a stratum, or tasks.options.stratum=null")
    return str(value)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
