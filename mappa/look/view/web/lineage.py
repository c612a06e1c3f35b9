"""Graph of the files of a trajectory, with a row per file and a column per action. It shows which agent created,
changed or mentioned a file, and where a file was missing or unusable.

A file that an agent's text mentions counts as used there: which files a program opened is not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mappa_core import Step
from mappa_core.sandbox import FileChange

LETTER_WIDTH, TOP, ROW_HEIGHT, COLUMN_WIDTH = 7.2, 46, 26, 58
"""Pixels: width of a letter of a path, space above the first row, height of a row, width of a column."""
MAX_LETTERS = 30
"""Letters of a path that are shown."""
MAX_FILES = 40
"""Maximum number of rows; files without any event come last and are left out first."""
MAX_SEARCHED_FILES = 500
"""Maximum number of files that are searched for in the texts of agents."""

FileEvent = Literal["created", "changed", "deleted", "named", "missing", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """An event of a file at an action, at pixel (x, y)."""

    x: float
    y: float
    event: FileEvent
    position: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """The row of a file at `y`, the pixels from `start` to `end` where it existed (None: never), and its events."""

    path: str
    y: float
    start: float | None
    end: float | None
    maker: str | None
    marks: tuple[FileMark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionColumn:
    """The column of an action. `hand_off` is true if its agent differs from that of the previous action."""

    x: float
    position: int
    agent: str
    hand_off: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageGraph:
    columns: tuple[ActionColumn, ...]
    files: tuple[FileRow, ...]
    left_out: int
    left: float
    width: float
    height: float


def build_lineage_graph(steps: Sequence[Step]) -> LineageGraph | None:
    """Build the graph; None if no action involved a file."""
    paths = _ordered_paths(steps)
    if not paths:
        return None
    shown = paths[:MAX_FILES]
    left = LETTER_WIDTH * min(MAX_LETTERS, max(map(len, shown)))
    xs = {step.position: left + COLUMN_WIDTH * (number + 0.5) for number, step in enumerate(steps)}
    columns = tuple(
        ActionColumn(
            x=xs[step.position],
            position=step.position,
            agent=step.agent,
            hand_off=number > 0 and steps[number - 1].agent != step.agent,
        )
        for number, step in enumerate(steps)
    )
    rows = tuple(_build_row(path, TOP + ROW_HEIGHT * (number + 0.5), steps, xs) for number, path in enumerate(shown))
    return LineageGraph(
        columns=columns,
        files=rows,
        left_out=len(paths) - len(shown),
        left=left,
        width=left + COLUMN_WIDTH * len(steps) + 8,
        height=TOP + ROW_HEIGHT * len(rows) + 6,
    )


def _ordered_paths(steps: Sequence[Step]) -> list[str]:
    """Files by importance: those that were changed or broken, then mentioned ones, then those that only existed."""
    touched = [
        path for step in steps for path in (*(change.path for change in _file_changes(step)), *_breached_paths(step))
    ]
    there = [path for step in steps for path in step.files]
    known = list(dict.fromkeys([*touched, *there]))
    named = [path for path in known[:MAX_SEARCHED_FILES] if any(_mentions(step, path) for step in steps)]
    return list(dict.fromkeys([*touched, *named, *known]))


def _build_row(path: str, y: float, steps: Sequence[Step], xs: dict[int, float]) -> FileRow:
    marks, present, maker = [], [], None
    for step in steps:
        x = xs[step.position]
        found = list(_file_events(step, path))
        marks += [
            FileMark(x=x, y=y, event=event, position=step.position, label=f"{step.agent}: {label}")
            for event, label in found
        ]
        made = [event for event, _ in found if event == "created"]
        maker = step.agent if made and maker is None else maker
        if path in step.files or any(event in ("created", "changed") for event, _ in found):
            present.append(x)
    return FileRow(
        path=path,
        y=y,
        start=min(present) if present else None,
        end=max(present) if present else None,
        maker=maker,
        marks=tuple(marks),
    )


def _file_events(step: Step, path: str) -> list[tuple[FileEvent, str]]:
    """The events of a file at an action. A mention counts only if there is no other event."""
    found: list[tuple[FileEvent, str]] = []
    for change in _file_changes(step):
        if change.path == path:
            size = "" if change.size is None else f", {change.size} bytes"
            found.append((change.kind, f"{change.kind}{size}"))
    for breach in step.breaches:
        if breach.path == path:
            said = ": ".join(text for text in (breach.kind.replace("_", " "), breach.reason, breach.detail) if text)
            found.append(("missing" if breach.kind.startswith("missing") else "broken", said))
    if not found and path in step.files and _mentions(step, path):
        found.append(("named", "names it"))
    return found


def _file_changes(step: Step) -> list[FileChange]:
    return [change for result in step.results for change in result.files]


def _breached_paths(step: Step) -> list[str]:
    return [breach.path for breach in step.breaches]


def _mentions(step: Step, path: str) -> bool:
    """Whether the action's own text mentions the file's name as a whole word."""
    name = path.rsplit("/", 1)[-1]
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", step.completion.text) is not None
