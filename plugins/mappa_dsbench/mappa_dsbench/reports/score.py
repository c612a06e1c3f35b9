"""How the rollouts of a stored run were graded: by task, by stratum, and as DSBench sums up. Nothing is written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from mappa_core import Reader, RunError, Split, ToolError, TrajectoryRow
from mappa_dsbench.grading.grade import completion_rate, relative_performance_gap
from mappa_dsbench.outcome import REJECTED
from mappa_dsbench.table import Table, table_in

PAGE = 1000
SHOWN = 5

UNFINISHED = "unfinished"
"""Stands among the reasons for rollouts that ended in an error of the team."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A stored rollout that ended, and what is known of its task."""

    row: TrajectoryRow
    table: Table

    @property
    def finished(self) -> bool:
        """Whether the team came to its end."""
        return self.row.error is None

    @property
    def lost(self) -> bool:
        """Whether the machinery failed, which is nobody's doing."""
        return self.row.error is not None and self.row.error.kind == ToolError.__name__

    def figure(self, name: str) -> float:
        """A figure of the outcome; nothing is reached where the team did not finish."""
        return self.row.outcome[name] if self.finished else 0.0

    def raw(self) -> float | None:
        return self.row.outcome.get("raw")

    def reasons(self) -> Iterable[str]:
        if not self.finished:
            yield UNFINISHED
        yield from (key.removeprefix(REJECTED) for key in self.row.outcome if key.startswith(REJECTED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What some rollouts came to: of one task, of one stratum or all.

    Shares lie from 0 to 1. `fair_dummy` and `fair_paper` are means in which a failure counts 0 and perfection 1, by
    either mode; `fair_paper` is of the tasks for which the paper has a value, None where there is none. `reasons`
    counts why submissions were rejected. `flagged` rollouts scored far above the reference model.
    """

    rollouts: int
    success: float
    fair_dummy: float
    fair_paper: float | None
    reasons: dict[str, int]
    flagged: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStanding(Standing):
    """One task. `raw` is the mean of its metric over the submissions that were graded, None where none was; `dummy` and
    `paper` are the same mean over all rollouts, with what takes the place of a failure by either mode."""

    task: str
    stratum: str
    metric: str
    raw: float | None
    dummy: float
    paper: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What DSBench reports, over the `tasks` for which it has a baseline and a best score: the share that has a score,
    and how far the scores are on the way from one to the other; means over the samples."""

    tasks: int
    completion_rate: float
    relative_performance_gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A stored run's grades after `iteration` iterations. `lost` rollouts failed by the machinery and are left out."""

    split: Split
    iteration: int
    lost: int
    total: Standing
    strata: dict[str, Standing]
    tasks: tuple[TaskStanding, ...]
    published: Published | None

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}


def scored(run: Path, split: Split, iteration: int | None = None) -> Scored:
    """The grades of a split's rollouts in one iteration, the last that has any where none is named.

    Raises:
        RunError: the folder is no run, or has no such rollouts.
        TaskError: the run is not of DSBench's tasks.
    """
    with Reader(run) as reader:
        rows = list(_ended(reader, split, iteration))
        if not rows:
            which = "" if iteration is None else f" in iteration {iteration}"
            raise RunError(f"{run}: no rollouts of the split {split!r} ended{which}")
        last = max(row.iteration for row in rows)
        rollouts = list(_rollouts(reader, [row for row in rows if row.iteration == last]))
    kept = [one for one in rollouts if not one.lost]
    if not kept:
        raise RunError(f"{run}: all {len(rollouts)} rollouts of iteration {last} were lost to failures of tools")
    return _scored(split, last, len(rollouts) - len(kept), kept)


def _ended(reader: Reader, split: Split, iteration: int | None) -> Iterator[TrajectoryRow]:
    offset = 0
    while page := reader.trajectories(split, iteration, limit=PAGE, offset=offset):
        yield from (row for row in page if row.status != "open")
        offset += PAGE


def _rollouts(reader: Reader, rows: Iterable[TrajectoryRow]) -> Iterator[Rollout]:
    tables: dict[str, Table] = {}
    for row in rows:
        if row.task not in tables:
            tables[row.task] = table_in(reader.trajectory(row.id).task)
        yield Rollout(row, tables[row.task])


def _scored(split: Split, iteration: int, lost: int, rollouts: Sequence[Rollout]) -> Scored:
    by_task: dict[str, list[Rollout]] = {}
    by_stratum: dict[str, list[Rollout]] = {}
    for one in rollouts:
        by_task.setdefault(one.row.task, []).append(one)
        by_stratum.setdefault(one.row.stratum, []).append(one)
    return Scored(
        split=split,
        iteration=iteration,
        lost=lost,
        total=Standing(**_standing(rollouts)),
        strata={name: Standing(**_standing(by_stratum[name])) for name in sorted(by_stratum)},
        tasks=tuple(_task(by_task[name]) for name in sorted(by_task)),
        published=_as_published(rollouts),
    )


def _standing(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    paper = [one.figure("fair_paper") for one in rollouts if one.table.anchors.paper is not None]
    return {
        "rollouts": len(rollouts),
        "success": fmean(one.figure("success") for one in rollouts),
        "fair_dummy": fmean(one.figure("fair_dummy") for one in rollouts),
        "fair_paper": fmean(paper) if paper else None,
        "reasons": dict(Counter(reason for one in rollouts for reason in one.reasons()).most_common()),
        "flagged": tuple(one.row.id for one in rollouts if one.row.outcome.get("incredible")),
    }


def _task(rollouts: Sequence[Rollout]) -> TaskStanding:
    table = rollouts[0].table
    graded = [raw for one in rollouts if (raw := one.raw()) is not None]
    failed = len(rollouts) - len(graded)

    def replaced(by: float) -> float:
        return (math.fsum(graded) + failed * by) / len(rollouts)

    paper = table.anchors.paper
    return TaskStanding(
        task=table.problem.name,
        stratum=table.problem.kind,
        metric=table.problem.metric,
        raw=fmean(graded) if graded else None,
        dummy=replaced(table.anchors.dummy),
        paper=None if paper is None else replaced(paper),
        **_standing(rollouts),
    )


def _as_published(rollouts: Sequence[Rollout]) -> Published | None:
    """Of each sample the tasks that were not lost."""
    samples: dict[int, dict[str, Rollout]] = {}
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
    return Published(
        tasks=len(set().union(*samples.values())), completion_rate=fmean(rates), relative_performance_gap=fmean(gaps)
    )


def show(scored: Scored) -> None:
    """Print tables for people."""
    console = Console()
    lost = f", {scored.lost} more lost by the machinery" if scored.lost else ""
    rollouts = f"{scored.total.rollouts} rollouts{lost}"
    console.print(f"{scored.split}, after {scored.iteration} iterations: {rollouts}", highlight=False)
    console.print(_by_stratum(scored))
    console.print(_by_task(scored))
    if scored.total.reasons:
        console.print(f"rejected: {_counted(scored.total.reasons)}", highlight=False)
    if scored.total.flagged:
        console.print(
            f"{len(scored.total.flagged)} rollouts scored far above the reference model; look at how they did it: "
            f"{', '.join(map(escape, scored.total.flagged[:SHOWN]))}",
            style="yellow",
            highlight=False,
        )
    if (published := scored.published) is not None:
        console.print(
            f"as DSBench reports, {published.tasks} tasks: task completion rate {published.completion_rate:.1%}, "
            f"RPG {published.relative_performance_gap:.1%}",
            highlight=False,
        )


def _by_stratum(scored: Scored) -> Grid:
    grid = _grid("stratum", "rollouts", "success", "fair (dummy)", "fair (paper)")
    for name, one in {"all": scored.total, **scored.strata}.items():
        grid.add_row(name, str(one.rollouts), f"{one.success:.1%}", f"{one.fair_dummy:.1%}", _share(one.fair_paper))
    return grid


def _by_task(scored: Scored) -> Grid:
    grid = _grid("task", "metric", "success", "raw", "or dummy", "or paper", "fair (dummy)")
    for one in scored.tasks:
        raws = (_number(value) for value in (one.raw, one.dummy, one.paper))
        shares = (f"{one.success:.0%}", *raws, f"{one.fair_dummy:.1%}")
        grid.add_row(escape(one.task), one.metric, *shares)
    return grid


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _grid(*names: str) -> Grid:
    grid = Grid(box=None, header_style="bold")
    for name in names:
        left = name in ("stratum", "task", "metric")
        grid.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=left)
    return grid


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
