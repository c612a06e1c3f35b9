"""Progress of a running command: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from mappa.cli.announce import announce_counterfactuals, announce_providers, announce_sandboxes
from mappa.cli.console import Console
from mappa.cli.formats import describe_tool_faults, format_count, format_duration, format_or_dash, format_percent
from mappa.cli.result_tables import evaluation_line
from mappa.cli.tables import agents_table
from mappa.evaluation.heldout import Evaluation
from mappa.rollout.counterfactual import CounterfactualBound
from mappa.store.iteration_report import IterationReport
from mappa.training.listener import Listener, LoopPhase
from mappa_core.credit.demonstrations import USED
from mappa_core.protocols import Provider, Split
from mappa_core.records import Sandbox, Step, Trajectory, Verdict
from mappa_core.redaction import clean_line

PHASE_LABELS: Mapping[LoopPhase, str] = {
    "evaluate": "evaluating", "collect": "collecting", "judge": "judging", "counterfactuals": "playing counterfactuals",
    "credit": "learning", "score": "learning", "update": "learning", "publish": "publishing",
    "prompts": "improving prompts", "save": "saving",
}  # fmt: skip

QUIET_SECONDS = 60.0
"""Seconds without a line after which one says how far a run is."""


class RunProgress(Listener):
    """Counts the rollouts, actions and verdicts that a run waits for. A display overrides `show`."""

    def __init__(self) -> None:
        self.phase: LoopPhase | None = None
        """What the loop does; None before its first phase."""
        self.done = self.rollouts = self.finished = self.actions = self.verdicts = 0
        self.started = time.perf_counter()

    def show(self) -> None:
        """Called whenever the phase or a count has changed."""

    def describe(self) -> str:
        """Describe the phase, its counts and the time since the start in one line."""
        elapsed = format_duration(time.perf_counter() - self.started)
        if self.phase is None:
            return f"starting, {elapsed}"
        counts = [f"{self.finished}/{self.rollouts} rollouts", format_count(self.actions, "action")]
        counts += [format_count(self.verdicts, "verdict")] * bool(self.verdicts)
        between = self.phase in ("evaluate", "prompts", "save")
        place = f"after iteration {self.done}" if between else f"iteration {self.done + 1}"
        return f"{PHASE_LABELS[self.phase]}, {place}: {', '.join(counts)}, {elapsed}"

    def on_phase_start(self, phase: LoopPhase, done: int) -> None:
        self.phase, self.done = phase, done
        self.show()

    def on_rollouts_start(self, split: Split, done: int, rollouts: int) -> None:
        self.rollouts, self.finished, self.actions, self.verdicts = rollouts, 0, 0, 0
        self.show()

    def on_step(self, step: Step) -> None:
        self.actions += 1
        self.show()

    def on_verdict(self, verdict: Verdict) -> None:
        self.verdicts += 1
        self.show()

    def on_rollout_end(self, trajectory: Trajectory) -> None:
        self.finished += 1
        self.show()


class ConsoleListener(RunProgress):
    """Announces providers, sandboxes and counterfactual rollouts."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def on_providers(self, providers: Sequence[Provider]) -> None:
        announce_providers(self._console, providers)

    def on_sandboxes(self, sandboxes: Mapping[str, Sandbox]) -> None:
        announce_sandboxes(self._console, sandboxes)

    def on_examples_left_out(self, agent: str, reason: str, count: int) -> None:
        self._console.print(
            clean_line(f"{agent}: {count} examples {reason} are left out"), highlight=False, markup=False
        )

    def on_counterfactuals(self, extra: CounterfactualBound) -> None:
        announce_counterfactuals(self._console, extra)


class LineProgress(ConsoleListener):
    """Prints a plain line per evaluation and iteration, and how far it is where that takes minutes."""

    def __init__(self, console: Console, iterations: int) -> None:
        super().__init__(console)
        self._iterations = iterations
        self._printed = self.started
        self._before: int | None = None  # iterations before the first one of this process

    def show(self) -> None:
        if time.perf_counter() - self._printed >= QUIET_SECONDS:
            self._print(self.describe())

    def on_evaluation_end(self, evaluation: Evaluation) -> None:
        self._print(evaluation_line(evaluation))

    def on_held_out_losses(self, done: int, losses: Mapping[str, float]) -> None:
        self._print(held_out_line(done, losses))

    def on_prompts_improved(self, done: int, agents: Sequence[str]) -> None:
        self._print(f"prompts after iteration {done}: {', '.join(agents) or 'none'} changed")

    def on_iteration_end(self, report: IterationReport) -> None:
        if self._before is None:
            self._before = report.iteration - 1
        per_iteration = (time.perf_counter() - self.started) / (report.iteration - self._before)
        left = format_duration(per_iteration * (self._iterations - report.iteration))
        scores = "  ".join(f"{agent} {format_or_dash(one.score, '.1f')}" for agent, one in report.agents.items())
        count = f"iteration {report.iteration}/{self._iterations}"
        scored = f"  score: {scores}" if scores else ""
        self._print(f"{count}  {iteration_headline(report)}{scored}  left {left}")
        show_alarms(self._console, report)

    def _print(self, line: str) -> None:
        self._console.print(clean_line(line), soft_wrap=True, highlight=False, markup=False)
        self._printed = time.perf_counter()


class QuietListener(Listener):
    """Prints only, on standard error, which providers receive data, and the warnings of sandboxes."""

    def on_providers(self, providers: Sequence[Provider]) -> None:
        announce_providers(Console(stderr=True), providers)

    def on_sandboxes(self, sandboxes: Mapping[str, Sandbox]) -> None:
        announce_sandboxes(Console(stderr=True), sandboxes, quiet=True)


class Dashboard(ConsoleListener):
    """A live display: progress bars of the run and of the current rollouts, and a table of agents."""

    def __init__(self, console: Console, iterations: int) -> None:
        super().__init__(console)
        self._bars = Progress(*_columns(), console=console)
        self._run = self._bars.add_task("iterations", total=iterations)
        self._now = self._bars.add_task("starting", total=None)
        self._details: tuple[RenderableType, ...] = ()
        self.live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)

    def _render(self) -> Group:
        return Group(self._bars, Text(self.describe(), style="dim", no_wrap=True), *self._details)

    def on_rollouts_start(self, split: Split, done: int, rollouts: int) -> None:
        super().on_rollouts_start(split, done, rollouts)
        what = "held-out" if split == "eval" else "rollouts"
        self._bars.reset(self._now, total=rollouts, description=what)
        self._bars.update(self._run, completed=done)

    def on_rollout_end(self, trajectory: Trajectory) -> None:
        super().on_rollout_end(trajectory)
        self._bars.advance(self._now)

    def on_evaluation_end(self, evaluation: Evaluation) -> None:
        self._console.print(evaluation_line(evaluation), highlight=False)

    def on_held_out_losses(self, done: int, losses: Mapping[str, float]) -> None:
        self._console.print(clean_line(held_out_line(done, losses)), highlight=False, markup=False)

    def on_iteration_end(self, report: IterationReport) -> None:
        self._bars.update(self._run, completed=report.iteration)
        self._details = agents_table(report.agents), iteration_headline(report)
        self.live.refresh()
        show_alarms(self._console, report)


@contextmanager
def open_listener(console: Console, iterations: int, *, quiet: bool) -> Iterator[Listener]:
    """Choose the listener for the output: a live display on a terminal, plain lines elsewhere, or a quiet one."""
    if quiet:
        yield QuietListener()
    elif console.is_terminal:
        dashboard = Dashboard(console, iterations)
        with dashboard.live:
            yield dashboard
    else:
        yield LineProgress(console, iterations)


class RolloutBar:
    """A progress bar of rollouts, for a single evaluation."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task = bars.add_task("rollouts", total=None)

    def start(self, rollouts: int) -> None:
        self._bars.update(self._task, total=rollouts)

    def on_rollout_end(self, trajectory: Trajectory) -> None:
        self._bars.advance(self._task)


@contextmanager
def rollout_bar(console: Console, *, quiet: bool) -> Iterator[RolloutBar]:
    """A progress bar on a terminal; nothing elsewhere."""
    with Progress(*_columns(), console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        yield RolloutBar(bars)


def _columns() -> tuple[ProgressColumn, ...]:
    return TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), _TimeLeft()


class _TimeLeft(TimeRemainingColumn):
    """The time that remains; nothing where the total is not known, as the time before it would be taken for it."""

    def render(self, task: Task) -> Text:
        remaining = super().render(task)
        return Text.assemble("left ", remaining) if remaining.plain else remaining


def show_alarms(console: Console, report: IterationReport) -> None:
    """Print a line per alarm and note of the coach, and per warning of a policy's health."""
    lines = [f"health, {warning.rule}: {warning}" for warning in report.warnings]
    lines += [f"coach drift, {alarm.kind}: {alarm}" for alarm in report.drift.alarms]
    lines += [f"coach: {note}" for note in report.drift.notes]
    for line in lines:
        console.print(line, style="yellow", soft_wrap=True, highlight=False, markup=False)


def held_out_line(done: int, losses: Mapping[str, float]) -> str:
    """The held-out losses of a warm start in one line."""
    by_policy = ", ".join(f"{policy} {loss:.3f}" for policy, loss in losses.items())
    return f"held-out loss after {done} epochs: {by_policy}"


def iteration_headline(report: IterationReport) -> str:
    """Summarize accuracy, speed, calls and failures of an iteration in one line; of an epoch of a warm start, which has
    no rollouts, losses and speed."""
    if not report.rollouts:
        losses = ", ".join(
            f"{policy} {metrics['loss']:.3f}" for policy, metrics in report.policies.items() if "loss" in metrics
        )
        return f"loss {losses}  {format_or_dash(report.throughput, ',.0f')} tok/s  {report.total_seconds:.1f} s"
    words = [
        f"accuracy {format_percent(report.outcomes.accuracy)}",
        f"{format_or_dash(report.throughput, ',.0f')} tok/s",
        f"{report.coach.total.verdicts} verdicts",
        f"{report.total_seconds:.1f} s",
    ]
    if report.coach.total.usage is not None:
        words.append("cost unknown" if report.coach.total.usd is None else f"${report.coach.total.usd:.4f}")
    for name in ("abstained", "failed", "replayed"):
        if count := getattr(report.coach.total, name):
            words.append(f"{count} {name}")
    if report.replaced:
        words.append(f"{report.replaced} of {report.rollouts} rollouts replaced")
    if report.failed:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.failed_rollouts.items())
        counted = f", {report.outcomes.unsolved} of them count as unsolved" if report.outcomes.unsolved else ""
        words.append(f"{report.failed} rollouts failed ({kinds}){counted}")
    if report.counterfactuals is not None and report.counterfactuals.overflowed:
        words.append(
            f"{report.counterfactuals.overflowed} of {report.counterfactuals.rollouts} counterfactual rollouts "
            "outgrew the window"
        )
    words += describe_tool_faults(report.lost, report.tool_retries)
    if report.corrections:
        words.append(f"{report.corrections[USED]} of {sum(report.corrections.values())} corrections")
    return "  ".join(words)
