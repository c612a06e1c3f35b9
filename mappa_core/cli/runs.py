"""`mappa runs`: list runs, show a run, and print a trajectory with all verdicts."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from mappa_core.cli.console import Console
from mappa_core.cli.progress import format_share
from mappa_core.errors import RunError
from mappa_core.records import NOBODY, Step, ToolResult, Trajectory, Verdict
from mappa_core.runs.reader import RunReader
from mappa_core.store.folder import list_run_folders
from mappa_core.store.summary import read_summary


@click.group("runs")
def command() -> None:
    """List runs, show one, print what happened in a trajectory."""


@command.command("list")
@click.option("--root", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
def list_runs(root: Path) -> None:
    """List the runs in a folder, the oldest first."""
    table = Table(box=None, header_style="bold")
    for name in ("run", "status", "iterations", "before", "after", "gain"):
        table.add_column(name, justify="left" if name in ("run", "status") else "right", overflow="fold")
    for folder in list_run_folders(root):
        status, iterations, shares = "no summary", "-", ["-", "-", "-"]
        with suppress(RunError):
            summary = read_summary(folder)
            status, iterations = summary.status, str(summary.iterations)
            if (one := summary.eval) is not None:
                shares = [format_share(one.before), format_share(one.after), format_share(one.gain, sign=True)]
        table.add_row(escape(folder.name), status, iterations, *shares)
    Console().print(table)


@command.command("show")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--split", type=click.Choice(["train", "eval", "counterfactual"]), help="Only these; counterfactual ones only so."
)
@click.option("--iteration", type=int, help="Only trajectories of this iteration.")
@click.option("--limit", type=int, default=20, show_default=True)
@click.option("--offset", type=int, default=0, show_default=True)
def show_run(folder: Path, split: str | None, iteration: int | None, limit: int, offset: int) -> None:
    """Show a run: its coach's verdicts per agent and its trajectories (the newest iterations by --iteration)."""
    console = Console()
    with RunReader(folder) as reader:
        counts = reader.counts(split, iteration)
        rows = list(islice(reader.trajectories.where(split=split, iteration=iteration), offset, offset + limit))
    console.print(", ".join(f"{count} {status}" for status, count in counts.items()) or "no trajectories")
    table = Table(box=None, header_style="bold")
    for name in ("trajectory", "stratum", "status", "actions", "outcome"):
        table.add_column(name, justify="left", overflow="fold")
    for row in rows:
        outcome = row.error.kind if row.error else ", ".join(f"{key} {value:g}" for key, value in row.outcome.items())
        table.add_row(escape(row.id), escape(row.stratum), row.status, str(row.steps), escape(outcome))
    console.print(table)


@command.command("trace")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("trajectory")
def trace_trajectory(folder: Path, trajectory: str) -> None:
    """Print one trajectory: what each agent saw and wrote, what its tools answered, and the verdicts."""
    with RunReader(folder) as reader:
        shown = reader.trajectory(trajectory)
    show_trajectory(Console(), shown)


def show_trajectory(console: Console, trajectory: Trajectory) -> None:
    """Print every action with its verdicts. Text of agents is printed as text, never as markup."""
    verdicts: dict[str, list[Verdict]] = {}
    for verdict in trajectory.verdicts:
        verdicts.setdefault(verdict.step, []).append(verdict)
    console.print(f"[bold]{escape(trajectory.id)}[/]  {escape(trajectory.task.stratum)}", highlight=False)
    _block(console, "task", trajectory.task.prompt)
    _block(console, "truth", trajectory.task.reference or "-")
    for step in trajectory.steps:
        _show_step(console, step, verdicts.get(step.id, []))
    outcome = ", ".join(f"{name} {value:g}" for name, value in trajectory.outcome.items()) or "none"
    console.print(f"[bold]outcome[/] {escape(outcome)}", highlight=False)
    if trajectory.error:
        _block(console, f"failed: {trajectory.error.kind}", trajectory.error.message)


def _show_step(console: Console, step: Step, verdicts: list[Verdict]) -> None:
    console.rule(f"{escape(step.agent)}, turn {step.turn + 1}", align="left")
    _block(console, "saw", step.messages[-1].content)
    if step.reply.reasoning:
        _block(console, "thought", step.reply.reasoning)
    _block(console, "wrote" + (" (cut off at its token limit)" if step.truncated else ""), step.completion.text)
    for result in step.results:
        _block(console, _describe_result(result), (result.stdout + result.stderr) or "(printed nothing)")
        for change in result.files:
            size = "" if change.size is None else f", {change.size} bytes"
            console.print(f"{change.kind} {escape(change.path)}{size}", highlight=False)
    for breach in step.breaches:
        details = ": ".join(escape(text) for text in (breach.reason, breach.detail) if text)
        console.print(f"[yellow]{breach.kind}: {escape(breach.path)}[/] {details}", highlight=False)
    for verdict in verdicts:
        _block(console, verdict_headline(verdict), verdict.error or verdict.reasoning)
        if verdict.correction:
            _block(console, "better", verdict.correction)


def _describe_result(result: ToolResult) -> str:
    where = "" if result.sandbox is None else f", in {result.sandbox}"
    again = "" if result.attempts == 1 else f", in attempt {result.attempts}"
    return f"{result.tool}: {result.status}{where}{again}"


def verdict_headline(verdict: Verdict) -> str:
    """Describe a verdict: coach, score, and how it was obtained."""
    result = verdict.status if verdict.score is None else f"{verdict.score:g} of 10"
    notes = [
        "in hindsight" if verdict.phase == "after" else "asked again" if verdict.phase == "again" else "",
        "" if verdict.raw_score is None else f"{verdict.raw_score:g} before correction for bias",
        "from the cassette" if verdict.replayed else "",
        "" if verdict.blame in (None, NOBODY) else f"to blame: {verdict.blame}",
    ]
    return ", ".join((f"{verdict.coach}: {result}", *(note for note in notes if note)))


def _block(console: Console, title: str, text: str) -> None:
    console.print(f"[bold cyan]{escape(title)}[/]", highlight=False)
    console.print(text.rstrip("\n"), markup=False, highlight=False, soft_wrap=True)
