"""The published data of MathChat: the files, their identification by content, and the training subset."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mappa_core import TaskError
from mappa_core.data import Rows
from mappa_mathchat.latex import normalize_spelling, parse_number

SUBSET_SEED = 42
SUBSET_SIZE = 512
PROMPT_COLUMNS = ("prompt", "problem", "question")
"""Column names of the problem's text in copies of these files, in any case."""


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One published file: its name without suffix, its number of problems and the hash of its content."""

    name: str
    count: int
    sha256: str
    title: str


AIME = PublishedFile(
    "AIME_1983_2024",
    933,
    "68ab5a6f69f661d3d80e6b3fc4701a41f62d0c4e65f760e0f6badd3cce989096",
    "AIME 1983-2024",
)
AMC = PublishedFile("amc", 117, "cce0530e60793e1f9c94a02ae0cdf763411101fa760f9b66a67cf6120446c800", "AMC")
AIME_2025 = PublishedFile(
    "aime_2025",
    30,
    "f12ab6352754cad896718b4abd1ec5af7d0dfcd6e1d04ebc017ddb7729fa7e59",
    "AIME 2025",
)
PUBLISHED_FILES = (AIME, AMC, AIME_2025)


@dataclass(frozen=True, slots=True)
class PublishedProblem:
    """One row: its id where it has one, the problem's text and the label as published (`080`, `142.0`)."""

    id: str | None
    prompt: str
    answer: str

    def as_row(self, unnamed: str) -> dict[str, str]:
        return {"id": self.id or unnamed, "prompt": self.prompt, "answer": self.answer}


def parse_problems(rows: Rows) -> tuple[PublishedProblem, ...]:
    """Parse rows into problems. Raises TaskError, naming the row, where a column is missing or of the wrong type."""
    problems = []
    for index, row in enumerate(rows.rows):
        try:
            problems.append(_problem(row))
        except _BadRow as error:
            raise TaskError(f"{rows.place(index)}: {error}") from None
    return tuple(problems)


class _BadRow(Exception):
    """A malformed row; the caller adds its place in the file."""


def _problem(row: Mapping[str, Any]) -> PublishedProblem:
    cells = {str(column).casefold(): value for column, value in row.items()}
    prompt = next((cells[column] for column in PROMPT_COLUMNS if column in cells), None)
    if not isinstance(prompt, str) or not prompt.strip():
        raise _BadRow(f"no problem text in a column {' or '.join(PROMPT_COLUMNS)}")
    answer = cells.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise _BadRow("no text or number in the column answer")
    identifier = cells.get("id")
    return PublishedProblem(None if identifier is None else str(identifier), prompt, str(answer).strip())


def content_sha256(problems: Iterable[PublishedProblem]) -> str:
    """Compute the SHA-256 of the problems in order, independent of the file format: white space is collapsed, numbers
    count by value (`023` is `23`), ids do not count."""
    digest = hashlib.sha256()
    for problem in problems:
        value = parse_number(normalize_spelling(problem.answer))
        pair = [" ".join(problem.prompt.split()), problem.answer if value is None else str(value)]
        digest.update(json.dumps(pair, ensure_ascii=False).encode("utf-8") + b"\n")
    return digest.hexdigest()


def select_training_subset(problems: Sequence[PublishedProblem]) -> tuple[PublishedProblem, ...]:
    """Select the published training set: 512 of the 933 problems, drawn without replacement by numpy's legacy
    generator with seed 42, in the order of the file. Raises TaskError where there are too few."""
    if len(problems) < SUBSET_SIZE:
        raise TaskError(f"the training set takes {SUBSET_SIZE} problems of {AIME.title}; there are {len(problems)}")
    drawn = np.random.RandomState(SUBSET_SEED).choice(len(problems), SUBSET_SIZE, replace=False)
    return tuple(problems[index] for index in sorted(drawn))


def find_overlap(train: Iterable[Mapping[str, str]], held_out: Iterable[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Find problems in both sets; return their ids as pairs (training, held out)."""
    by_text = {_comparison_text(row["prompt"]): row["id"] for row in train}
    return [(by_text[text], row["id"]) for row in held_out if (text := _comparison_text(row["prompt"])) in by_text]


def _comparison_text(prompt: str) -> str:
    """Normalise the white space and case of a problem's text, for comparison."""
    return " ".join(prompt.split()).casefold()
