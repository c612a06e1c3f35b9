"""A run that trains on the command line, and what is printed at its end."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from mappa.cli.console import Console, escape
from mappa.cli.formats import describe_tool_faults, format_count, format_or_dash, format_problem_count
from mappa.cli.progress import open_listener
from mappa.cli.result_tables import gains_tables, selection_sentence, show_warnings
from mappa.cli.tables import agents_table
from mappa.runs.reader import RunReader
from mappa.store.summary import CoachSummary, Summary
from mappa.training.run import Run, TrainResult
from mappa_core.errors import GuardStop


def train_and_print(run: Run, console: Console, *, quiet: bool, as_json: bool) -> TrainResult:
    """Train, with the progress on `console`, and print the result. Whatever stops the run, it says how to go on."""
    iterations = run.composed.config.train.iterations
    try:
        with open_listener(console, iterations, quiet=quiet or as_json) as listener:
            trained = run.train(listener)
    except (GuardStop, KeyboardInterrupt, SystemExit):
        if run.folder is not None:
            click.echo(f"nothing is lost; go on with: mappa train --resume {run.folder}", err=True)
        raise
    if as_json:
        click.echo(run_result_json(trained.folder, trained.summary))
    else:
        show_run_result(Console(), trained)
    return trained


def show_run_result(console: Console, trained: TrainResult) -> None:
    """Print results before and after training, the agents, the paths of the run, and a next command."""
    summary = trained.summary
    if summary.eval is not None:
        count = format_problem_count(summary.eval.n, summary.eval.clusters, summary.eval.known)
        console.print(f"held-out {escape(summary.eval.metric)}, {count}, 95 % intervals", style="bold", highlight=False)
        console.print(gains_tables(summary.eval))
        if summary.eval.selection is not None:
            console.print(selection_sentence(summary.eval.selection), soft_wrap=True, highlight=False)
    if summary.agents:
        console.print("agents in the last iteration", style="bold")
        console.print(agents_table(summary.agents))
    failed = f", {summary.coach.failed} failed" if summary.coach.failed else ""
    console.print(
        f"{format_count(summary.iterations, 'iteration')}, {format_count(summary.coach.verdicts, 'verdict')}"
        f"{failed}{_cost(summary.coach)}, "
        f"{format_or_dash(summary.seconds.wall, '.0f')} s wall, {format_or_dash(summary.seconds.cpu, '.0f')} s CPU",
        highlight=False,
    )
    if faults := describe_tool_faults(summary.tools.lost, summary.tools.retries):
        console.print(", ".join(faults), style="yellow", highlight=False)
    if summary.engine_losses:
        times = format_count(summary.engine_losses, "time")
        console.print(f"the engine, or a process of it, was lost {times}", style="yellow", highlight=False)
    if summary.transport_losses:
        times = format_count(summary.transport_losses, "time")
        console.print(f"the client of a provider was replaced {times}", style="yellow", highlight=False)
    with RunReader(trained.folder) as reader:
        show_warnings(console, reader.warnings)
    if (report := trained.folder / "report.html").is_file():
        console.print(f"report   {report}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"next     mappa runs show {trained.folder}", soft_wrap=True, highlight=False, markup=False)


def _cost(coach: CoachSummary) -> str:
    if coach.usd is None:
        return ", cost of the coach unknown"
    return f", coach ${coach.usd:.2f}" if coach.usd else ""


def run_result_json(folder: Path, summary: Summary) -> str:
    """Encode the summary and its folder as one JSON object."""
    return msgspec.json.encode({"folder": str(folder), **msgspec.to_builtins(summary)}).decode()
