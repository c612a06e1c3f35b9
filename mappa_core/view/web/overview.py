"""The overview: every run in a row, and the chosen ones side by side over their iterations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request

from mappa_core.errors import RunError
from mappa_core.evaluation.heldout import part_of
from mappa_core.store.reader import Reader
from mappa_core.store.summary import Summary, read_summary
from mappa_core.view.chart import PERCENT_TICKS, SCORE_TICKS, Chart, Point, Range, chart, fitted
from mappa_core.view.curves import Iterations, between, curve, last
from mappa_core.view.health import warnings_of
from mappa_core.view.web.runs import last_written

SIDE_BY_SIDE = 5
"""Runs in one chart at most: as many as there are colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run in the table. `summary` is None where it has none yet; `latest` are the metrics of its last iteration, and
    `quiet` the seconds since it wrote last. `error` says why it cannot be read."""

    name: str
    chosen: bool
    summary: Summary | None
    latest: Mapping[str, float]
    alarms: int
    warnings: int
    quiet: float
    error: str = ""

    @property
    def throughput(self) -> float | None:
        """Sampled tokens per second of the last iteration, all its phases counted."""
        seconds = sum(value for name, value in self.latest.items() if name.startswith("seconds/"))
        return self.latest["tokens"] / seconds if seconds > 0 and "tokens" in self.latest else None

    @property
    def scores(self) -> list[tuple[str, float]]:
        """Mean points of every agent in the last iteration."""
        names = [name for name in self.latest if name.startswith("agent/") and name.endswith("/score")]
        return [(name.split("/", 1)[1].removesuffix("/score"), self.latest[name]) for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a chosen run has recorded over its iterations; `held_out` is by iteration."""

    iterations: Iterations
    held_out: Mapping[int, Mapping[str, Any]]


def page(folders: Mapping[str, Path], request: Request) -> dict[str, Any]:
    asked = [name for name in request.query_params.getlist("run") if name in folders][:SIDE_BY_SIDE]
    chosen = asked or list(folders)[:SIDE_BY_SIDE]
    rows = [_row(name, path, name in chosen) for name, path in folders.items()]
    readable = {row.name for row in rows if not row.error}
    courses = {name: _course(folders[name]) for name in chosen if name in readable}
    colours = {name: number for number, name in enumerate(courses)}
    return {
        "rows": rows,
        "colours": colours,
        "charts": charts(courses) if any(one.iterations for one in courses.values()) else [],
    }


def charts(courses: Mapping[str, Course]) -> list[Chart]:
    """Accuracy in training and held out, tokens a second, US dollars so far, and every agent's score; a line a run."""
    end = max(last(one.iterations) for one in courses.values())
    agents = list(
        dict.fromkeys(name for one in courses.values() for name in between(one.iterations, "agent/", "/score"))
    )
    spent = {name: _spent(one.iterations) for name, one in courses.items()}
    shown = [
        _shares(
            "Accuracy of training rollouts",
            {name: curve(one.iterations, "accuracy") for name, one in courses.items()},
            end,
        ),
        _held_out(courses, end),
        fitted(
            "Sampled tokens per second", {name: _speed(one.iterations) for name, one in courses.items()}, x_high=end
        ),
        fitted("Cost of the coach so far, US dollars", spent, x_high=end) if any(map(any, spent.values())) else None,
        *(
            chart(
                f"Score of {agent}: mean points of an action",
                {name: curve(one.iterations, f"agent/{agent}/score") for name, one in courses.items()},
                x_high=end,
                y_high=10.0,
                y_labels=SCORE_TICKS,
            )
            for agent in agents
        ),
    ]
    return [one for one in shown if one is not None]


def _row(name: str, path: Path, chosen: bool) -> Row:
    quiet = time.time() - last_written(path)
    try:
        with Reader(path) as reader:
            latest = reader.latest_iteration()
            alarms = sum(len(event.body["alarms"]) for event in reader.events("drift"))
            warnings = len(warnings_of(reader))
    except RunError as error:
        return Row(
            name=name, chosen=chosen, summary=None, latest={}, alarms=0, warnings=0, quiet=quiet, error=str(error)
        )
    try:
        summary = read_summary(path)
    except RunError:
        summary = None
    return Row(name=name, chosen=chosen, summary=summary, latest=latest, alarms=alarms, warnings=warnings, quiet=quiet)


def _course(path: Path) -> Course:
    with Reader(path) as reader:
        bodies = [event.body for event in reader.events("evaluation") if event.body["interval"] is not None]
        choosing = [body for body in bodies if part_of(body) == "selection"]
        held_out = {int(body["iteration"]): body["interval"] for body in choosing or bodies}
        return Course(iterations=reader.iterations(), held_out=held_out)


def _shares(title: str, series: Mapping[str, Sequence[Point]], end: float, **bands: Any) -> Chart:
    return chart(title, series, x_high=end, y_high=1.0, y_labels=PERCENT_TICKS, **bands)


def _held_out(courses: Mapping[str, Course], end: float) -> Chart | None:
    lines = {name: [(at, found["mean"]) for at, found in sorted(one.held_out.items())] for name, one in courses.items()}
    bands: dict[str, list[Range]] = {
        name: [
            (at, found["low"], found["high"]) for at, found in sorted(one.held_out.items()) if found["low"] is not None
        ]
        for name, one in courses.items()
    }
    return _shares("Held-out tasks, with 95 % intervals", lines, end, bands=bands) if any(lines.values()) else None


def _speed(iterations: Iterations) -> list[Point]:
    phases = [f"seconds/{name}" for name in between(iterations, "seconds/", "")]
    found: list[Point] = []
    for number, metrics in iterations:
        seconds = sum(metrics[name] for name in phases if name in metrics)
        if seconds > 0 and "tokens" in metrics:
            found.append((number, metrics["tokens"] / seconds))
    return found


def _spent(iterations: Iterations) -> list[Point]:
    """The sum so far, up to the first iteration whose price is unknown; nothing where nothing was spent."""
    total = 0.0
    found: list[Point] = []
    for number, metrics in iterations:
        if "coach/usd" not in metrics:
            break
        total += metrics["coach/usd"]
        found.append((number, total))
    return found if total > 0 else []
