"""The overview page: a table row per run, and charts that compare the chosen runs over their iterations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request

from mappa.look.view.chart import PERCENT_TICKS, SCORE_TICKS, Chart, Point, Range, build_chart, build_fitted_chart
from mappa.look.view.metric_points import Iterations, agent_figure, last_iteration, measured_agents, metric_points
from mappa.look.view.plays import PlaysSummary
from mappa.look.view.web.plays import read_plays
from mappa.look.view.web.run_folders import last_written
from mappa.runs import RunReader
from mappa.store.agent_columns import AGENT_COLUMNS, AgentSummary
from mappa.store.iteration_report import IterationReport
from mappa.store.summary import Summary
from mappa_core import RunError
from mappa_core.records import Interval

MAX_CHART_RUNS = 5
"""Maximum number of runs in one chart: the number of colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in the table. `summary` is None if it has none yet; `latest` is the report of its last iteration, and
    `idle_s` the seconds since its last write. `plays` are what it holds if it trained nothing. `error` is why it cannot
    be read."""

    name: str
    idle_s: float
    summary: Summary | None = None
    latest: IterationReport | None = None
    plays: PlaysSummary | None = None
    alarms: int = 0
    warnings: int = 0
    error: str = ""

    @property
    def throughput(self) -> float | None:
        """Sampled tokens per second of the last iteration, over all its phases."""
        return None if self.latest is None else self.latest.throughput

    @property
    def agents(self) -> Mapping[str, AgentSummary]:
        """Agents with a score in the last iteration."""
        agents = {} if self.latest is None else self.latest.agents
        return {agent: figures for agent, figures in agents.items() if figures.score is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """Metrics of a chosen run over its iterations; `held_out` holds intervals by iteration."""

    iterations: Iterations
    held_out: Mapping[int, Interval]


def build_overview_page(folders: Mapping[str, Path], request: Request) -> dict[str, Any]:
    rows = [_read_row(name, path) for name, path in folders.items()]
    drawable = [row.name for row in rows if row.plays is None and not row.error]
    requested = [name for name in request.query_params.getlist("run") if name in drawable]
    series = {name: _read_series(folders[name]) for name in (requested or drawable)[:MAX_CHART_RUNS]}
    colours = {name: number for number, name in enumerate(series)}
    return {
        "trained": [row for row in rows if row.plays is None],
        "played": [row for row in rows if row.plays is not None],
        "colours": colours,
        "agent_columns": AGENT_COLUMNS,
        "charts": build_overview_charts(series) if any(one.iterations for one in series.values()) else [],
    }


def build_overview_charts(series: Mapping[str, RunSeries]) -> list[Chart]:
    """Build charts with a line per run: accuracy in training and held out, throughput, cost so far, agents' scores."""
    end = max(last_iteration(one.iterations) for one in series.values())
    agents = dict.fromkeys(name for one in series.values() for name in measured_agents(one.iterations, "score"))
    spent = {name: _cost_points(one.iterations) for name, one in series.items()}
    shown = [
        _build_share_chart(
            "Accuracy of training rollouts",
            {
                name: metric_points(one.iterations, lambda report: report.outcomes.accuracy)
                for name, one in series.items()
            },
            end,
        ),
        _build_held_out_chart(series, end),
        build_fitted_chart(
            "Sampled tokens per second",
            {name: metric_points(one.iterations, lambda report: report.throughput) for name, one in series.items()},
            x_high=end,
        ),
        build_fitted_chart("Cost of the coach so far, US dollars", spent, x_high=end)
        if any(map(any, spent.values()))
        else None,
        *(
            build_chart(
                f"Score of {agent}: mean points of an action",
                {name: _score_points(one.iterations, agent) for name, one in series.items()},
                x_high=end,
                y_high=10.0,
                y_labels=SCORE_TICKS,
            )
            for agent in agents
        ),
    ]
    return [one for one in shown if one is not None]


def _read_row(name: str, path: Path) -> RunRow:
    idle_s = time.time() - last_written(path)
    try:
        with RunReader(path) as reader:
            summary, plays = _read_results(reader, path)
            return RunRow(
                name=name,
                idle_s=idle_s,
                summary=summary,
                latest=reader.latest_iteration(),
                plays=plays,
                alarms=sum(len(event.body["alarms"]) for event in reader.events("drift")),
                warnings=len(reader.warnings),
            )
    except RunError as error:
        return RunRow(name=name, idle_s=idle_s, error=str(error))


def _read_results(reader: RunReader, path: Path) -> tuple[Summary | None, PlaysSummary | None]:
    """The summary of a run, None if it has none that can be read, and what its plays came to, if it trained nothing."""
    try:
        summary = reader.summary
    except RunError:
        return None, None
    return summary, read_plays(path)


def _read_series(path: Path) -> RunSeries:
    with RunReader(path) as reader:
        known = [(one, one.interval) for one in reader.evaluations if one.interval is not None]
        selection = [(one, interval) for one, interval in known if one.part == "selection"]
        held_out = {one.iteration: interval for one, interval in selection or known}
        return RunSeries(iterations=list(reader.iterations), held_out=held_out)


def _build_share_chart(title: str, series: Mapping[str, Sequence[Point]], end: float, **bands: Any) -> Chart:
    return build_chart(title, series, x_high=end, y_high=1.0, y_labels=PERCENT_TICKS, **bands)


def _build_held_out_chart(series: Mapping[str, RunSeries], end: float) -> Chart | None:
    lines = {name: [(at, found.mean) for at, found in sorted(one.held_out.items())] for name, one in series.items()}
    bands: dict[str, list[Range]] = {
        name: [
            (at, found.low, found.high)
            for at, found in sorted(one.held_out.items())
            if found.low is not None and found.high is not None
        ]
        for name, one in series.items()
    }
    return (
        _build_share_chart("Held-out tasks, with 95 % intervals", lines, end, bands=bands)
        if any(lines.values())
        else None
    )


def _score_points(iterations: Iterations, agent: str) -> list[Point]:
    return metric_points(iterations, lambda report: agent_figure(report, agent, "score"))


def _cost_points(iterations: Iterations) -> list[Point]:
    """The cumulative cost up to the first iteration of unknown price; empty if it is zero."""
    total = 0.0
    found: list[Point] = []
    for report in iterations:
        if report.coach.total.usd is None:
            break
        total += report.coach.total.usd
        found.append((report.iteration, total))
    return found if total > 0 else []
