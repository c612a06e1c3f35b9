"""Facts about the 72 published tasks, and every correction of the published facts.

`tasks.csv` holds one line per task, `corrections.toml` one entry per disagreement. Metric, direction, baseline and
perfect value are those of DSBench's own scripts and results; column names come from its scripts and from the
competitions. The kind follows from the metric.
"""

from __future__ import annotations

import csv
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from mappa_core import TaskError
from mappa_dsbench.problem import Problem, ProblemKind

PublishedSplit = Literal["train", "eval"]
Better = Literal["higher", "lower"]
Needs = Literal["tabular", "dates", "nested", "text", "sequence"]
"""What a solution must handle besides plain columns: dates, nested JSON, free text, or the order of millions of
rows."""
Size = Literal["small", "medium", "large", "heavy", "unknown"]
Field = Literal["data_type", "metric", "rows_graded", "targets", "id", "prompt", "score", "rows", "split"]

OTHER_IDS: Mapping[str, tuple[str, ...]] = {"playground-series-s3e3": ("id",)}
"""Further possible names of the id column, where the sources disagree."""
TARGET_SEPARATOR = ";"
TASK_COUNT = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """One disagreement between the published and the true facts.

    `lines` and `phrases` mark errors in the published text: a line that contains one of `lines` is left out, `phrases`
    are cut out of their lines. `text` replaces the whole published text.
    """

    task: str
    field: Field
    published: str
    true: str
    why: str
    lines: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published task, without its data.

    `baseline` and `perfect` are DSBench's figures in units of `metric`, None where it has none. `size_mb` is the size
    of the competition's original files in MB, `test_rows` the number of test rows where it is known.
    """

    name: str
    split: PublishedSplit
    metric: str
    better: Better
    kind: ProblemKind
    id_column: str
    targets: tuple[str, ...]
    baseline: float | None
    perfect: float | None
    needs: Needs
    size_mb: float | None
    year: int
    test_rows: int | None
    corrections: tuple[Correction, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Possible names of the id column, the likeliest first."""
        return (self.id_column, *OTHER_IDS.get(self.name, ()))

    @property
    def size(self) -> Size:
        """The size class; `heavy` is above 500 MB, too much for a laptop."""
        if self.size_mb is None:
            return "unknown"
        bounds: tuple[tuple[float, Size], ...] = ((5, "small"), (100, "medium"), (500, "large"))
        return next((size for bound, size in bounds if self.size_mb < bound), "heavy")

    def problem(
        self,
        *,
        id_column: str,
        labels: tuple[str, ...] | None = None,
        range: tuple[float, float] | None = None,  # noqa: A002
    ) -> Problem:
        """Build the problem, with the facts that only the training table holds."""
        if id_column not in self.ids:
            raise ValueError(f"{self.name}: {id_column!r} is no name of its id column ({', '.join(self.ids)})")
        return Problem(
            name=self.name,
            kind=self.kind,
            metric=self.metric,
            id_column=id_column,
            targets=self.targets,
            labels=labels,
            range=range,
        )


@cache
def load_corrections() -> tuple[Correction, ...]:
    """Load all corrections, in the order of their file."""
    entries = tomllib.loads(_read("corrections.toml"))["correction"]
    return tuple(_parse_correction(entry) for entry in entries)


def _parse_correction(entry: Mapping[str, Any]) -> Correction:
    if entry["field"] not in get_args(Field):
        raise ValueError(f"corrections.toml: unknown field {entry['field']!r} of {entry['task']}")
    marks = {key: tuple(entry[key]) for key in ("lines", "phrases") if key in entry}
    return Correction(**{**entry, **marks})


@cache
def load_catalogue() -> Mapping[str, Published]:
    """Load all 72 tasks, by name.

    Raises:
        ValueError: the two files are inconsistent.
    """
    tasks = [_parse_published(row) for row in csv.DictReader(_read("tasks.csv").splitlines())]
    found = {task.name: task for task in tasks}
    if len(tasks) != TASK_COUNT or len(found) != TASK_COUNT:
        raise ValueError(f"tasks.csv: {len(tasks)} rows with {len(found)} names, expected {TASK_COUNT} of each")
    unknown = sorted({correction.task for correction in load_corrections()} - set(found))
    if unknown:
        raise ValueError(f"corrections.toml: no such task: {', '.join(unknown)}")
    return found


def find_published(name: str) -> Published:
    """Return the task of that name.

    Raises:
        TaskError: there is none.
    """
    try:
        return load_catalogue()[name]
    except KeyError:
        raise TaskError(
            f"{name!r} is none of the {TASK_COUNT} published tasks; `mappa dsbench prepare` lists them"
        ) from None


def _parse_published(row: Mapping[str, str]) -> Published:
    task = Published(
        name=row["name"],
        split=_one_of(row, "split", PublishedSplit),
        metric=row["metric"],
        better=_one_of(row, "better", Better),
        kind=_one_of(row, "kind", ProblemKind),
        id_column=row["id"],
        targets=tuple(row["targets"].split(TARGET_SEPARATOR)),
        baseline=float(row["baseline"]) if row["baseline"] else None,
        perfect=float(row["perfect"]) if row["perfect"] else None,
        needs=_one_of(row, "needs", Needs),
        size_mb=float(row["size_mb"]) if row["size_mb"] else None,
        year=int(row["year"]),
        test_rows=int(row["test_rows"]) if row["test_rows"] else None,
        corrections=tuple(correction for correction in load_corrections() if correction.task == row["name"]),
    )
    _check(task)
    return task


def _one_of(row: Mapping[str, str], column: str, allowed: Any) -> Any:
    if row[column] not in get_args(allowed):
        raise ValueError(f"tasks.csv: {row['name']}: {column} is {row[column]!r}, not one of {get_args(allowed)}")
    return row[column]


def _check(task: Published) -> None:
    columns = Counter([*task.ids, *task.targets])
    if "" in columns or max(columns.values()) > 1:
        raise ValueError(f"tasks.csv: {task.name}: a column is empty or named twice")
    if (task.baseline is None) != (task.perfect is None):
        raise ValueError(f"tasks.csv: {task.name}: a baseline needs a perfect value and the other way round")
    if task.baseline is not None and task.perfect is not None:
        implied = "higher" if task.perfect > task.baseline else "lower"
        if task.better != implied:
            raise ValueError(f"tasks.csv: {task.name}: {task.better} is better, but its figures say {implied}")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
