"""`report.html`: one self-contained page on a run, or on several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from mappa_core.errors import ConfigError
from mappa_core.evaluation.heldout import part_of
from mappa_core.records import MAX_SCORE
from mappa_core.store.auditing import Audited
from mappa_core.store.files import storage_errors, write_atomic
from mappa_core.store.reader import Reader
from mappa_core.store.summary import EvalSummary, FigureSummary, StratumSummary, Summary
from mappa_core.tools.cut import cut_middle
from mappa_core.view.chart import PERCENT_TICKS, SCORE_TICKS, Chart, IntervalPoint, chart
from mappa_core.view.curves import Iterations, between, curve, last
from mappa_core.view.drift import GapHistory, Watch, watch_of
from mappa_core.view.health import Warned, warnings_of
from mappa_core.view.record import Record, record_of
from mappa_core.view.telling import HOW, Telling, telling

METRIC = "correct"
"""What a run without evaluations is measured by."""
MOST_CHARACTERS = 1500
"""Of one text in a trajectory that is shown."""
Before = EvalSummary | StratumSummary | FigureSummary
"""What has a figure before and after training, and its gain."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Section:
    """One run in a report."""

    name: str
    summary: Summary
    results: Sequence[tuple[str, Mapping[str, Before]]]
    charts: Sequence[Chart]
    watch: Watch
    warnings: Sequence[Warned]
    gap_charts: Sequence[Chart]
    telling: Sequence[Telling]
    record: Record
    audit: Sequence[Audited] | None
    """Every verdict; None where that was not asked for."""


def write_report(folder: Path, summary: Summary, *, audit: bool = False) -> Path:
    """Write `report.html` into a run folder and return its path; `audit`: with every verdict."""
    return write_page(folder / "report.html", [(folder, summary)], audit=audit)


def write_page(path: Path, runs: Sequence[tuple[Path, Summary]], *, audit: bool = False) -> Path:
    """Write one self-contained page on all of `runs`, folders with their summaries, and return its path.

    Raises:
        RunError: a folder is no run, or the storage failed.
        ConfigError: there is no folder for the page.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: {path.parent} is no folder; make it, or name another file")
    environment = Environment(
        loader=PackageLoader("mappa_core.view"), autoescape=select_autoescape(), undefined=StrictUndefined
    )
    environment.filters["cut"] = _cut
    sections = [_section(folder, summary, audit=audit) for folder, summary in runs]
    page = environment.get_template("report.html").render(sections=sections, how=HOW)
    with storage_errors(path):
        write_atomic(path, page)
    return path


def _section(folder: Path, summary: Summary, *, audit: bool) -> Section:
    with Reader(folder) as reader:
        iterations = reader.iterations()
        evaluations = [event.body for event in reader.events("evaluation")]
        watch = watch_of(reader)
        return Section(
            name=folder.resolve().name,
            summary=summary,
            results=[] if summary.eval is None else results(summary.eval),
            charts=charts(summary, iterations, evaluations) if iterations or evaluations else [],
            watch=watch,
            warnings=warnings_of(reader),
            gap_charts=gap_charts(watch),
            telling=telling(reader, METRIC if summary.eval is None else summary.eval.metric),
            record=record_of(folder, reader, iterations),
            audit=tuple(reader.audit()) if audit else None,
        )


def _cut(text: str) -> str:
    """A text of an agent, short enough to be read over."""
    return cut_middle(text.encode(errors="replace").decode(), MOST_CHARACTERS)


def results(found: EvalSummary) -> list[tuple[str, Mapping[str, Before]]]:
    """The metric, then each further figure: over all tasks and by stratum."""
    parts: dict[str, EvalSummary | StratumSummary] = {"all": found, **found.strata}
    further = [(name, {part: one.figures[name] for part, one in parts.items()}) for name in found.figures]
    return [(found.metric, parts), *further]


def charts(summary: Summary, iterations: Iterations, evaluations: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Accuracy, further figures where there are any, and each agent's score over iterations."""
    end = last(iterations)
    choosing = [body for body in evaluations if part_of(body) == "selection"]
    latest = {int(body["iteration"]): body for body in choosing or evaluations}
    held_out = "the tasks that the checkpoint was chosen on" if choosing else "held-out problems"
    strata = between(iterations, "stratum/", "/accuracy")
    figures = between(iterations, "figure/", "")
    accuracy = chart(
        f"Accuracy: training rollouts (lines) and {held_out} (points, 95 % interval)",
        {
            "all": curve(iterations, "accuracy"),
            **{name: curve(iterations, f"stratum/{name}/accuracy") for name in strata if len(strata) > 1},
        },
        x_high=end,
        y_high=1.0,
        y_labels=PERCENT_TICKS,
        intervals=[_point(number, body["interval"]) for number, body in sorted(latest.items()) if body["interval"]],
    )
    further = chart(
        "Further figures of training rollouts",
        {name: curve(iterations, f"figure/{name}") for name in figures},
        x_high=end,
        y_high=1.0,
        y_labels=PERCENT_TICKS,
    )
    scores = chart(
        "Score of the coach per agent (mean points of an action, 0-10)",
        {agent: curve(iterations, f"agent/{agent}/score") for agent in summary.agents},
        x_high=end,
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


def _point(iteration: int, interval: Mapping[str, Any]) -> IntervalPoint:
    return iteration, interval["mean"], interval["low"], interval["high"]
