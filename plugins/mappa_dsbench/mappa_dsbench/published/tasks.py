"""The task source `dsbench`: the published tasks, from a user's copy of DSBench's data.

Tables are used in place, however large. Facts that take a pass over them (labels, ranges, anchors) and what they lack
(ids, a sample submission) are cached in a folder whose name depends on the sizes and times of the source files.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd

from mappa_core import Split, Task, TaskError, ToolError
from mappa_dsbench.cache_paths import check_out_of_reach, resolve_cache_folder
from mappa_dsbench.grading.grade import compute_anchors
from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.grading.truth import read_truth
from mappa_dsbench.options import PublishedOptions
from mappa_dsbench.problem import Problem
from mappa_dsbench.published.catalogue import Published, find_published, load_catalogue
from mappa_dsbench.published.check_files import FIRST_ROWS, CheckedTask, TaskFiles, check_task, find_root, task_paths
from mappa_dsbench.published.complete_files import add_sample, join_ids
from mappa_dsbench.published.prepare import find_texts
from mappa_dsbench.published.prompts import PublishedTexts, build_prompt, read_texts
from mappa_dsbench.published.read_problem import read_problem
from mappa_dsbench.roles import TASK_FILES
from mappa_dsbench.table import Table, has_missing_and_text, table_from_meta, table_to_meta

KNOWN_FILE = "known.json"
MAX_SHOWN_FAULTS = 5


class PublishedTasks:
    """Implements TaskSource.

    Raises:
        TaskError: there is no data, a named task is none of the published ones, or a text cannot be read.
        ConfigError: agents' programs can read the data.
    """

    def __init__(self, options: PublishedOptions) -> None:
        self._data = check_out_of_reach(Path(options.data).expanduser().absolute(), "tasks.options.data")
        self._root = find_root(self._data)
        self._folder = resolve_cache_folder(options.folder)
        self._texts = _find_or_read_texts(options, self._data, self._root)
        self._all = options.tasks is None
        names = options.tasks if options.tasks is not None else list(load_catalogue())
        self._chosen = [find_published(name) for name in names]

    def load(self, split: Split) -> Sequence[Task]:
        tasks: list[Task] = []
        faults: list[str] = []
        for task in self._chosen:
            if task.split == split:
                self._add(task, tasks, faults)
        if faults:
            more = f"\n… and {len(faults) - MAX_SHOWN_FAULTS} more" if len(faults) > MAX_SHOWN_FAULTS else ""
            raise TaskError(
                f"{len(faults)} published tasks cannot be used:\n" + "\n".join(faults[:MAX_SHOWN_FAULTS]) + more + "\n"
                f"`mappa dsbench prepare {self._data}` checks all of them; tasks.options.tasks names those to be used"
            )
        return tuple(tasks)

    def _add(self, task: Published, tasks: list[Task], faults: list[str]) -> None:
        place = self._folder / "published" / f"{task.name}-{_stamp(self._root, task)}"
        try:
            known = _load_known(place)
            if known is None:
                checked = check_task(self._root, task)
                if self._all and task.baseline is None and checked.absent:
                    return  # DSBench's archive does not hold it.
                known = _build_known(checked, place)
        except (TaskError, ToolError) as error:
            faults.append(f"{task.name}: {error}")
        else:
            tasks.append(_to_task(task, known, self._texts))


def _find_or_read_texts(options: PublishedOptions, data: Path, root: Path) -> PublishedTexts:
    if options.texts is None:
        return find_texts(data, root)
    return read_texts([Path(path).expanduser() for path in options.texts])


def _stamp(root: Path, task: Published) -> str:
    """Compute a stamp of 16 hexadecimal digits that changes with the task's files and with its catalogue entry."""
    parts: list[object] = [task]
    for path in task_paths(root, task):
        try:
            status = path.stat()
        except OSError:
            parts.append((str(path), "not there"))
        else:
            parts.append((str(path), status.st_size, status.st_mtime_ns))
    return sha256(repr(parts).encode()).hexdigest()[:16]


def _load_known(place: Path) -> Mapping[str, Any] | None:
    try:
        known: Mapping[str, Any] = json.loads((place / KNOWN_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TaskError(f"{place / KNOWN_FILE} cannot be read: {error}; delete the folder {place}") from error
    return known


def _build_known(checked: CheckedTask, place: Path) -> Mapping[str, Any]:
    """Pass over the tables once, and cache the results, all or nothing.

    Raises:
        TaskError: a file is missing or wrong, or the cache cannot be written.
        ToolError: the answers are wrong.
    """
    if checked.files is None:
        raise TaskError("; ".join(str(finding) for finding in checked.findings if finding.blocks))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=place.parent) as name:
            aside = Path(name) / place.name
            aside.mkdir()
            files = join_ids(checked.files, aside)
            problem = read_problem(checked.published, files)
            files = add_sample(files, problem, aside)
            for path in aside.iterdir():  # Agents' programs may run as another user.
                path.chmod(0o600 if path == files.answers else 0o644)
            known = _to_known(checked, files, problem, aside, place)
            (aside / KNOWN_FILE).write_text(json.dumps(known), encoding="utf-8")
            _move_into_place(aside, place)
    except OSError as error:
        raise TaskError(f"{place} cannot be written: {error.strerror}") from error
    return known


def _to_known(checked: CheckedTask, files: TaskFiles, problem: Problem, aside: Path, place: Path) -> Mapping[str, Any]:
    shown = (files.train, files.test, files.sample or place)
    paths = [place / path.name if path.parent == aside else path for path in (*shown, files.answers)]
    return {
        "files": dict(zip((*TASK_FILES, "answers"), map(str, paths), strict=True)),
        "test_rows": files.test_rows,
        "table": table_to_meta(_build_table(checked, files, problem)),
    }


def _move_into_place(aside: Path, place: Path) -> None:
    try:
        aside.rename(place)
    except OSError:
        if not (place / KNOWN_FILE).is_file():  # Unless another process wrote the same at the same time.
            raise


def _build_table(checked: CheckedTask, files: TaskFiles, problem: Problem) -> Table:
    task = checked.published
    train, test = (pd.read_csv(path, nrows=FIRST_ROWS, encoding="utf-8-sig") for path in (files.train, files.test))
    train.columns, test.columns = (frame.columns.str.strip() for frame in (train, test))
    features = [column for column in test.columns if column != problem.id_column]
    missing, categorical = has_missing_and_text(pd.concat([train.filter(items=features), test[features]]))
    counted = any(finding.reason == "row_count" for finding in checked.findings)
    bounds = (task.baseline, task.perfect)
    anchors = compute_anchors(read_truth(files.answers, problem), _read_targets(files, problem))
    if METRICS[problem.metric].prediction == "words" and task.baseline is not None:
        # The words are a span of a text in the test table, whose copy scores far more than any constant
        anchors = replace(anchors, dummy=max(anchors.dummy, task.baseline))
    return Table(
        problem=problem,
        anchors=anchors,
        features=tuple(features),
        missing=missing,
        categorical=categorical,
        published=None if counted or bounds[0] is None or bounds[1] is None else (bounds[0], bounds[1]),
    )


def _read_targets(files: TaskFiles, problem: Problem) -> pd.DataFrame:
    """Read the target columns of the training table as text; missing values stay missing."""
    table = pd.read_csv(
        files.train,
        usecols=lambda name: name.strip() in problem.targets,
        dtype=str,
        keep_default_na=False,
        na_values=[""],
        encoding="utf-8-sig",
    )
    table.columns = table.columns.str.strip()
    return table


def _to_task(task: Published, known: Mapping[str, Any], texts: PublishedTexts) -> Task:
    files = dict(known["files"])
    table = table_from_meta(known["table"])
    return Task(
        id=task.name,
        prompt=build_prompt(task, table.problem, texts, test_rows=known["test_rows"]),
        reference=files.pop("answers"),
        stratum=task.kind,
        files=files,
        meta=dict(known["table"]),
    )
