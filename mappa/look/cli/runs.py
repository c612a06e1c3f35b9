"""`mappa runs`: list runs, show a run, and print a trajectory with all verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from mappa.cli.common_options import json_option, root_option
from mappa.cli.console import Console, Name, echo, escape
from mappa.cli.formats import format_percent, format_share
from mappa.cli.tables import agents_table, columns_table
from mappa.cli.trajectory import show_trajectory
from mappa.look.cli.play_lines import describe_blame
from mappa.runs.reader import RunReader
from mappa.store.folder import is_in_use, list_run_folders
from mappa.store.summary import Summary, read_summary
from mappa_core.codec import to_json
from mappa_core.errors import RunError

if TYPE_CHECKING:
    from mappa.look.view.plays import PlaysSummary
    from mappa_core.records import Interval

WIDE = 110  # Columns from which on a list of runs shows every interval; below, that of the gain alone.
SHOWN_PLAYS = 5  # Trajectories of a task that an error names.


@click.group("runs")
def command() -> None:
    """List runs, show one, print what happened in a trajectory."""


@command.command("list")
@root_option("Folder of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run and nothing else.")
def list_runs(root: Path, as_json: bool) -> None:
    """List the runs in a folder, the oldest first; those that trained nothing in a table of their own."""
    runs = [_read_run(folder) for folder in list_run_folders(root)]
    if as_json:
        for run in runs:
            listed = {"run": str(run.folder), "status": run.status, "summary": run.summary, "plays": run.plays}
            echo(to_json(listed).decode())
        return
    console = Console()
    tables = [table for table in (_trained_table(runs, console), _played_table(runs, console)) if table.row_count]
    for place, table in enumerate(tables):
        if place:
            console.print()
        console.print(table, highlight=False, markup=False)
    if not tables:
        console.print(f"no runs in {root}", highlight=False, markup=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListedRun:
    """What became of a run, its summary, None if it has none, as one that was killed early, and what its plays came to,
    if it trained nothing."""

    folder: Path
    status: str
    summary: Summary | None
    plays: PlaysSummary | None


def _read_run(folder: Path) -> _ListedRun:
    from mappa.look.view.plays import summarize_stored_plays

    status, summary = _read_status(folder)
    plays = None if status == "unreadable" else summarize_stored_plays(folder)
    return _ListedRun(folder=folder, status=status, summary=summary, plays=plays)


def _read_status(folder: Path) -> tuple[str, Summary | None]:
    try:
        summary = read_summary(folder)
    except RunError as error:
        problem = "unreadable" if isinstance(error.__cause__, PermissionError) else "no summary"
        return ("running" if problem == "no summary" and is_in_use(folder) else problem), None
    return ("killed" if summary.status == "running" and not is_in_use(folder) else summary.status), summary


def _trained_table(runs: Sequence[_ListedRun], console: Console) -> Table:
    wide = console.width >= WIDE
    table = columns_table("run", "status", "iterations" if wide else "iter.", "before", "after", "gain", text=2)
    for run in runs:
        if run.plays is not None:
            continue
        found = None if run.summary is None else run.summary.eval
        before, after, gain = (None, None, None) if found is None else (found.before, found.after, found.gain)
        iterations = "-" if run.summary is None else str(run.summary.iterations)
        shares = [_format_share(share, wide=wide) for share in (before, after)]
        table.add_row(Name(run.folder.name), Name(run.status), iterations, *shares, format_share(gain, sign=True))
    return table


def _played_table(runs: Sequence[_ListedRun], console: Console) -> Table:
    wide = console.width >= WIDE
    table = columns_table("run", "what", "to blame", "plays", "success", text=3)
    for run in runs:
        if (plays := run.plays) is None:
            continue
        what = "imported" if plays.imported else "running" if run.status == "running" else "played"
        success = _format_share(plays.shares.get(plays.metric), wide=wide)
        table.add_row(Name(run.folder.name), Name(what), Name(describe_blame(plays)), f"{plays.count:,}", success)
    return table


def _format_share(share: Interval | None, *, wide: bool) -> str:
    return format_share(share) if wide else format_percent(None if share is None else share.mean)


@command.command("show")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--split", type=click.Choice(["train", "eval", "counterfactual", "candidate"]), help="By default train and eval."
)
@click.option("--iteration", type=click.IntRange(0), help="Only trajectories of this iteration.")
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="Trajectories to show.")
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="Trajectories to skip first.")
@json_option
def show_run(folder: Path, split: str | None, iteration: int | None, limit: int, offset: int, as_json: bool) -> None:
    """Show a run: its agents in the last iteration, and its trajectories, the newest first."""
    console = Console()
    with RunReader(folder) as reader:
        counts, latest = reader.counts(split, iteration), reader.latest_iteration()
        rows = list(reader.trajectories.where(split=split, iteration=iteration))[::-1][offset : offset + limit]
    if as_json:
        echo(to_json({"counts": counts, "trajectories": rows}).decode())
        return
    if latest is not None:
        console.print(agents_table(latest.agents))
    console.print(", ".join(f"{count} {status}" for status, count in counts.items()) or "no trajectories")
    table = columns_table("trajectory", "stratum", "status", "outcome", "actions", text=4)
    table.columns[0].no_wrap = True  # People copy it.
    for row in rows:
        outcome = row.error.kind if row.error else ", ".join(f"{key} {value:g}" for key, value in row.outcome.items())
        table.add_row(Name(row.id), Name(row.stratum), Name(row.status), escape(outcome), str(row.steps))
    console.print(table)
    if len(rows) < (total := sum(counts.values())):
        console.print(_describe_part(len(rows), offset, total), highlight=False, soft_wrap=True)
    console.print(
        f"next     mappa observe {folder}, mappa runs trace {folder} ID", soft_wrap=True, highlight=False, markup=False
    )


def _describe_part(shown: int, offset: int, total: int) -> str:
    """Describe which trajectories were shown, and how to see more."""
    if not shown:
        return f"none of {total:,} shown: --offset {offset} is beyond them, or --limit is 0"
    end = offset + shown
    more = f"; --offset {end} shows older ones, --limit N more at once" if end < total else ""
    return f"{offset + 1:,} to {end:,} of {total:,}, the newest first{more}"


@command.command("trace")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("trajectory")
@json_option
def trace_trajectory(folder: Path, trajectory: str, as_json: bool) -> None:
    """Print one trajectory: what each agent saw and wrote, what its tools answered, verdicts, and labels of people."""
    with RunReader(folder) as reader:
        try:
            shown, labels = reader.trajectory(trajectory), reader.labels(trajectory)
        except RunError as error:
            if plays := [row.id for row in reader.trajectories if row.task == trajectory]:
                raise RunError(_describe_plays(trajectory, plays)) from error
            raise
    if as_json:
        echo(to_json({**{one.name: getattr(shown, one.name) for one in fields(shown)}, "labels": labels}).decode())
    else:
        show_trajectory(Console(), shown, labels)


def _describe_plays(task: str, plays: Sequence[str]) -> str:
    """Say that a task is no trajectory, and which are of it, the newest first."""
    named = ", ".join(plays[: -SHOWN_PLAYS - 1 : -1])
    more = f" and {len(plays) - SHOWN_PLAYS} more" if len(plays) > SHOWN_PLAYS else ""
    return f"{task} is a task, not a trajectory: name one in which it was played: {named}{more}"
