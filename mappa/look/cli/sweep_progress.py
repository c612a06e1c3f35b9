"""Progress of a sweep, read from the folders of its runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from mappa.cli.console import Console, Name
from mappa.cli.formats import format_duration, format_percent
from mappa.cli.tables import columns_table
from mappa_core import RunError

if TYPE_CHECKING:
    from mappa.look.sweep import Sweep, SweepRun, SweepRunner

POLL_S = 2.0
"""Seconds between two looks at the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationProgress:
    """How far a run is. `accuracy` is that of its last iteration's rollouts, and `seconds` the mean of an iteration;
    None before there is one."""

    iteration: int
    iterations: int
    accuracy: float | None = None
    seconds: float | None = None

    @property
    def left(self) -> float | None:
        """Seconds until its last iteration, if it goes on as before."""
        return None if self.seconds is None else self.seconds * (self.iterations - self.iteration)


def read_progress(folder: Path) -> IterationProgress | None:
    """Read how far the run in a folder is; None before it has begun."""
    from mappa.runs import RunReader

    try:
        with RunReader(folder) as reader:
            iterations, reports = int(reader.settings["train.iterations"]), list(reader.iterations)
    except RunError:
        return None
    if not reports:
        return IterationProgress(iteration=0, iterations=iterations)
    return IterationProgress(
        iteration=reports[-1].iteration,
        iterations=iterations,
        accuracy=reports[-1].outcomes.accuracy,
        seconds=sum(report.total_seconds for report in reports) / len(reports),
    )


def seconds_left(sweep: Sweep, progress: Mapping[str, IterationProgress], jobs: int) -> float | None:
    """Seconds until a sweep is done, with the `progress` of runs by folder, if runs that have not begun take as long as
    the others do; None before an iteration is done."""
    whole = [one.seconds * one.iterations for one in progress.values() if one.seconds is not None]
    if not whole:
        return None
    typical = sum(whole) / len(whole)
    runs = [run for run in sweep.runs if run.status in ("waiting", "running", "interrupted")]
    known = (progress[run.folder].left if run.folder in progress else None for run in runs)
    left = [typical if seconds is None else seconds for seconds in known]
    return max([sum(left) / jobs, *left], default=0.0)


def run_status_line(sweep: Sweep, run: SweepRun) -> str:
    """Format the status of a run that started or ended as one line."""
    done = f"{len(sweep.runs_with_status('done'))} of {len(sweep.runs)} done"
    error = "" if run.error is None else f": {run.error}"
    return f"{run.folder} ({sweep.setting(run)}, seed {run.seed}) {run.status}{error}  [{done}]"


class SweepDisplay(ABC):
    """Shows what becomes of the runs of a sweep; the base of those that print."""

    def __init__(self, console: Console, jobs: int) -> None:
        self.console = console
        self.jobs = jobs
        self.progress: dict[str, IterationProgress] = {}
        """How far the runs are that have begun, by folder."""

    def on_change(self, sweep: Sweep, run: SweepRun) -> None:
        """A run has started or ended."""
        self.print(run_status_line(sweep, run))

    def on_progress(self, sweep: Sweep, run: SweepRun, progress: IterationProgress) -> None:
        """A run has come further."""
        self.progress[run.folder] = progress
        self.show(sweep, run)

    @abstractmethod
    def show(self, sweep: Sweep, run: SweepRun) -> None:
        """Show the progress of a run."""

    def print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def describe_left(self, sweep: Sweep) -> str:
        left = seconds_left(sweep, self.progress, self.jobs)
        return "" if left is None else f", left {format_duration(left)}"


class QuietDisplay(SweepDisplay):
    """Shows nothing."""

    def on_change(self, sweep: Sweep, run: SweepRun) -> None:
        """Nothing is shown."""

    def show(self, sweep: Sweep, run: SweepRun) -> None:
        """Nothing is shown."""


class LineDisplay(SweepDisplay):
    """Prints a line for every iteration that is seen."""

    def show(self, sweep: Sweep, run: SweepRun) -> None:
        one = self.progress[run.folder]
        if one.seconds is not None:
            left = "" if one.left is None else f"left {format_duration(one.left)}"
            count = f"iteration {one.iteration}/{one.iterations}  accuracy {format_percent(one.accuracy)}  {left}"
            self.print(f"{run.folder} ({sweep.setting(run)})  {count}  [sweep{self.describe_left(sweep)}]")


class LiveDisplay(SweepDisplay):
    """A table with a row for every run that is under way, and how far the sweep is."""

    def __init__(self, console: Console, jobs: int) -> None:
        super().__init__(console, jobs)
        self._sweep: Sweep | None = None
        self.live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)

    def on_change(self, sweep: Sweep, run: SweepRun) -> None:
        self._sweep = sweep
        if run.status != "running":
            super().on_change(sweep, run)

    def show(self, sweep: Sweep, run: SweepRun) -> None:
        self._sweep = sweep

    def _render(self) -> RenderableType:
        sweep = self._sweep
        if sweep is None:
            return Text("starting")
        table = columns_table("setting", "seed", "iteration", "accuracy", "left", text=1)
        for run in sweep.runs_with_status("running"):
            table.add_row(Name(sweep.setting(run)), str(run.seed), *_cells(self.progress.get(run.folder)))
        done = f"{len(sweep.runs_with_status('done'))} of {len(sweep.runs)} runs done"
        return Group(table, Text(f"{done}{self.describe_left(sweep)}", style="dim"))


def _cells(one: IterationProgress | None) -> tuple[str, str, str]:
    if one is None:
        return "starting", "-", "-"
    left = "-" if one.left is None else format_duration(one.left)
    return f"{one.iteration}/{one.iterations}", format_percent(one.accuracy), left


@contextmanager
def open_display(console: Console, jobs: int, *, quiet: bool) -> Iterator[SweepDisplay]:
    """Choose the display for the output: a live table on a terminal, plain lines elsewhere, or none."""
    if quiet:
        yield QuietDisplay(console, jobs)
    elif console.is_terminal:
        display = LiveDisplay(console, jobs)
        with display.live:
            yield display
    else:
        yield LineDisplay(console, jobs)


@asynccontextmanager
async def watch_runs(runner: SweepRunner, folder: Path, display: SweepDisplay) -> AsyncIterator[None]:
    """Look at the runs of `runner` that are under way, every `POLL_S` seconds, and show those that came further."""
    watcher = asyncio.create_task(_watch(runner, folder, display))
    try:
        yield
    finally:
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher


async def _watch(runner: SweepRunner, folder: Path, display: SweepDisplay) -> None:
    while True:
        await asyncio.sleep(POLL_S)
        for run in runner.sweep.runs_with_status("running"):
            progress = await asyncio.to_thread(read_progress, folder / run.folder)
            if progress is not None and progress != display.progress.get(run.folder):
                display.on_progress(runner.sweep, run, progress)
