"""What a run says while it goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from mappa_core.cli.asking import announce, announce_extra, announce_sandboxes
from mappa_core.credit.demonstrations import USED
from mappa_core.evaluation.heldout import Evaluation
from mappa_core.protocols import Provider, Split
from mappa_core.records import Sandbox, Trajectory
from mappa_core.rollout.counterfactual import Extra
from mappa_core.store.summary import AgentSummary, Interval
from mappa_core.training.listener import Listener, Silent
from mappa_core.training.report import IterationReport

PARTS = {"all": "held-out", "report": "held-out, reported,", "selection": "held-out, to choose by,"}
"""What the tasks of each part of an evaluation are called."""


class Lines(Silent):
    """A plain line per evaluation and iteration."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._pace = Pace()

    def asking(self, providers: Sequence[Provider]) -> None:
        announce(self._console, providers)

    def sandboxed(self, sandboxes: Mapping[str, Sandbox]) -> None:
        announce_sandboxes(self._console, sandboxes)

    def adding(self, extra: Extra) -> None:
        announce_extra(self._console, extra)

    def evaluated(self, evaluation: Evaluation) -> None:
        self._console.print(evaluation_line(evaluation), soft_wrap=True, highlight=False)

    def iteration_finished(self, report: IterationReport) -> None:
        left = self._pace.left(report)
        scores = "  ".join(f"{agent} {number(figures.score, '.1f')}" for agent, figures in report.agents.items())
        count = f"iteration {report.iteration}/{report.iterations}"
        self._console.print(
            f"{count}  {headline(report)}  score: {scores}  left {clock(left)}",
            soft_wrap=True,
            highlight=False,
        )
        show_alarms(self._console, report)


class Discreet(Silent):
    """Says only, on standard error, that data leaves, and what is not kept from programs."""

    def asking(self, providers: Sequence[Provider]) -> None:
        announce(Console(stderr=True), providers)

    def sandboxed(self, sandboxes: Mapping[str, Sandbox]) -> None:
        announce_sandboxes(Console(stderr=True), sandboxes, quiet=True)


class Dashboard(Silent):
    """A live display: bars for the run and for what is under way, and a table of agents."""

    def __init__(self, console: Console, iterations: int) -> None:
        self._bars = Progress(*_columns(), console=console)
        self._run = self._bars.add_task("iterations", total=iterations)
        self._now = self._bars.add_task("rollouts", total=None)
        self._console = console
        self._live = Live(self._bars, console=console, refresh_per_second=4, transient=True)

    def asking(self, providers: Sequence[Provider]) -> None:
        announce(self._console, providers)

    def sandboxed(self, sandboxes: Mapping[str, Sandbox]) -> None:
        announce_sandboxes(self._console, sandboxes)

    def adding(self, extra: Extra) -> None:
        announce_extra(self._console, extra)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the display on screen."""
        with self._live:
            yield

    def collecting(self, split: Split, done: int, rollouts: int) -> None:
        what = "held-out" if split == "eval" else "rollouts"
        self._bars.reset(self._now, total=rollouts, description=what)
        self._bars.update(self._run, completed=done)

    def rollout_finished(self, trajectory: Trajectory) -> None:
        self._bars.advance(self._now)

    def evaluated(self, evaluation: Evaluation) -> None:
        self._console.print(evaluation_line(evaluation), highlight=False)

    def iteration_finished(self, report: IterationReport) -> None:
        self._bars.update(self._run, completed=report.iteration)
        self._live.update(Group(self._bars, agents_table(report.agents), headline(report)))
        show_alarms(self._console, report)


@contextmanager
def listening(console: Console, iterations: int, *, quiet: bool) -> Iterator[Listener]:
    """The listener that fits where the output goes: a live display, plain lines, or next to nothing."""
    if quiet:
        yield Discreet()
    elif console.is_terminal:
        dashboard = Dashboard(console, iterations)
        with dashboard.shown():
            yield dashboard
    else:
        yield Lines(console)


class Count:
    """A bar of rollouts, for a single evaluation."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task = bars.add_task("rollouts", total=None)

    def starting(self, rollouts: int) -> None:
        self._bars.update(self._task, total=rollouts)

    def rollout_finished(self, trajectory: Trajectory) -> None:
        self._bars.advance(self._task)


@contextmanager
def counting(console: Console, *, quiet: bool) -> Iterator[Count]:
    """A bar on a terminal; nothing elsewhere."""
    with Progress(*_columns(), console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        yield Count(bars)


class Pace:
    """Seconds left, from the pace of the iterations so far."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first: int | None = None

    def left(self, report: IterationReport) -> float:
        if self._first is None:
            self._first = report.iteration - 1
        done = report.iteration - self._first
        return (time.perf_counter() - self._started) / done * (report.iterations - report.iteration)


def _columns() -> tuple[ProgressColumn, ...]:
    return TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()


def agents_table(agents: Mapping[str, AgentSummary]) -> Table:
    """One row per agent."""
    table = Table(box=None, header_style="dim")
    for name in ("", "score", "tool success", "turns", "tokens/action"):
        table.add_column(name, justify="right" if name else "left")
    for agent, figures in agents.items():
        table.add_row(
            agent,
            number(figures.score, ".2f"),
            percent(figures.tool_success),
            number(figures.turns, ".2f"),
            number(figures.length, ".1f"),
        )
    return table


def show_alarms(console: Console, report: IterationReport) -> None:
    """A line per alarm of the coach's drift, and per warning of a policy's health."""
    for warning in report.warnings:
        told = f"health, {warning.rule}: {warning}"
        console.print(told, style="yellow", soft_wrap=True, highlight=False, markup=False)
    for alarm in report.drift.alarms:
        console.print(f"coach drift, {alarm.kind}: {alarm}", style="yellow", soft_wrap=True, highlight=False)


def headline(report: IterationReport) -> str:
    """Accuracy, speed, calls and failures of an iteration in a few words."""
    seconds = sum(report.seconds.values())
    words = [
        f"accuracy {percent(report.outcomes.accuracy)}",
        f"{report.tokens / seconds:,.0f} tok/s",
        f"{report.coach.total.verdicts} verdicts",
        f"{seconds:.1f} s",
    ]
    if report.coach.total.usage is not None:
        words.append("cost unknown" if report.coach.total.usd is None else f"${report.coach.total.usd:.4f}")
    for name in ("abstained", "failed", "replayed"):
        if count := getattr(report.coach.total, name):
            words.append(f"{count} {name}")
    failed = sum(report.failed_rollouts.values())
    if failed:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.failed_rollouts.items())
        words.append(f"{failed} rollouts failed ({kinds})")
    words += tool_faults(report.lost, report.calls_again)
    if report.corrections:
        words.append(f"{report.corrections[USED]} of {sum(report.corrections.values())} corrections")
    return "  ".join(words)


def tool_faults(lost: int, calls_again: int) -> list[str]:
    """What failures of tools came to, in a few words; none where there were none."""
    told = {"rollouts lost to failures of tools": lost, "calls of tools made again": calls_again}
    return [f"{count} {what}" for what, count in told.items() if count]


def evaluation_line(evaluation: Evaluation, played: str | None = None) -> str:
    """One line on an evaluation: the metric and the further figures with their intervals, and what failed. `played`
    says of what, where it is not the held-out problems after some iterations."""
    shares = ", ".join(f"{name} {share(evaluation.of(name).interval)}" for name in evaluation.measures)
    what = f"{PARTS[evaluation.part]} after {evaluation.iteration} iterations" if played is None else played
    line = f"{what}: {shares} over {counted(len(evaluation.problems), evaluation.cluster_count)}"
    if evaluation.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in evaluation.failures.items())
        line += f"; not finished: {kinds}"
    return line


def counted(problems: int, clusters: int | None) -> str:
    """So many problems, and how many clusters of them the intervals go by."""
    return f"{problems} problems" if clusters is None else f"{problems} problems in {clusters} clusters"


def share(value: Interval | None, *, sign: bool = False) -> str:
    """A share with its 95 % interval, in per cent; a gain has its sign."""
    if value is None:
        return "-"
    spec = "+.1f" if sign else ".1f"
    if value.low is None or value.high is None:
        return f"{100 * value.mean:{spec}} %"
    return f"{100 * value.mean:{spec}} % [{100 * value.low:{spec}}, {100 * value.high:{spec}}]"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
