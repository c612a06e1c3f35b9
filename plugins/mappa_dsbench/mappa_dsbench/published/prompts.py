"""Builds the prompt of a published task: our facts first, then the user's copy of the published text, corrected.

The published texts are not shipped. They are read from the user's files: JSON Lines with a `prompt` and
`metadata.task_id` in each row, or one JSON object that maps a task to its cleaned text. Evaluation, format and files
are always described from the facts, because the texts have errors there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mappa_core import TaskError
from mappa_dsbench.problem import Problem
from mappa_dsbench.published.catalogue import Published
from mappa_dsbench.task_prompt import describe_task

Section = Literal["Task", "Evaluation", "Submission Format", "Dataset", "Data Fields", "Files"]
KEPT_SECTIONS: tuple[Section, ...] = ("Task", "Dataset", "Data Fields")
SECTION_LINE = re.compile(r"(Task|Evaluation|Submission Format|Dataset|Data Fields|Files):\s*(.*)")
ROW_COUNT = re.compile(
    r"(?<![\w.])\d[\d,]*\s*k?\s+(?:[a-z]+\s+){0,2}(?:rows|entries|observations|samples|pairs)\b", re.IGNORECASE
)
"""Matches a number of rows, which is that of the competition's files and not of ours."""


@dataclass(frozen=True, slots=True)
class PublishedTexts:
    """The user's copies: task name to text. `cleaned` is short and has sections, `raw` is the competition's own."""

    cleaned: Mapping[str, str] = field(default_factory=dict)
    raw: Mapping[str, str] = field(default_factory=dict)


def read_texts(paths: Sequence[Path]) -> PublishedTexts:
    """Read files of both formats, detected by content.

    Raises:
        TaskError: a file has neither format, or two of them describe the same task.
    """
    cleaned: dict[str, str] = {}
    raw: dict[str, str] = {}
    for path in paths:
        try:
            content = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"{path}: cannot be read as text: {error}") from error
        texts = _parse_cleaned(path, content)
        if texts is not None:
            _add_texts(path, cleaned, texts)
        else:
            _add_texts(path, raw, _parse_raw(path, content))
    return PublishedTexts(cleaned, raw)


def _add_texts(path: Path, known: dict[str, str], new: Mapping[str, str]) -> None:
    twice = sorted(set(known) & set(new))
    if twice:
        raise TaskError(f"{path}: tells of {twice[0]}, as another file does; name one of them")
    known.update(new)


def _parse_cleaned(path: Path, content: str) -> dict[str, str] | None:
    """Parse one JSON object of tasks; None where the content is something else."""
    try:
        texts = json.loads(content)
    except json.JSONDecodeError:
        return None
    if not isinstance(texts, dict) or "metadata" in texts:
        return None
    for name, entry in texts.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("cleaned_prompt"), str):
            raise TaskError(f"{path}: {name}: no text under cleaned_prompt")
    return {name: entry["cleaned_prompt"] for name, entry in texts.items()}


def _parse_raw(path: Path, content: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        name, text = _parse_row(f"{path}:{number}", line)
        if name in texts:
            raise TaskError(f"{path}:{number}: {name} a second time")
        texts[name] = text
    return texts


def _parse_row(place: str, line: str) -> tuple[str, str]:
    """Parse a row into task and text."""
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


def build_prompt(published: Published, problem: Problem, texts: PublishedTexts, *, test_rows: int) -> str:
    """Build the task prompt. Without a published text for the task it holds our facts alone."""
    parts = [describe_task(problem, test_rows=test_rows)]
    about = corrected_text(published, texts)
    if about:
        parts.append(f"About the data (where it disagrees with the above, the above holds):\n{about}")
    return "\n\n".join(parts) + "\n"


def corrected_text(published: Published, texts: PublishedTexts) -> str:
    """Return the user's text about a task with all corrections applied; empty where there is none."""
    own = [correction.text for correction in published.corrections if correction.text is not None]
    if own:
        return "\n".join(own)
    if published.name in texts.cleaned:
        lines = _kept_sections(texts.cleaned[published.name])
    else:
        lines = texts.raw.get(published.name, "").splitlines()
    return "\n".join(_apply_corrections(published, lines)).strip()


def _kept_sections(text: str) -> list[str]:
    kept: list[str] = []
    within = True
    for line in text.splitlines():
        match = SECTION_LINE.fullmatch(line)
        if match:
            within = match[1] in KEPT_SECTIONS
            line = match[2] if match[1] == "Task" else line
        if within:
            kept.append(line)
    return kept


def _apply_corrections(published: Published, lines: Sequence[str]) -> list[str]:
    phrases = [phrase for correction in published.corrections for phrase in correction.phrases]
    marks = [mark for correction in published.corrections for mark in correction.lines]
    kept = []
    for line in lines:
        for phrase in phrases:
            line = line.replace(phrase, "")
        if not any(mark in line for mark in marks) and not ROW_COUNT.search(line):
            kept.append(line)
    return kept
