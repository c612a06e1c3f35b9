"""The overview page: a table row per run, and charts that compare the chosen runs over their iterations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request

from mappa_analysis.view.chart import PERCENT_TICKS, SCORE_TICKS, Chart, Point, Range, build_chart, build_fitted_chart
from mappa_analysis.view.metric_points import IterationMetrics, last_iteration, metric_points, names_between
from mappa_analysis.view.web.run_folders import last_written
from mappa_core.errors import RunError
from mappa_core.evaluation.heldout import event_part
from mappa_core.store.reader import Reader
from mappa_core.store.summary import Summary, read_summary
from mappa_core.training.health_report import read_warnings

MAX_CHART_RUNS = 5
"""Maximum number of runs in one chart: the number of colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in the table. `summary` is None if it has none yet; `latest` holds the metrics of its last iteration, and
    `idle_s` the seconds since its last write. `error` is why it cannot be read."""

    name: str
    chosen: bool
    summary: Summary | None
    latest: Mapping[str, float]
    alarms: int
    warnings: int
    idle_s: float
    error: str = ""

    @property
    def throughput(self) -> float | None:
        """Sampled tokens per second of the last iteration, over all its phases."""
        seconds = sum(value for name, value in self.latest.items() if name.startswith("seconds/"))
        return self.latest["tokens"] / seconds if seconds > 0 and "tokens" in self.latest else None

    @property
    def scores(self) -> list[tuple[str, float]]:
        """Mean points of every agent in the last iteration."""
        names = [name for name in self.latest if name.startswith("agent/") and name.endswith("/score")]
        return [(name.split("/", 1)[1].removesuffix("/score"), self.latest[name]) for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """Metrics of a chosen run over its iterations; `held_out` holds intervals by iteration."""

    iterations: IterationMetrics
    held_out: Mapping[int, Mapping[str, Any]]


def build_overview_page(folders: Mapping[str, Path], request: Request) -> dict[str, Any]:
    requested = [name for name in request.query_params.getlist("run") if name in folders][:MAX_CHART_RUNS]
    chosen = requested or list(folders)[:MAX_CHART_RUNS]
    rows = [_read_row(name, path, name in chosen) for name, path in folders.items()]
    readable = {row.name for row in rows if not row.error}
    series = {name: _read_series(folders[name]) for name in chosen if name in readable}
    colours = {name: number for number, name in enumerate(series)}
    return {
        "rows": rows,
        "colours": colours,
        "charts": build_overview_charts(series) if any(one.iterations for one in series.values()) else [],
    }


def build_overview_charts(series: Mapping[str, RunSeries]) -> list[Chart]:
    """Build charts with a line per run: accuracy in training and held out, throughput, cost so far, agents' scores."""
    end = max(last_iteration(one.iterations) for one in series.values())
    agents = list(
        dict.fromkeys(name for one in series.values() for name in names_between(one.iterations, "agent/", "/score"))
    )
    spent = {name: _cost_points(one.iterations) for name, one in series.items()}
    shown = [
        _build_share_chart(
            "Accuracy of training rollouts",
            {name: metric_points(one.iterations, "accuracy") for name, one in series.items()},
            end,
        ),
        _build_held_out_chart(series, end),
        build_fitted_chart(
            "Sampled tokens per second",
            {name: _throughput_points(one.iterations) for name, one in series.items()},
            x_high=end,
        ),
        build_fitted_chart("Cost of the coach so far, US dollars", spent, x_high=end)
        if any(map(any, spent.values()))
        else None,
        *(
            build_chart(
                f"Score of {agent}: mean points of an action",
                {name: metric_points(one.iterations, f"agent/{agent}/score") for name, one in series.items()},
                x_high=end,
                y_high=10.0,
                y_labels=SCORE_TICKS,
            )
            for agent in agents
        ),
    ]
    return [one for one in shown if one is not None]


def _read_row(name: str, path: Path, chosen: bool) -> RunRow:
    idle_s = time.time() - last_written(path)
    try:
        with Reader(path) as reader:
            latest = reader.latest_iteration()
            alarms = sum(len(event.body["alarms"]) for event in reader.events("drift"))
            warnings = len(read_warnings(reader))
    except RunError as error:
        return RunRow(
            name=name, chosen=chosen, summary=None, latest={}, alarms=0, warnings=0, idle_s=idle_s, error=str(error)
        )
    try:
        summary = read_summary(path)
    except RunError:
        summary = None
    return RunRow(
        name=name, chosen=chosen, summary=summary, latest=latest, alarms=alarms, warnings=warnings, idle_s=idle_s
    )


def _read_series(path: Path) -> RunSeries:
    with Reader(path) as reader:
        bodies = [event.body for event in reader.events("evaluation") if event.body["interval"] is not None]
        selection = [body for body in bodies if event_part(body) == "selection"]
        held_out = {int(body["iteration"]): body["interval"] for body in selection or bodies}
        return RunSeries(iterations=reader.iterations(), held_out=held_out)


def _build_share_chart(title: str, series: Mapping[str, Sequence[Point]], end: float, **bands: Any) -> Chart:
    return build_chart(title, series, x_high=end, y_high=1.0, y_labels=PERCENT_TICKS, **bands)


def _build_held_out_chart(series: Mapping[str, RunSeries], end: float) -> Chart | None:
    lines = {name: [(at, found["mean"]) for at, found in sorted(one.held_out.items())] for name, one in series.items()}
    bands: dict[str, list[Range]] = {
        name: [
            (at, found["low"], found["high"]) for at, found in sorted(one.held_out.items()) if found["low"] is not None
        ]
        for name, one in series.items()
    }
    return (
        _build_share_chart("Held-out tasks, with 95 % intervals", lines, end, bands=bands)
        if any(lines.values())
        else None
    )


def _throughput_points(iterations: IterationMetrics) -> list[Point]:
    phases = [f"seconds/{name}" for name in names_between(iterations, "seconds/", "")]
    found: list[Point] = []
    for number, metrics in iterations:
        seconds = sum(metrics[name] for name in phases if name in metrics)
        if seconds > 0 and "tokens" in metrics:
            found.append((number, metrics["tokens"] / seconds))
    return found


def _cost_points(iterations: IterationMetrics) -> list[Point]:
    """The cumulative cost up to the first iteration of unknown price; empty if it is zero."""
    total = 0.0
    found: list[Point] = []
    for number, metrics in iterations:
        if "coach/usd" not in metrics:
            break
        total += metrics["coach/usd"]
        found.append((number, total))
    return found if total > 0 else []
