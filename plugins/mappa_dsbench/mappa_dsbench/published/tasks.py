"""The task source `dsbench`: the published tasks, from a user's copy of DSBench's data.

Tables stay where they are, however large. What takes a walk over them (labels, ranges, anchors) and what they lack
(ids, a sample submission) is kept in a folder of its own, under the sizes and times of the files that it was made of.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd

from mappa_core import Split, Task, TaskError, ToolError
from mappa_dsbench.grading.grade import anchors_of
from mappa_dsbench.grading.truth import read_truth
from mappa_dsbench.options import PublishedOptions
from mappa_dsbench.places import cache_folder, out_of_reach
from mappa_dsbench.problem import Problem
from mappa_dsbench.published.catalogue import Published, catalogue, published
from mappa_dsbench.published.joining import joined, with_sample
from mappa_dsbench.published.layout import FIRST_ROWS, Checked, TaskFiles, check, find_root, paths_of
from mappa_dsbench.published.loading import problem_of
from mappa_dsbench.published.prepare import find_texts
from mappa_dsbench.published.prompts import Texts, prompt_of, read_texts
from mappa_dsbench.roles import TASK_FILES
from mappa_dsbench.table import Table, described, meta_of, table_of

KEPT = "known.json"
SHOWN = 5


class PublishedTasks:
    """Implements TaskSource.

    Raises:
        TaskError: there is no data, a named task is none of the published ones, or a text cannot be read.
        ConfigError: the data lies where programs of agents can read.
    """

    def __init__(self, options: PublishedOptions) -> None:
        self._data = out_of_reach(Path(options.data).expanduser().absolute(), "tasks.options.data")
        self._root = find_root(self._data)
        self._folder = cache_folder(options.folder)
        self._texts = _texts(options, self._data, self._root)
        self._all = options.tasks is None
        names = options.tasks if options.tasks is not None else list(catalogue())
        self._chosen = [published(name) for name in names]

    def load(self, split: Split) -> Sequence[Task]:
        found: list[Task] = []
        faults: list[str] = []
        for task in self._chosen:
            if task.split == split:
                self._add(task, found, faults)
        if faults:
            more = f"\n… and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
            raise TaskError(
                f"{len(faults)} published tasks cannot be used:\n" + "\n".join(faults[:SHOWN]) + more + "\n"
                f"`mappa dsbench prepare {self._data}` checks all of them; tasks.options.tasks names those to be used"
            )
        return tuple(found)

    def _add(self, task: Published, found: list[Task], faults: list[str]) -> None:
        place = self._folder / "published" / f"{task.name}-{_stamp(self._root, task)}"
        try:
            known = _kept(place)
            if known is None:
                checked = check(self._root, task)
                if self._all and task.baseline is None and checked.absent:
                    return  # DSBench's archive does not hold it.
                known = _find_out(checked, place)
        except (TaskError, ToolError) as error:
            faults.append(f"{task.name}: {error}")
        else:
            found.append(_task(task, known, self._texts))


def _texts(options: PublishedOptions, data: Path, root: Path) -> Texts:
    if options.texts is None:
        return find_texts(data, root)
    return read_texts([Path(path).expanduser() for path in options.texts])


def _stamp(root: Path, task: Published) -> str:
    """16 hexadecimal digits that change when a file of the task does, or what is known of the task."""
    parts: list[object] = [task]
    for path in paths_of(root, task):
        try:
            status = path.stat()
        except OSError:
            parts.append((str(path), "not there"))
        else:
            parts.append((str(path), status.st_size, status.st_mtime_ns))
    return sha256(repr(parts).encode()).hexdigest()[:16]


def _kept(place: Path) -> Mapping[str, Any] | None:
    try:
        known: Mapping[str, Any] = json.loads((place / KEPT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TaskError(f"{place / KEPT} cannot be read: {error}; delete the folder {place}") from error
    return known


def _find_out(checked: Checked, place: Path) -> Mapping[str, Any]:
    """Walk over the tables once, and keep what was found, all of it or nothing.

    Raises:
        TaskError: a file is missing or wrong, or nothing can be kept.
        ToolError: the answers are wrong.
    """
    if checked.files is None:
        raise TaskError("; ".join(str(finding) for finding in checked.findings if finding.blocks))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=place.parent) as name:
            aside = Path(name) / place.name
            aside.mkdir()
            files = joined(checked.files, aside)
            problem = problem_of(checked.published, files)
            files = with_sample(files, problem, aside)
            for path in aside.iterdir():  # Programs of agents may run as another user.
                path.chmod(0o600 if path == files.answers else 0o644)
            known = _known(checked, files, problem, aside, place)
            (aside / KEPT).write_text(json.dumps(known), encoding="utf-8")
            _settle(aside, place)
    except OSError as error:
        raise TaskError(f"{place} cannot be written: {error.strerror}") from error
    return known


def _known(checked: Checked, files: TaskFiles, problem: Problem, aside: Path, place: Path) -> Mapping[str, Any]:
    shown = (files.train, files.test, files.sample or place)
    paths = [place / path.name if path.parent == aside else path for path in (*shown, files.answers)]
    return {
        "files": dict(zip((*TASK_FILES, "answers"), map(str, paths), strict=True)),
        "test_rows": files.test_rows,
        "table": meta_of(_table(checked, files, problem)),
    }


def _settle(aside: Path, place: Path) -> None:
    try:
        aside.rename(place)
    except OSError:
        if not (place / KEPT).is_file():  # Somebody else found out the same at the same time.
            raise


def _table(checked: Checked, files: TaskFiles, problem: Problem) -> Table:
    task = checked.published
    train, test = (pd.read_csv(path, nrows=FIRST_ROWS, encoding="utf-8-sig") for path in (files.train, files.test))
    train.columns, test.columns = (frame.columns.str.strip() for frame in (train, test))
    features = [column for column in test.columns if column != problem.id_column]
    missing, categorical = described(pd.concat([train.filter(items=features), test[features]]))
    counted = any(finding.reason == "row_count" for finding in checked.findings)
    bounds = (task.baseline, task.perfect)
    return Table(
        problem=problem,
        anchors=anchors_of(read_truth(files.answers, problem), _targets(files, problem)),
        features=tuple(features),
        missing=missing,
        categorical=categorical,
        published=None if counted or bounds[0] is None or bounds[1] is None else (bounds[0], bounds[1]),
    )


def _targets(files: TaskFiles, problem: Problem) -> pd.DataFrame:
    """The target columns of the training table as text; what is missing in them is missing."""
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


def _task(task: Published, known: Mapping[str, Any], texts: Texts) -> Task:
    files = dict(known["files"])
    table = table_of(known["table"])
    return Task(
        id=task.name,
        prompt=prompt_of(task, table.problem, texts, test_rows=known["test_rows"]),
        reference=files.pop("answers"),
        stratum=task.kind,
        files=files,
        meta=dict(known["table"]),
    )
