"""Tasks from files and from Hugging Face data sets: rows with columns for the prompt, the known answer and an id."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappa_core.defaults.rows import DATA_EXTRA, Rows, read_rows
from mappa_core.errors import ConfigError, TaskError
from mappa_core.protocols import Split
from mappa_core.records import Task

BOXED_SUFFIX = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


@dataclass
class Columns:
    """Which columns of a row make a task. All that are not named here and hold a plain value are kept in `meta`."""

    prompt: str = "prompt"
    """Column with the problem's text."""
    reference: str | None = "answer"
    """Column with the known answer: text, a number or null; null instead of a name: these tasks have no answers."""
    id: str = "id"
    """Column with the task's id; a row without one is named by its number."""
    stratum: str | None = None
    """Column whose value groups tasks in reports, bias statistics and sampling."""
    suffix: str = BOXED_SUFFIX
    """Put after every prompt."""


@dataclass
class FileOptions(Columns):
    path: str = "???"
    """File with the training tasks; with no eval_path, also what is evaluated."""
    eval_path: str | None = None
    """File with the held-out tasks."""
    format: str = "auto"
    """auto | json | jsonl | csv | parquet"""


@dataclass
class HuggingFaceOptions(Columns):
    path: str = "???"
    """Id of a data set on the hub, or a folder with one."""
    name: str | None = None
    """Configuration of the data set, where it has several."""
    revision: str | None = None
    """Branch, tag or commit of the data set."""
    train_split: str = "train"
    eval_split: str = "test"


class FileTasks:
    """Tasks of one or two files. With `path` alone both splits are that file: right for evaluating on a file, not a
    held-out set for training."""

    def __init__(self, options: FileOptions) -> None:
        self._options = options

    def load(self, split: Split) -> Sequence[Task]:
        """Raises TaskError, naming file and row, where the file cannot be used."""
        options = self._options
        path = options.path if split == "train" or options.eval_path is None else options.eval_path
        return tasks_of(read_rows(path, options.format), options, Path(path).stem)


class HuggingFaceTasks:
    """Tasks of a data set that the `datasets` library loads, from the hub or from a folder."""

    def __init__(self, options: HuggingFaceOptions) -> None:
        self._options = options

    def load(self, split: Split) -> Sequence[Task]:
        """Raises TaskError where the data set, the split or a row cannot be used, ConfigError without `datasets`."""
        options = self._options
        name = options.train_split if split == "train" else options.eval_split
        rows = dataset_rows(options, name)
        return tasks_of(rows, options, f"{Path(options.path).name}-{name}")


def dataset_rows(options: HuggingFaceOptions, split: str) -> Rows:
    """The rows of one split of a data set. Raises as HuggingFaceTasks.load does."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
    try:
        import datasets
    except ImportError:
        raise ConfigError(f"tasks.use=huggingface needs datasets, which is not installed: {DATA_EXTRA}") from None
    where = f"data set {options.path}"
    folder = Path(options.path).expanduser()
    path = str(folder) if folder.is_dir() else options.path
    try:
        found = datasets.load_dataset(path, options.name, split=split, revision=options.revision)
    except (datasets.exceptions.DatasetsError, OSError, ValueError) as error:
        raise TaskError(f"{where}, split {split}: {error}") from error
    return Rows(found, lambda index: f"{where}, split {split}, row {index + 1}")


def tasks_of(found: Rows, columns: Columns, source: str) -> tuple[Task, ...]:
    """Rows to tasks; a row without an id is named `source` and its number.

    Raises:
        TaskError: a row has no usable prompt, answer, id or stratum, or an id occurs twice.
    """
    tasks: list[Task] = []
    first: dict[str, int] = {}
    for index, row in enumerate(found.rows):
        try:
            task = _task(row, columns, f"{source}-{index + 1}")
        except _BadRow as error:
            raise TaskError(f"{found.place(index)}: {error}") from None
        if task.id in first:
            raise TaskError(
                f"{found.place(index)}: the id {task.id!r} is already that of {found.place(first[task.id])}"
            )
        first[task.id] = index
        tasks.append(task)
    return tuple(tasks)


class _BadRow(Exception):
    """What is wrong with a row; who reads the file adds where."""


def _task(row: Mapping[str, Any], columns: Columns, unnamed: str) -> Task:
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
        there = ", ".join(map(str, row))
        raise _BadRow(
            f"no column {column!r}; the columns here are {there}. Name the right one with tasks.options.{option}"
        )
    return row[column]


def _prompt(row: Mapping[str, Any], column: str) -> str:
    prompt = _cell(row, column, "prompt")
    if not isinstance(prompt, str):
        raise _BadRow(f"{column!r} is not text: {prompt!r}")
    if not prompt.strip():
        raise _BadRow(f"{column!r} is empty")
    return prompt


def _reference(row: Mapping[str, Any], column: str) -> str | None:
    value = _cell(row, column, "reference")
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    raise _BadRow(f"{column!r} is neither text nor a number: {value!r}")


def _id(row: Mapping[str, Any], column: str) -> str | None:
    value = row.get(column)
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise _BadRow(f"{column!r} is neither text nor a whole number: {value!r}")


def _stratum(row: Mapping[str, Any], column: str) -> str:
    value = _cell(row, column, "stratum")
    if value is None:
        raise _BadRow(f"{column!r} is null; every task needs a stratum, or tasks.options.stratum=null")
    return str(value)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
