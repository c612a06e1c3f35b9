"""`report.html`: one self-contained page on a run, or on several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from mappa_analysis.view.chart import PERCENT_TICKS, SCORE_TICKS, Chart, IntervalPoint, build_chart
from mappa_analysis.view.drift import DriftHistory, GapHistory, read_drift
from mappa_analysis.view.highlights import SELECTION_NOTE, Highlight, select_highlights
from mappa_analysis.view.metric_points import IterationMetrics, last_iteration, metric_points, names_between
from mappa_analysis.view.provenance import Provenance, read_provenance
from mappa_core.errors import ConfigError
from mappa_core.evaluation.heldout import event_part
from mappa_core.records import MAX_SCORE
from mappa_core.store.audit import AuditedVerdict
from mappa_core.store.files import storage_errors, write_atomic
from mappa_core.store.reader import Reader
from mappa_core.store.summary import EvalSummary, FigureSummary, StratumSummary, Summary
from mappa_core.tools.truncate import cut_middle
from mappa_core.training.health_report import RaisedWarning, read_warnings

DEFAULT_METRIC = "correct"
"""The metric of a run without evaluations."""
MAX_CHARACTERS = 1500
"""Maximum length of a text in a shown trajectory."""
BeforeAfter = EvalSummary | StratumSummary | FigureSummary
"""Values before and after training, with the gain."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSection:
    """One run in a report."""

    name: str
    summary: Summary
    results: Sequence[tuple[str, Mapping[str, BeforeAfter]]]
    charts: Sequence[Chart]
    drift: DriftHistory
    warnings: Sequence[RaisedWarning]
    gap_charts: Sequence[Chart]
    highlights: Sequence[Highlight]
    provenance: Provenance
    audit: Sequence[AuditedVerdict] | None
    """Every verdict; None unless requested."""


def write_report(folder: Path, summary: Summary, *, audit: bool = False) -> Path:
    """Write `report.html` into a run folder and return its path. `audit` adds every verdict."""
    return write_page(folder / "report.html", [(folder, summary)], audit=audit)


def write_page(path: Path, runs: Sequence[tuple[Path, Summary]], *, audit: bool = False) -> Path:
    """Write one self-contained page on all `runs` (folders with their summaries) and return its path.

    Raises:
        RunError: a folder is not a run, or the storage failed.
        ConfigError: the folder of the page does not exist.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: {path.parent} is no folder; make it, or name another file")
    environment = Environment(
        loader=PackageLoader("mappa_analysis.view"), autoescape=select_autoescape(), undefined=StrictUndefined
    )
    environment.filters["cut"] = _truncate
    sections = [_build_section(folder, summary, audit=audit) for folder, summary in runs]
    page = environment.get_template("report.html").render(sections=sections, how=SELECTION_NOTE)
    with storage_errors(path):
        write_atomic(path, page)
    return path


def _build_section(folder: Path, summary: Summary, *, audit: bool) -> RunSection:
    with Reader(folder) as reader:
        iterations = reader.iterations()
        evaluations = [event.body for event in reader.events("evaluation")]
        drift = read_drift(reader)
        return RunSection(
            name=folder.resolve().name,
            summary=summary,
            results=[] if summary.eval is None else tabulate_results(summary.eval),
            charts=build_training_charts(summary, iterations, evaluations) if iterations or evaluations else [],
            drift=drift,
            warnings=read_warnings(reader),
            gap_charts=build_gap_charts(drift),
            highlights=select_highlights(reader, DEFAULT_METRIC if summary.eval is None else summary.eval.metric),
            provenance=read_provenance(folder, reader, iterations),
            audit=tuple(reader.audit()) if audit else None,
        )


def _truncate(text: str) -> str:
    """Shorten a text of an agent in its middle."""
    return cut_middle(text.encode(errors="replace").decode(), MAX_CHARACTERS)


def tabulate_results(found: EvalSummary) -> list[tuple[str, Mapping[str, BeforeAfter]]]:
    """Tabulate the metric, then each further figure: over all tasks and by stratum."""
    parts: dict[str, EvalSummary | StratumSummary] = {"all": found, **found.strata}
    further = [(name, {part: one.figures[name] for part, one in parts.items()}) for name in found.figures]
    return [(found.metric, parts), *further]


def build_training_charts(
    summary: Summary, iterations: IterationMetrics, evaluations: Sequence[Mapping[str, Any]]
) -> list[Chart]:
    """Build charts over iterations: accuracy, further figures if there are any, and each agent's score."""
    end = last_iteration(iterations)
    selection = [body for body in evaluations if event_part(body) == "selection"]
    latest = {int(body["iteration"]): body for body in selection or evaluations}
    held_out = "the tasks that the checkpoint was chosen on" if selection else "held-out problems"
    strata = names_between(iterations, "stratum/", "/accuracy")
    figures = names_between(iterations, "figure/", "")
    accuracy = build_chart(
        f"Accuracy: training rollouts (lines) and {held_out} (points, 95 % interval)",
        {
            "all": metric_points(iterations, "accuracy"),
            **{name: metric_points(iterations, f"stratum/{name}/accuracy") for name in strata if len(strata) > 1},
        },
        x_high=end,
        y_high=1.0,
        y_labels=PERCENT_TICKS,
        intervals=[
            _interval_point(number, body["interval"]) for number, body in sorted(latest.items()) if body["interval"]
        ],
    )
    further = build_chart(
        "Further figures of training rollouts",
        {name: metric_points(iterations, f"figure/{name}") for name in figures},
        x_high=end,
        y_high=1.0,
        y_labels=PERCENT_TICKS,
    )
    scores = build_chart(
        "Score of the coach per agent (mean points of an action, 0-10)",
        {agent: metric_points(iterations, f"agent/{agent}/score") for agent in summary.agents},
        x_high=end,
        y_high=MAX_SCORE,
        y_labels=SCORE_TICKS,
    )
    return [accuracy, *([further] if figures else []), scores]


def build_gap_charts(drift: DriftHistory) -> list[Chart]:
    """Build a chart of the coach's gap per stratum: a line with its 95 % band per agent, and a point per alarm."""
    groups: dict[tuple[str, str, str], list[GapHistory]] = {}
    for gap in drift.gaps:
        groups.setdefault((gap.phase, gap.stratifier, gap.stratum), []).append(gap)
    return [_build_gap_chart(*key, gaps) for key, gaps in groups.items()]


def _build_gap_chart(phase: str, stratifier: str, stratum: str, gaps: Sequence[GapHistory]) -> Chart:
    limit = _gap_axis_limit(gaps)
    at = {gap.agent: dict(gap.points) for gap in gaps}
    return build_chart(
        f"{stratifier}: points for {stratum} beyond the rest at equal outcome ({phase} verdicts)",
        {gap.agent: [(number, found.mean) for number, found in gap.points] for gap in gaps},
        x_high=max(number for gap in gaps for number, _ in gap.points),
        y_low=-limit,
        y_high=limit,
        y_labels={share * limit: f"{share * limit:+g}" for share in (-1.0, -0.5, 0.5, 1.0)} | {0.0: "0"},
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


def _gap_axis_limit(gaps: Sequence[GapHistory]) -> float:
    """A round limit of the axis that contains every gap and the final intervals."""
    means = [abs(found.mean) for gap in gaps for _, found in gap.points]
    bounds = [abs(bound) for gap in gaps for bound in (gap.last.low, gap.last.high) if bound is not None]
    return next((limit for limit in (1.0, 2.0, 4.0) if limit >= max(means + bounds)), MAX_SCORE)


def _interval_point(iteration: int, interval: Mapping[str, Any]) -> IntervalPoint:
    return iteration, interval["mean"], interval["low"], interval["high"]
