"""Where the files of a published task stand on disk, and whether they are what they should be.

    ROOT/data_resplit/TASK/{train.csv,test.csv,SAMPLE.csv}
    ROOT/answers/TASK/test_answer.csv

Of the training table only the beginning is read, of the others only the column of ids.
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
from mappa_dsbench.grading.cells import id_form
from mappa_dsbench.published.catalogue import Published

ROOTS = (".", "data", "DSBench/data", "data/DSBench/data", "data_modeling/data")
TABLES = "data_resplit"
ANSWERS = "answers"
CHUNK_ROWS = 200_000
FIRST_ROWS = 1_000
SHOWN = 5

Reason = Literal[
    "missing", "unreadable", "empty", "columns", "truth_shown", "no_id", "duplicate_ids", "row_count", "id_mismatch",
    "several",
]  # fmt: skip
"""What is wrong with a file.

`missing`; `unreadable` (not a UTF-8 CSV with a header of distinct names); `empty` (a header without rows); `columns`
(a target is missing, or the sample file has another header); `truth_shown` (the test table holds a target); `no_id`;
`duplicate_ids`; `row_count` (test table and answers differ, or are not of the known length); `id_mismatch` (test
table and answers have other ids); `several` (more than one file may be the sample).
"""
Ids = Literal["joined", "row_order", "row_number"]
"""Where the ids of answers come from: their own column; the test table's, row by row; nowhere, so that rows are
to be numbered in the order of both files (`joining`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be; `blocks` where the task cannot be used because of it."""

    reason: Reason
    file: str
    detail: str
    blocks: bool = True

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """The files of one task that may be used. `sample` is None where no sample submission has the right form."""

    train: Path
    test: Path
    answers: Path
    sample: Path | None
    id_column: str
    ids: Ids
    test_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One task as found: its files where they can be used, None where a finding blocks."""

    published: Published
    files: TaskFiles | None
    findings: tuple[Finding, ...]

    @property
    def absent(self) -> bool:
        """Nothing of the task is there."""
        return {finding.file for finding in self.findings if finding.reason == "missing" and finding.blocks} == {
            "train.csv",
            "test.csv",
            "test_answer.csv",
        }


class _Blocked(Exception):
    """A finding after which nothing more can be said about a file."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def find_root(folder: Path) -> Path:
    """The folder that holds `data_resplit` and `answers`, at or below what the user named.

    Raises:
        TaskError: there is none.
    """
    for below in ROOTS:
        root = folder / below
        if (root / TABLES).is_dir() or (root / ANSWERS).is_dir():
            return root
    raise TaskError(
        f"{folder}: no folder {TABLES} or {ANSWERS} in it or in {', '.join(ROOTS[1:])} below it. "
        "Name the folder into which DSBench's data archive was unpacked"
    )


def check(root: Path, published: Published) -> Checked:
    """Find the files of a task and check them against each other and against what is known."""
    train, test, answers, *_ = paths_of(root, published)
    findings = [
        Finding(reason="missing", file=path.name, detail=f"{path} is no file")
        for path in (train, test, answers)
        if not path.is_file()
    ]
    if findings:
        return Checked(published=published, files=None, findings=tuple(findings))
    sample = _sample(root, published, findings)
    try:
        files = _files(published, train, test, answers, sample, findings)
    except _Blocked as blocked:
        return Checked(published=published, files=None, findings=(*findings, blocked.finding))
    usable = not any(finding.blocks for finding in findings)
    return Checked(published=published, files=files if usable else None, findings=tuple(findings))


def paths_of(root: Path, published: Published) -> tuple[Path, ...]:
    """Where training table, test table and answers should be, and what may be the sample submission."""
    tables = root / TABLES / published.name
    answers = root / ANSWERS / published.name / "test_answer.csv"
    others = sorted(path for path in tables.glob("*.csv") if path.name not in ("train.csv", "test.csv"))
    return tables / "train.csv", tables / "test.csv", answers, *others


def _sample(root: Path, published: Published, findings: list[Finding]) -> Path | None:
    _, test, _, *others = paths_of(root, published)
    if len(others) == 1:
        return others[0]
    if others:
        names = ", ".join(path.name for path in others)
        findings.append(Finding(reason="several", file=names, detail="which is the sample?", blocks=False))
    else:
        findings.append(Finding(reason="missing", file="sample", detail=f"none in {test.parent}", blocks=False))
    return None


def _files(
    published: Published, train: Path, test: Path, answers: Path, sample: Path | None, findings: list[Finding]
) -> TaskFiles:
    headers = {path.name: header(path) for path in (train, test, answers)}
    findings.extend(_columns(published, headers))
    _first_rows(train)
    id_column, sample = _id_column(published, headers, sample, findings)
    ids, rows = _ids(id_column, test, answers, headers, findings)
    if published.test_rows is not None and rows != published.test_rows:
        detail = f"{rows} rows, DSBench's own has {published.test_rows}: its baseline does not hold here"
        findings.append(Finding(reason="row_count", file="test.csv", detail=detail, blocks=False))
    return TaskFiles(
        train=train, test=test, answers=answers, sample=sample, id_column=id_column, ids=ids, test_rows=rows
    )


def header(path: Path) -> tuple[str, ...]:
    """Names of the columns, stripped. Raises _Blocked where the first line is no header of distinct names."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = tuple(name.strip() for name in next(csv.reader(file), ()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error) from error
    if not any(names):
        raise _Blocked(Finding(reason="unreadable", file=path.name, detail="no header"))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise _Blocked(Finding(reason="unreadable", file=path.name, detail=f"columns named twice: {_some(twice)}"))
    return names


def _unreadable(path: Path, error: Exception) -> _Blocked:
    return _Blocked(Finding(reason="unreadable", file=path.name, detail=f"{type(error).__name__}: {error}"))


def _columns(published: Published, headers: dict[str, tuple[str, ...]]) -> Iterator[Finding]:
    for name in ("train.csv", "test_answer.csv"):
        missing = [target for target in published.targets if target not in headers[name]]
        if missing:
            yield Finding(reason="columns", file=name, detail=f"no column {_some(missing)}")
    shown = [target for target in published.targets if target in headers["test.csv"]]
    if shown:
        yield Finding(reason="truth_shown", file="test.csv", detail=f"holds {_some(shown)}")


def _first_rows(train: Path) -> None:
    try:
        table = pd.read_csv(train, nrows=FIRST_ROWS, dtype=str, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, pd.errors.ParserError) as error:
        raise _unreadable(train, error) from error
    if table.empty:
        raise _Blocked(Finding(reason="empty", file=train.name, detail="no rows"))


def _id_column(
    published: Published, headers: dict[str, tuple[str, ...]], sample: Path | None, findings: list[Finding]
) -> tuple[str, Path | None]:
    """The name that the sample gives it, else the test table, else the likeliest; and the sample where it fits."""
    wanted = {(name, *published.targets) for name in published.ids}
    if sample is not None:
        try:
            given = header(sample)
        except _Blocked as blocked:
            findings.append(replace(blocked.finding, blocks=False))
        else:
            if given in wanted:
                return given[0], sample
            detail = f"{_some(list(given))} instead of {published.id_column} and the {len(published.targets)} targets"
            findings.append(Finding(reason="columns", file=sample.name, detail=detail, blocks=False))
    named = [name for name in published.ids if name in headers["test.csv"]]
    return (named[0] if named else published.id_column), None


def _ids(
    id_column: str, test: Path, answers: Path, headers: dict[str, tuple[str, ...]], findings: list[Finding]
) -> tuple[Ids, int]:
    in_test, in_answers = (id_column in headers[path.name] for path in (test, answers))
    shown = _column(test, headers[test.name], id_column if in_test else headers[test.name][0])
    true = _column(answers, headers[answers.name], id_column if in_answers else headers[answers.name][0])
    if len(shown) != len(true):
        detail = f"{len(true)} rows, but test.csv has {len(shown)}"
        findings.append(Finding(reason="row_count", file=answers.name, detail=detail))
    for path, there in ((test, in_test), (answers, in_answers)):
        if not there:
            detail = f"no column {id_column!r}; row order decides"
            findings.append(Finding(reason="no_id", file=path.name, detail=detail, blocks=False))
    if not in_test:
        return "row_number", len(shown)
    form = id_form(shown)
    shown, true = list(map(form, shown)), list(map(form, true))
    if not in_answers:
        findings.extend(_twice(test, shown))
        return "row_order", len(shown)
    findings.extend((*_twice(test, shown), *_twice(answers, true)))
    if len(shown) == len(true) and set(shown) != set(true):
        others = sorted(set(true) - set(shown))
        detail = f"{len(others)} ids that test.csv does not have: {_some(others)}"
        findings.append(Finding(reason="id_mismatch", file=answers.name, detail=detail))
    return "joined", len(shown)


def _twice(path: Path, ids: list[str]) -> Iterator[Finding]:
    counts = Counter(ids)
    if len(counts) < len(ids):
        twice = sorted(value for value, count in counts.items() if count > 1)
        yield Finding(reason="duplicate_ids", file=path.name, detail=_some(twice))


def _column(path: Path, names: tuple[str, ...], wanted: str) -> list[str]:
    """One column as text, read in pieces."""
    values: list[str] = []
    try:
        pieces = pd.read_csv(
            path,
            usecols=[names.index(wanted)],
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
        raise _unreadable(path, error) from error
    if not values:
        raise _Blocked(Finding(reason="empty", file=path.name, detail="no rows"))
    return values


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:SHOWN]))
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
