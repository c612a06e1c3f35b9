"""Finds the files of a published task on disk, and checks them.

    ROOT/data_resplit/TASK/{train.csv,test.csv,SAMPLE.csv}
    ROOT/answers/TASK/test_answer.csv

Of the training table only the first rows are read, of the others only the id column.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pandas as pd

from mappa_core import TaskError
from mappa_dsbench.grading.cells import choose_id_form
from mappa_dsbench.published.catalogue import Published

KNOWN_ROOTS = (".", "data", "DSBench/data", "data/DSBench/data", "data_modeling/data")
TABLES_FOLDER = "data_resplit"
ANSWERS_FOLDER = "answers"
CHUNK_ROWS = 200_000
FIRST_ROWS = 1_000
MAX_LISTED_NAMES = 5

FindingReason = Literal[
    "missing", "unreadable", "empty", "columns", "truth_shown", "no_id", "duplicate_ids", "row_count", "id_mismatch",
    "several",
]  # fmt: skip
"""What is wrong with a file.

`missing`; `unreadable` (not a UTF-8 CSV with a header of distinct names); `empty` (a header without rows); `columns`
(a target is missing, or the sample file has another header); `truth_shown` (the test table holds a target); `no_id`;
`duplicate_ids`; `row_count` (test table and answers differ, or are not of the known length); `id_mismatch` (test
table and answers have other ids); `several` (more than one file may be the sample).
"""
IdSource = Literal["joined", "row_order", "row_number"]
"""Where the ids of the answers come from: their own column; the test table's ids, row by row; or row numbers, as
neither file has ids (`joining`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault of a file; `blocks` where the task is unusable because of it."""

    reason: FindingReason
    file: str
    detail: str
    blocks: bool = True

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """The files of one usable task. `sample` is None where no sample submission has the right form."""

    train: Path
    test: Path
    answers: Path
    sample: Path | None
    id_column: str
    ids: IdSource
    test_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTask:
    """The result of checking one task: its files, None where a finding blocks."""

    published: Published
    files: TaskFiles | None
    findings: tuple[Finding, ...]

    @property
    def absent(self) -> bool:
        """Whether no file of the task exists."""
        return {finding.file for finding in self.findings if finding.reason == "missing" and finding.blocks} == {
            "train.csv",
            "test.csv",
            "test_answer.csv",
        }


class _BlockingFinding(Exception):
    """A finding that ends the check of a task."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def find_root(folder: Path) -> Path:
    """Find the folder that holds `data_resplit` and `answers`, at or below the one that the user named.

    Raises:
        TaskError: there is none.
    """
    for below in KNOWN_ROOTS:
        root = folder / below
        if (root / TABLES_FOLDER).is_dir() or (root / ANSWERS_FOLDER).is_dir():
            return root
    raise TaskError(
        f"{folder}: no folder {TABLES_FOLDER} or {ANSWERS_FOLDER} in it or in {', '.join(KNOWN_ROOTS[1:])} below it. "
        "Name the folder into which DSBench's data archive was unpacked"
    )


def check_task(root: Path, published: Published) -> CheckedTask:
    """Find the files of a task and check them against each other and against the known facts."""
    train, test, answers, *_ = task_paths(root, published)
    findings = [
        Finding(reason="missing", file=path.name, detail=f"{path} is no file")
        for path in (train, test, answers)
        if not path.is_file()
    ]
    if findings:
        return CheckedTask(published=published, files=None, findings=tuple(findings))
    sample = _find_sample(root, published, findings)
    try:
        files = _check_files(published, train, test, answers, sample, findings)
    except _BlockingFinding as blocked:
        return CheckedTask(published=published, files=None, findings=(*findings, blocked.finding))
    usable = not any(finding.blocks for finding in findings)
    return CheckedTask(published=published, files=files if usable else None, findings=tuple(findings))


def task_paths(root: Path, published: Published) -> tuple[Path, ...]:
    """Return the paths of training table, test table and answers, and of candidates for the sample submission."""
    tables = root / TABLES_FOLDER / published.name
    answers = root / ANSWERS_FOLDER / published.name / "test_answer.csv"
    others = sorted(path for path in tables.glob("*.csv") if path.name not in ("train.csv", "test.csv"))
    return tables / "train.csv", tables / "test.csv", answers, *others


def _find_sample(root: Path, published: Published, findings: list[Finding]) -> Path | None:
    _, test, _, *others = task_paths(root, published)
    if len(others) == 1:
        return others[0]
    if others:
        names = ", ".join(path.name for path in others)
        findings.append(Finding(reason="several", file=names, detail="which is the sample?", blocks=False))
    else:
        findings.append(Finding(reason="missing", file="sample", detail=f"none in {test.parent}", blocks=False))
    return None


def _check_files(
    published: Published, train: Path, test: Path, answers: Path, sample: Path | None, findings: list[Finding]
) -> TaskFiles:
    headers = {path.name: read_header(path) for path in (train, test, answers)}
    findings.extend(_column_findings(published, headers))
    _check_not_empty(train)
    id_column, sample = _choose_id_column(published, headers, sample, findings)
    ids, rows = _check_ids(id_column, test, answers, headers, findings)
    if published.test_rows is not None and rows != published.test_rows:
        detail = f"{rows} rows, DSBench's own has {published.test_rows}: its baseline does not hold here"
        findings.append(Finding(reason="row_count", file="test.csv", detail=detail, blocks=False))
    return TaskFiles(
        train=train, test=test, answers=answers, sample=sample, id_column=id_column, ids=ids, test_rows=rows
    )


def read_header(path: Path) -> tuple[str, ...]:
    """Read the stripped column names. Raises _BlockingFinding where the first line is no header of distinct names."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = tuple(name.strip() for name in next(csv.reader(file), ()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable_finding(path, error) from error
    if not any(names):
        raise _BlockingFinding(Finding(reason="unreadable", file=path.name, detail="no header"))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise _BlockingFinding(
            Finding(reason="unreadable", file=path.name, detail=f"columns named twice: {_shorten(twice)}")
        )
    return names


def _unreadable_finding(path: Path, error: Exception) -> _BlockingFinding:
    return _BlockingFinding(Finding(reason="unreadable", file=path.name, detail=f"{type(error).__name__}: {error}"))


def _column_findings(published: Published, headers: dict[str, tuple[str, ...]]) -> Iterator[Finding]:
    for name in ("train.csv", "test_answer.csv"):
        missing = [target for target in published.targets if target not in headers[name]]
        if missing:
            yield Finding(reason="columns", file=name, detail=f"no column {_shorten(missing)}")
    shown = [target for target in published.targets if target in headers["test.csv"]]
    if shown:
        yield Finding(reason="truth_shown", file="test.csv", detail=f"holds {_shorten(shown)}")


def _check_not_empty(train: Path) -> None:
    try:
        table = pd.read_csv(train, nrows=FIRST_ROWS, dtype=str, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, pd.errors.ParserError) as error:
        raise _unreadable_finding(train, error) from error
    if table.empty:
        raise _BlockingFinding(Finding(reason="empty", file=train.name, detail="no rows"))


def _choose_id_column(
    published: Published, headers: dict[str, tuple[str, ...]], sample: Path | None, findings: list[Finding]
) -> tuple[str, Path | None]:
    """Choose the id column's name from the sample, else the test table, else the catalogue; return it and the sample,
    where that fits."""
    expected = {(name, *published.targets) for name in published.ids}
    if sample is not None:
        try:
            given = read_header(sample)
        except _BlockingFinding as blocked:
            findings.append(replace(blocked.finding, blocks=False))
        else:
            if given in expected:
                return given[0], sample
            detail = (
                f"{_shorten(list(given))} instead of {published.id_column} and the {len(published.targets)} targets"
            )
            findings.append(Finding(reason="columns", file=sample.name, detail=detail, blocks=False))
    named = [name for name in published.ids if name in headers["test.csv"]]
    return (named[0] if named else published.id_column), None


def _check_ids(
    id_column: str, test: Path, answers: Path, headers: dict[str, tuple[str, ...]], findings: list[Finding]
) -> tuple[IdSource, int]:
    in_test, in_answers = (id_column in headers[path.name] for path in (test, answers))
    shown = _read_column(test, headers[test.name], id_column if in_test else headers[test.name][0])
    true = _read_column(answers, headers[answers.name], id_column if in_answers else headers[answers.name][0])
    if len(shown) != len(true):
        detail = f"{len(true)} rows, but test.csv has {len(shown)}"
        findings.append(Finding(reason="row_count", file=answers.name, detail=detail))
    for path, there in ((test, in_test), (answers, in_answers)):
        if not there:
            detail = f"no column {id_column!r}; row order decides"
            findings.append(Finding(reason="no_id", file=path.name, detail=detail, blocks=False))
    if not in_test:
        return "row_number", len(shown)
    form = choose_id_form(shown)
    shown, true = list(map(form, shown)), list(map(form, true))
    if not in_answers:
        findings.extend(_duplicate_findings(test, shown))
        return "row_order", len(shown)
    findings.extend((*_duplicate_findings(test, shown), *_duplicate_findings(answers, true)))
    if len(shown) == len(true) and set(shown) != set(true):
        others = sorted(set(true) - set(shown))
        detail = f"{len(others)} ids that test.csv does not have: {_shorten(others)}"
        findings.append(Finding(reason="id_mismatch", file=answers.name, detail=detail))
    return "joined", len(shown)


def _duplicate_findings(path: Path, ids: list[str]) -> Iterator[Finding]:
    counts = Counter(ids)
    if len(counts) < len(ids):
        twice = sorted(value for value, count in counts.items() if count > 1)
        yield Finding(reason="duplicate_ids", file=path.name, detail=_shorten(twice))


def _read_column(path: Path, names: tuple[str, ...], name: str) -> list[str]:
    """Read one column as text, in chunks."""
    values: list[str] = []
    try:
        pieces = pd.read_csv(
            path,
            usecols=[names.index(name)],
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=len(names) > 1,
            chunksize=CHUNK_ROWS,
            encoding="utf-8-sig",
        )
        with pieces:
            for piece in pieces:
                values.extend(piece.iloc[:, 0])
    except (OSError, UnicodeDecodeError, pd.errors.ParserError) as error:
        raise _unreadable_finding(path, error) from error
    if not values:
        raise _BlockingFinding(Finding(reason="empty", file=path.name, detail="no rows"))
    return values


def _shorten(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:MAX_LISTED_NAMES]))
    return shown if len(names) <= MAX_LISTED_NAMES else f"{shown} and {len(names) - MAX_LISTED_NAMES} more"
