"""`report.html`: one self-contained page on a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from mappa_core.evaluation.heldout import part_of
from mappa_core.records import MAX_SCORE
from mappa_core.store.files import write_atomic
from mappa_core.store.reader import Reader
from mappa_core.store.summary import EvalSummary, FigureSummary, StratumSummary, Summary
from mappa_core.view.chart import Chart, IntervalPoint, chart
from mappa_core.view.drift import GapHistory, Watch, watch_of
from mappa_core.view.health import warnings_of

Before = EvalSummary | StratumSummary | FigureSummary
"""What has a figure before and after training, and its gain."""

PERCENT_TICKS = {0.0: "0 %", 0.25: "25 %", 0.5: "50 %", 0.75: "75 %", 1.0: "100 %"}
SCORE_TICKS = {0.0: "0", 2.5: "2.5", 5.0: "5", 7.5: "7.5", MAX_SCORE: "10"}


def write_report(folder: Path, summary: Summary) -> Path:
    """Write `report.html` into a run folder and return its path."""
    with Reader(folder) as reader:
        iterations = reader.iterations()
        evaluations = [event.body for event in reader.events("evaluation")]
        watch, warnings = watch_of(reader), warnings_of(reader)
    environment = Environment(
        loader=PackageLoader("mappa_core.view"), autoescape=select_autoescape(), undefined=StrictUndefined
    )
    page = environment.get_template("report.html").render(
        name=folder.name,
        summary=summary,
        results=[] if summary.eval is None else results(summary.eval),
        charts=charts(summary, iterations, evaluations),
        watch=watch,
        warnings=warnings,
        gap_charts=gap_charts(watch),
    )
    path = folder / "report.html"
    write_atomic(path, page)
    return path


def results(found: EvalSummary) -> list[tuple[str, Mapping[str, Before]]]:
    """The metric, then each further figure: over all tasks and by stratum."""
    parts: dict[str, EvalSummary | StratumSummary] = {"all": found, **found.strata}
    further = [(name, {part: one.figures[name] for part, one in parts.items()}) for name in found.figures]
    return [(found.metric, parts), *further]


def charts(
    summary: Summary, iterations: Sequence[tuple[int, Mapping[str, float]]], evaluations: Sequence[Mapping[str, Any]]
) -> list[Chart]:
    """Accuracy, further figures where there are any, and each agent's score over iterations."""
    last = _last(iterations)
    choosing = [body for body in evaluations if part_of(body) == "selection"]
    latest = {int(body["iteration"]): body for body in choosing or evaluations}
    held_out = "the tasks that the checkpoint was chosen on" if choosing else "held-out problems"
    strata = _between(iterations, "stratum/", "/accuracy")
    figures = _between(iterations, "figure/", "")
    accuracy = chart(
        f"Accuracy: training rollouts (lines) and {held_out} (points, 95 % interval)",
        {
            "all": _series(iterations, "accuracy"),
            **{name: _series(iterations, f"stratum/{name}/accuracy") for name in strata if len(strata) > 1},
        },
        x_high=last,
        y_high=1.0,
        y_labels=PERCENT_TICKS,
        intervals=[_point(number, body["interval"]) for number, body in sorted(latest.items()) if body["interval"]],
    )
    further = chart(
        "Further figures of training rollouts",
        {name: _series(iterations, f"figure/{name}") for name in figures},
        x_high=last,
        y_high=1.0,
        y_labels=PERCENT_TICKS,
    )
    scores = chart(
        "Score of the coach per agent (mean points of an action, 0-10)",
        {agent: _series(iterations, f"agent/{agent}/score") for agent in summary.agents},
        x_high=last,
        y_high=MAX_SCORE,
        y_labels=SCORE_TICKS,
    )
    return [accuracy, *([further] if figures else []), scores]


def gap_charts(watch: Watch) -> list[Chart]:
    """The coach's gap for every stratum over iterations: a line and its 95 % band per agent, a point per alarm."""
    groups: dict[tuple[str, str, str], list[GapHistory]] = {}
    for gap in watch.gaps:
        groups.setdefault((gap.phase, gap.stratifier, gap.stratum), []).append(gap)
    return [_gap_chart(*key, gaps) for key, gaps in groups.items()]


def _gap_chart(phase: str, stratifier: str, stratum: str, gaps: Sequence[GapHistory]) -> Chart:
    reach = _gap_reach(gaps)
    at = {gap.agent: dict(gap.points) for gap in gaps}
    return chart(
        f"{stratifier}: points for {stratum} beyond the rest at equal outcome ({phase} verdicts)",
        {gap.agent: [(number, found.mean) for number, found in gap.points] for gap in gaps},
        x_high=max(number for gap in gaps for number, _ in gap.points),
        y_low=-reach,
        y_high=reach,
        y_labels={share * reach: f"{share * reach:+g}" for share in (-1.0, -0.5, 0.5, 1.0)} | {0.0: "0"},
        bands={
            gap.agent: [
                (number, found.low, found.high)
                for number, found in gap.points
                if found.low is not None and found.high is not None
            ]
            for gap in gaps
        },
        intervals=[(number, at[gap.agent][number].mean, None, None) for gap in gaps for number, _ in gap.alarms],
    )


def _gap_reach(gaps: Sequence[GapHistory]) -> float:
    """A round number of points that holds every gap, and what is known of it in the end."""
    means = [abs(found.mean) for gap in gaps for _, found in gap.points]
    bounds = [abs(bound) for gap in gaps for bound in (gap.last.low, gap.last.high) if bound is not None]
    return next((reach for reach in (1.0, 2.0, 4.0) if reach >= max(means + bounds)), MAX_SCORE)


def _last(iterations: Sequence[tuple[int, Mapping[str, float]]]) -> int:
    return max([number for number, _ in iterations] + [1])


def _between(iterations: Sequence[tuple[int, Mapping[str, float]]], start: str, end: str) -> list[str]:
    """What stands between the two in names of metrics."""
    names = {name for _, metrics in iterations for name in metrics if name.startswith(start) and name.endswith(end)}
    return sorted(name.removeprefix(start).removesuffix(end) for name in names)


def _series(iterations: Sequence[tuple[int, Mapping[str, float]]], name: str) -> list[tuple[float, float]]:
    return [(number, metrics[name]) for number, metrics in iterations if name in metrics]


def _point(iteration: int, interval: Mapping[str, Any]) -> IntervalPoint:
    return iteration, interval["mean"], interval["low"], interval["high"]
