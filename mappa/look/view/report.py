"""`report.html`: one self-contained page on a run, or on several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from mappa.cli.formats import format_problem_count
from mappa.look.counted_verdicts import (
    BlameCounts,
    count_failures,
    latest_counted,
    read_metric,
    with_counted_verdicts,
)
from mappa.look.view.chart import PERCENT_TICKS, SCORE_TICKS, Chart, build_chart
from mappa.look.view.drift import DriftHistory, GapHistory, read_drift
from mappa.look.view.highlights import MAX_VERDICTS, SELECTION_NOTE, Highlight, select_highlights
from mappa.look.view.metric_points import (
    Iterations,
    agent_figure,
    collect_names,
    last_iteration,
    metric_points,
    points_by_name,
)
from mappa.look.view.plays import PlaysSummary, summarize_plays
from mappa.look.view.prompt_histories import PromptHistory, build_prompt_histories
from mappa.look.view.provenance import Provenance, read_provenance
from mappa.look.view.visible_text import finalize
from mappa.runs import RunReader
from mappa.runs.rows import EvaluationRow, RaisedWarning, VerdictRow
from mappa.store.agent_columns import AGENT_COLUMNS, AgentColumn
from mappa.store.iteration_report import IterationReport
from mappa.store.summary import EvalSummary, FigureSummary, StratumSummary, Summary
from mappa_core import MAX_SCORE, ConfigError
from mappa_core.files import write_atomic
from mappa_core.sandbox import cut_middle

MAX_CHARACTERS = 1500
"""Maximum length of a text in a shown trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSection:
    """One run in a report."""

    name: str
    summary: Summary
    results: Sequence[tuple[str, Mapping[str, FigureSummary]]]
    plays: PlaysSummary | None
    """What its plays came to, if it trained nothing."""
    blame: BlameCounts
    agent_columns: Sequence[AgentColumn]
    """Those that are known of any of its agents."""
    charts: Sequence[Chart]
    drift: DriftHistory
    warnings: Sequence[RaisedWarning]
    gap_charts: Sequence[Chart]
    prompts: Sequence[PromptHistory]
    highlights: Sequence[Highlight]
    provenance: Provenance
    audit: Sequence[VerdictRow] | None
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
        loader=PackageLoader("mappa.look.view"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        finalize=finalize,
    )
    environment.filters["cut"] = _truncate
    environment.globals["problem_count"] = format_problem_count
    sections = [_build_section(folder, summary, audit=audit) for folder, summary in runs]
    page = environment.get_template("report.html").render(sections=sections, how=SELECTION_NOTE)
    write_atomic(path, page)
    return path


def _build_section(folder: Path, summary: Summary, *, audit: bool) -> RunSection:
    with RunReader(folder) as reader:
        iterations = list(reader.iterations)
        evaluations = list(reader.evaluations)
        drift = read_drift(reader)
        summary, plays = with_counted_verdicts(summary, reader), summarize_plays(reader)
        metric = read_metric(reader, summary) if plays is None else plays.metric
        _, counted = latest_counted(reader, limit=MAX_VERDICTS)
        return RunSection(
            name=folder.resolve().name,
            summary=summary,
            plays=plays,
            blame=count_failures(counted, metric) if plays is None else plays.blame,
            agent_columns=[
                column
                for column in AGENT_COLUMNS
                if any(column.value(figures) is not None for figures in summary.agents.values())
            ],
            results=[] if summary.eval is None else tabulate_results(summary.eval),
            charts=build_training_charts(summary, iterations, evaluations) if iterations or evaluations else [],
            drift=drift,
            warnings=reader.warnings,
            gap_charts=build_gap_charts(drift),
            prompts=[one for one in build_prompt_histories(reader) if one.changes],
            highlights=select_highlights(reader, metric),
            provenance=read_provenance(reader, iterations),
            audit=tuple(reader.verdicts) if audit else None,
        )


def _truncate(text: str) -> str:
    """Shorten a text of an agent in its middle."""
    return cut_middle(text.encode(errors="replace").decode(), MAX_CHARACTERS)


def tabulate_results(found: EvalSummary) -> list[tuple[str, Mapping[str, FigureSummary]]]:
    """Tabulate the metric, then each further figure: over all tasks and by stratum."""
    parts: dict[str, StratumSummary] = {"all": found, **found.strata}
    further = [(name, {part: one.figures[name] for part, one in parts.items()}) for name in found.figures]
    return [(found.metric, parts), *further]


def build_training_charts(
    summary: Summary, iterations: Iterations, evaluations: Sequence[EvaluationRow]
) -> list[Chart]:
    """Build charts over iterations: accuracy, further figures if there are any, and each agent's score."""
    end = last_iteration(iterations)
    selection = [one for one in evaluations if one.part == "selection"]
    latest = {one.iteration: one.interval for one in selection or evaluations}
    held_out = "the tasks that the checkpoint was chosen on" if selection else "held-out problems"
    strata = collect_names(
        iterations, lambda report: (name for name, one in report.strata.items() if one.accuracy is not None)
    )
    figures = collect_names(iterations, lambda report: report.outcomes.figures)
    accuracy = build_chart(
        f"Accuracy: training rollouts (lines) and {held_out} (points, 95 % interval){_say_overflows(iterations)}",
        {
            "all": metric_points(iterations, lambda report: report.outcomes.accuracy),
            **(points_by_name(iterations, strata, _stratum_accuracy) if len(strata) > 1 else {}),
        },
        x_high=end,
        y_high=1.0,
        y_labels=PERCENT_TICKS,
        intervals=[
            (number, found.mean, found.low, found.high) for number, found in sorted(latest.items()) if found is not None
        ],
    )
    further = build_chart(
        "Further figures of training rollouts",
        points_by_name(iterations, figures, lambda report, name: report.outcomes.figures.get(name)),
        x_high=end,
        y_high=1.0,
        y_labels=PERCENT_TICKS,
    )
    scores = build_chart(
        "Score of the coach per agent (mean points of an action, 0-10)",
        points_by_name(iterations, summary.agents, lambda report, agent: agent_figure(report, agent, "score")),
        x_high=end,
        y_high=MAX_SCORE,
        y_labels=SCORE_TICKS,
    )
    return [accuracy, *([further] if figures else []), scores]


def _say_overflows(iterations: Iterations) -> str:
    """Say how many training rollouts outgrew the window, and how they count; nothing without any."""
    overflowed = sum(report.overflowed for report in iterations)
    unsolved = sum(report.outcomes.unsolved for report in iterations)
    if not overflowed:
        return ""
    return f"; {overflowed:,} rollouts outgrew the window, {unsolved:,} of them count as 0, the others not at all"


def _stratum_accuracy(report: IterationReport, stratum: str) -> float | None:
    return report.strata[stratum].accuracy if stratum in report.strata else None


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
        f"{stratifier}: points for {stratum} against the rest, beyond merit ({phase} verdicts)",
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
