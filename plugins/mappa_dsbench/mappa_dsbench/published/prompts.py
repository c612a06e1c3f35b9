"""What a team is told of a published task: our facts first, then the user's copy of the published text, corrected.

The published texts are not shipped. They are read from the user's files: JSON Lines with a `prompt` and
`metadata.task_id` in each row, or one JSON object that maps a task to its cleaned text. Evaluation, format and files
are always told in our own words, from the facts: what the texts say of them is where they are wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mappa_core import TaskError
from mappa_dsbench.asking import question
from mappa_dsbench.problem import Problem
from mappa_dsbench.published.catalogue import Published

Section = Literal["Task", "Evaluation", "Submission Format", "Dataset", "Data Fields", "Files"]
KEPT: tuple[Section, ...] = ("Task", "Dataset", "Data Fields")
SECTION = re.compile(r"(Task|Evaluation|Submission Format|Dataset|Data Fields|Files):\s*(.*)")
ROW_COUNT = re.compile(
    r"(?<![\w.])\d[\d,]*\s*k?\s+(?:[a-z]+\s+){0,2}(?:rows|entries|observations|samples|pairs)\b", re.IGNORECASE
)
"""A number of rows: of the competition's files, not of these."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The user's copies: task name to text. `cleaned` is short and in sections, `raw` is the competition's own."""

    cleaned: Mapping[str, str] = field(default_factory=dict)
    raw: Mapping[str, str] = field(default_factory=dict)


def read_texts(paths: Sequence[Path]) -> Texts:
    """Read files of both forms, told apart by content.

    Raises:
        TaskError: a file is of neither form, or two of them tell of the same task.
    """
    cleaned: dict[str, str] = {}
    raw: dict[str, str] = {}
    for path in paths:
        try:
            content = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"{path}: cannot be read as text: {error}") from error
        found = _cleaned(path, content)
        if found is not None:
            _add(path, cleaned, found)
        else:
            _add(path, raw, _raw(path, content))
    return Texts(cleaned, raw)


def _add(path: Path, known: dict[str, str], new: Mapping[str, str]) -> None:
    twice = sorted(set(known) & set(new))
    if twice:
        raise TaskError(f"{path}: tells of {twice[0]}, as another file does; name one of them")
    known.update(new)


def _cleaned(path: Path, content: str) -> dict[str, str] | None:
    """None where the content is not one JSON object of tasks."""
    try:
        found = json.loads(content)
    except json.JSONDecodeError:
        return None
    if not isinstance(found, dict) or "metadata" in found:
        return None
    for name, entry in found.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("cleaned_prompt"), str):
            raise TaskError(f"{path}: {name}: no text under cleaned_prompt")
    return {name: entry["cleaned_prompt"] for name, entry in found.items()}


def _raw(path: Path, content: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        name, text = _row(f"{path}:{number}", line)
        if name in texts:
            raise TaskError(f"{path}:{number}: {name} a second time")
        texts[name] = text
    return texts


def _row(place: str, line: str) -> tuple[str, str]:
    """Task and text."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise TaskError(f"{place}: no JSON: {error}") from error
    metadata = row.get("metadata") if isinstance(row, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("task_id"), str):
        raise TaskError(f"{place}: no text under metadata.task_id")
    if not isinstance(row.get("prompt"), str):
        raise TaskError(f"{place}: no text under prompt")
    return metadata["task_id"], row["prompt"]


def prompt_of(published: Published, problem: Problem, texts: Texts, *, test_rows: int) -> str:
    """The text that a team is given. Without a published text for the task it holds our facts alone."""
    parts = [question(problem, test_rows=test_rows)]
    about = description(published, texts)
    if about:
        parts.append(f"About the data (where it disagrees with the above, the above holds):\n{about}")
    return "\n\n".join(parts) + "\n"


def description(published: Published, texts: Texts) -> str:
    """The user's text about a task with all corrections applied; empty where there is none."""
    own = [correction.text for correction in published.corrections if correction.text is not None]
    if own:
        return "\n".join(own)
    if published.name in texts.cleaned:
        lines = _kept_sections(texts.cleaned[published.name])
    else:
        lines = texts.raw.get(published.name, "").splitlines()
    return "\n".join(_corrected(published, lines)).strip()


def _kept_sections(text: str) -> list[str]:
    kept: list[str] = []
    within = True
    for line in text.splitlines():
        match = SECTION.fullmatch(line)
        if match:
            within = match[1] in KEPT
            line = match[2] if match[1] == "Task" else line
        if within:
            kept.append(line)
    return kept


def _corrected(published: Published, lines: Sequence[str]) -> list[str]:
    phrases = [phrase for correction in published.corrections for phrase in correction.phrases]
    marks = [mark for correction in published.corrections for mark in correction.lines]
    kept = []
    for line in lines:
        for phrase in phrases:
            line = line.replace(phrase, "")
        if not any(mark in line for mark in marks) and not ROW_COUNT.search(line):
            kept.append(line)
    return kept
