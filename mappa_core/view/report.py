"""`report.html`: one self-contained page on a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from mappa_core.records import MAX_SCORE
from mappa_core.store.files import write_atomic
from mappa_core.store.reader import Reader
from mappa_core.store.summary import Summary
from mappa_core.view.chart import Chart, IntervalPoint, chart

PERCENT_TICKS = {0.0: "0 %", 0.25: "25 %", 0.5: "50 %", 0.75: "75 %", 1.0: "100 %"}
SCORE_TICKS = {0.0: "0", 2.5: "2.5", 5.0: "5", 7.5: "7.5", MAX_SCORE: "10"}


def write_report(folder: Path, summary: Summary) -> Path:
    """Write `report.html` into a run folder and return its path."""
    with Reader(folder) as reader:
        iterations = reader.iterations()
        evaluations = [event.body for event in reader.events("evaluation")]
    environment = Environment(
        loader=PackageLoader("mappa_core.view"), autoescape=select_autoescape(), undefined=StrictUndefined
    )
    page = environment.get_template("report.html").render(
        name=folder.name, summary=summary, charts=charts(summary, iterations, evaluations)
    )
    path = folder / "report.html"
    write_atomic(path, page)
    return path


def charts(
    summary: Summary, iterations: Sequence[tuple[int, Mapping[str, float]]], evaluations: Sequence[Mapping[str, Any]]
) -> tuple[Chart, Chart]:
    """Accuracy and each agent's score over iterations."""
    last = max([number for number, _ in iterations] + [1])
    latest = {int(body["iteration"]): body for body in evaluations}
    accuracy = chart(
        "Accuracy: training rollouts (line) and held-out problems (points, 95 % interval)",
        {"training": _series(iterations, "accuracy")},
        x_high=last,
        y_high=1.0,
        y_labels=PERCENT_TICKS,
        intervals=[_point(number, body["interval"]) for number, body in sorted(latest.items()) if body["interval"]],
    )
    scores = chart(
        "Score of the coach per agent (mean points of an action, 0-10)",
        {agent: _series(iterations, f"agent/{agent}/score") for agent in summary.agents},
        x_high=last,
        y_high=MAX_SCORE,
        y_labels=SCORE_TICKS,
    )
    return accuracy, scores


def _series(iterations: Sequence[tuple[int, Mapping[str, float]]], name: str) -> list[tuple[float, float]]:
    return [(number, metrics[name]) for number, metrics in iterations if name in metrics]


def _point(iteration: int, interval: Mapping[str, Any]) -> IntervalPoint:
    return iteration, interval["mean"], interval["low"], interval["high"]
