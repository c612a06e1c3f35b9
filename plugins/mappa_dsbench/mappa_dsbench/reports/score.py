"""Reports the grades of a stored run: by task, by stratum, and as DSBench's own metrics. Nothing is written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table as Grid

from mappa.commands import Console, escape
from mappa.runs import RunReader, TrajectoryRow
from mappa_core import RunError, Split, ToolError
from mappa_dsbench.grading.grade import completion_rate, relative_performance_gap
from mappa_dsbench.outcome import REJECTED_PREFIX
from mappa_dsbench.table import Table, table_of_task

MAX_SHOWN_ROLLOUTS = 5

UNFINISHED = "unfinished"
"""The reason of rollouts that ended in an error of the team."""


@dataclass(frozen=True, slots=True)
class GradedRollout:
    """A stored rollout that ended, and the table of its task."""

    row: TrajectoryRow
    table: Table

    @property
    def finished(self) -> bool:
        """Whether the team finished."""
        return self.row.error is None

    @property
    def lost(self) -> bool:
        """Whether the machinery failed, which is not the team's fault."""
        return self.row.error is not None and self.row.error.kind == ToolError.__name__

    def figure(self, name: str) -> float:
        """Return a figure of the outcome; 0 where the team did not finish."""
        return self.row.outcome[name] if self.finished else 0.0

    def raw(self) -> float | None:
        return self.row.outcome.get("raw")

    def reasons(self) -> Iterable[str]:
        if not self.finished:
            yield UNFINISHED
        yield from (key.removeprefix(REJECTED_PREFIX) for key in self.row.outcome if key.startswith(REJECTED_PREFIX))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSummary:
    """The scores of some rollouts: of one task, of one stratum or all.

    Shares are from 0 to 1. `fair_dummy` and `fair_paper` are means in which a failure counts 0 and perfection 1, in
    either mode; `fair_paper` covers the tasks for which the paper has a value, None where there is none. `reasons`
    counts the reasons of rejections. `flagged` rollouts scored far above the reference model.
    """

    rollouts: int
    success: float
    fair_dummy: float
    fair_paper: float | None
    reasons: dict[str, int]
    flagged: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScoreSummary(ScoreSummary):
    """The scores of one task. `raw` is the mean of its metric over the graded submissions, None where none was graded;
    `dummy` and `paper` are the mean over all rollouts, with the replacement of failures in either mode."""

    task: str
    stratum: str
    metric: str
    raw: float | None
    dummy: float
    paper: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedMetrics:
    """DSBench's own metrics over the `tasks` for which it has a baseline and a best score: task completion rate and
    relative performance gap, averaged over the samples."""

    tasks: int
    completion_rate: float
    relative_performance_gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreReport:
    """A stored run's grades after `iteration` iterations. `lost` rollouts failed in the machinery and are left out."""

    split: Split
    iteration: int
    lost: int
    total: ScoreSummary
    strata: dict[str, ScoreSummary]
    tasks: tuple[TaskScoreSummary, ...]
    published: PublishedMetrics | None

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}


def score_run(run: Path, split: Split, iteration: int | None = None) -> ScoreReport:
    """Report the grades of a split's rollouts in one iteration, by default the last one that has any.

    Raises:
        RunError: the folder is no run, or has no such rollouts.
        TaskError: the run is not of DSBench's tasks.
    """
    with RunReader(run) as reader:
        rows = list(_ended_rows(reader, split, iteration))
        if not rows:
            which = "" if iteration is None else f" in iteration {iteration}"
            raise RunError(f"{run}: no rollouts of the split {split!r} ended{which}")
        last = max(row.iteration for row in rows)
        rollouts = list(_graded_rollouts(reader, [row for row in rows if row.iteration == last]))
    kept = [one for one in rollouts if not one.lost]
    if not kept:
        raise RunError(f"{run}: all {len(rollouts)} rollouts of iteration {last} were lost to failures of tools")
    return _build_report(split, last, len(rollouts) - len(kept), kept)


def _ended_rows(reader: RunReader, split: Split, iteration: int | None) -> Iterator[TrajectoryRow]:
    return (row for row in reader.trajectories.where(split=split, iteration=iteration) if row.status != "open")


def _graded_rollouts(reader: RunReader, rows: Iterable[TrajectoryRow]) -> Iterator[GradedRollout]:
    tables: dict[str, Table] = {}
    for row in rows:
        if row.task not in tables:
            tables[row.task] = table_of_task(reader.trajectory(row.id).task)
        yield GradedRollout(row, tables[row.task])


def _build_report(split: Split, iteration: int, lost: int, rollouts: Sequence[GradedRollout]) -> ScoreReport:
    by_task: dict[str, list[GradedRollout]] = {}
    by_stratum: dict[str, list[GradedRollout]] = {}
    for one in rollouts:
        by_task.setdefault(one.row.task, []).append(one)
        by_stratum.setdefault(one.row.stratum, []).append(one)
    return ScoreReport(
        split=split,
        iteration=iteration,
        lost=lost,
        total=ScoreSummary(**_summarize(rollouts)),
        strata={name: ScoreSummary(**_summarize(by_stratum[name])) for name in sorted(by_stratum)},
        tasks=tuple(_summarize_task(by_task[name]) for name in sorted(by_task)),
        published=_published_metrics(rollouts),
    )


def _summarize(rollouts: Sequence[GradedRollout]) -> dict[str, Any]:
    paper = [one.figure("fair_paper") for one in rollouts if one.table.anchors.paper is not None]
    return {
        "rollouts": len(rollouts),
        "success": fmean(one.figure("success") for one in rollouts),
        "fair_dummy": fmean(one.figure("fair_dummy") for one in rollouts),
        "fair_paper": fmean(paper) if paper else None,
        "reasons": dict(Counter(reason for one in rollouts for reason in one.reasons()).most_common()),
        "flagged": tuple(one.row.id for one in rollouts if one.row.outcome.get("incredible")),
    }


def _summarize_task(rollouts: Sequence[GradedRollout]) -> TaskScoreSummary:
    table = rollouts[0].table
    graded = [raw for one in rollouts if (raw := one.raw()) is not None]
    failed = len(rollouts) - len(graded)

    def replaced(by: float) -> float:
        return (math.fsum(graded) + failed * by) / len(rollouts)

    paper = table.anchors.paper
    return TaskScoreSummary(
        task=table.problem.name,
        stratum=table.problem.kind,
        metric=table.problem.metric,
        raw=fmean(graded) if graded else None,
        dummy=replaced(table.anchors.dummy),
        paper=None if paper is None else replaced(paper),
        **_summarize(rollouts),
    )


def _published_metrics(rollouts: Sequence[GradedRollout]) -> PublishedMetrics | None:
    """Compute DSBench's metrics per sample, over the tasks that were not lost."""
    samples: dict[int, dict[str, GradedRollout]] = {}
    for one in rollouts:
        if one.table.published is not None:
            samples.setdefault(one.row.sample, {})[one.row.task] = one
    if not samples:
        return None
    rates, gaps = [], []
    for tasks in samples.values():
        scores = {name: one.raw() for name, one in tasks.items()}
        bounds = {name: one.table.published for name, one in tasks.items() if one.table.published is not None}
        rates.append(completion_rate(scores, bounds))
        gaps.append(relative_performance_gap(scores, bounds))
    return PublishedMetrics(
        tasks=len(set().union(*samples.values())), completion_rate=fmean(rates), relative_performance_gap=fmean(gaps)
    )


def print_scores(scored: ScoreReport) -> None:
    """Print the report as tables."""
    console = Console()
    lost = f", {scored.lost} more lost by the machinery" if scored.lost else ""
    rollouts = f"{scored.total.rollouts} rollouts{lost}"
    console.print(f"{scored.split}, after {scored.iteration} iterations: {rollouts}", highlight=False)
    console.print(_stratum_grid(scored))
    console.print(_task_grid(scored))
    if scored.total.reasons:
        console.print(f"rejected: {_format_counts(scored.total.reasons)}", highlight=False)
    if scored.total.flagged:
        console.print(
            f"{len(scored.total.flagged)} rollouts scored far above the reference model; look at how they did it: "
            f"{', '.join(map(escape, scored.total.flagged[:MAX_SHOWN_ROLLOUTS]))}",
            style="yellow",
            highlight=False,
        )
    if (published := scored.published) is not None:
        console.print(
            f"as DSBench reports, {published.tasks} tasks: task completion rate {published.completion_rate:.1%}, "
            f"RPG {published.relative_performance_gap:.1%}",
            highlight=False,
        )


def _stratum_grid(scored: ScoreReport) -> Grid:
    grid = _grid("stratum", "rollouts", "success", "fair (dummy)", "fair (paper)")
    for name, one in {"all": scored.total, **scored.strata}.items():
        grid.add_row(
            name, str(one.rollouts), f"{one.success:.1%}", f"{one.fair_dummy:.1%}", _format_share(one.fair_paper)
        )
    return grid


def _task_grid(scored: ScoreReport) -> Grid:
    grid = _grid("task", "metric", "success", "raw", "or dummy", "or paper", "fair (dummy)")
    for one in scored.tasks:
        raws = (_format_number(value) for value in (one.raw, one.dummy, one.paper))
        shares = (f"{one.success:.0%}", *raws, f"{one.fair_dummy:.1%}")
        grid.add_row(escape(one.task), one.metric, *shares)
    return grid


def _format_counts(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _grid(*names: str) -> Grid:
    grid = Grid(box=None, header_style="bold")
    for name in names:
        left = name in ("stratum", "task", "metric")
        grid.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=left)
    return grid


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
