"""The files of a trajectory as a graph: a row a file, a column an action. Who made it, who changed it, who named it in
what it wrote, and where a file was missing or could not be used.

A file that an agent's text names is taken to be used there: what a program opened is not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mappa_core.records import FileChange, Step

LETTER, TOP, ROW, COLUMN = 7.2, 46, 26, 58
"""Pixels: of a letter of a path, above the first row, of a row, of a column."""
MOST_LETTERS = 30
"""Of a path, which is cut beyond."""
MOST_FILES = 40
"""Rows at most; files that nobody made, changed, named or missed come last and are left out first."""
MOST_LOOKED_AT = 500
"""Files that are looked for in what agents wrote."""

Event = Literal["created", "changed", "deleted", "named", "missing", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What happened to a file at an action, at pixel (x, y)."""

    x: float
    y: float
    event: Event
    position: int
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """A file: where its row lies, from where to where it was there (None: never), and what happened to it."""

    path: str
    y: float
    start: float | None
    end: float | None
    maker: str | None
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The column of an action. `hand_off` is where it starts with another agent than the one before."""

    x: float
    position: int
    agent: str
    hand_off: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    heads: tuple[Head, ...]
    files: tuple[FileRow, ...]
    left_out: int
    left: float
    width: float
    height: float


def lineage(steps: Sequence[Step]) -> Graph | None:
    """None where no action had to do with a file."""
    paths = _paths(steps)
    if not paths:
        return None
    shown = paths[:MOST_FILES]
    left = LETTER * min(MOST_LETTERS, max(map(len, shown)))
    xs = {step.position: left + COLUMN * (number + 0.5) for number, step in enumerate(steps)}
    heads = tuple(
        Head(
            x=xs[step.position],
            position=step.position,
            agent=step.agent,
            hand_off=number > 0 and steps[number - 1].agent != step.agent,
        )
        for number, step in enumerate(steps)
    )
    rows = tuple(_row(path, TOP + ROW * (number + 0.5), steps, xs) for number, path in enumerate(shown))
    return Graph(
        heads=heads,
        files=rows,
        left_out=len(paths) - len(shown),
        left=left,
        width=left + COLUMN * len(steps) + 8,
        height=TOP + ROW * len(rows) + 6,
    )


def _paths(steps: Sequence[Step]) -> list[str]:
    """Files in the order in which they matter: those that something happened to, then those that were only there."""
    touched = [path for step in steps for path in (*(change.path for change in _changes(step)), *_breached(step))]
    there = [path for step in steps for path in step.files]
    known = list(dict.fromkeys([*touched, *there]))
    named = [path for path in known[:MOST_LOOKED_AT] if any(_names(step, path) for step in steps)]
    return list(dict.fromkeys([*touched, *named, *known]))


def _row(path: str, y: float, steps: Sequence[Step], xs: dict[int, float]) -> FileRow:
    marks, present, maker = [], [], None
    for step in steps:
        x = xs[step.position]
        found = list(_events(step, path))
        marks += [
            Mark(x=x, y=y, event=event, position=step.position, told=f"{step.agent}: {told}") for event, told in found
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


def _events(step: Step, path: str) -> list[tuple[Event, str]]:
    """What happened to a file at an action. Being named is told only where nothing else happened."""
    found: list[tuple[Event, str]] = []
    for change in _changes(step):
        if change.path == path:
            size = "" if change.size is None else f", {change.size} bytes"
            found.append((change.kind, f"{change.kind}{size}"))
    for breach in step.breaches:
        if breach.path == path:
            said = ": ".join(text for text in (breach.kind.replace("_", " "), breach.reason, breach.detail) if text)
            found.append(("missing" if breach.kind.startswith("missing") else "broken", said))
    if not found and path in step.files and _names(step, path):
        found.append(("named", "names it"))
    return found


def _changes(step: Step) -> list[FileChange]:
    return [change for result in step.results for change in result.files]


def _breached(step: Step) -> list[str]:
    return [breach.path for breach in step.breaches]


def _names(step: Step, path: str) -> bool:
    """Whether the action's own text has the file's name, whole."""
    name = path.rsplit("/", 1)[-1]
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", step.completion.text) is not None
