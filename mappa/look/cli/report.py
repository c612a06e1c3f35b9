"""`mappa report`: write the report page of a run, and print its results and the coach's gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.table import Table

from mappa.cli.console import Console, echo, escape
from mappa.cli.formats import format_or_dash, format_problem_count
from mappa.look.cli.play_lines import describe_plays
from mappa_core import RunError
from mappa_core.redaction import clean_line

if TYPE_CHECKING:
    from mappa.look.view.drift import DriftHistory, GapHistory
    from mappa.look.view.plays import PlaysSummary
    from mappa.runs import RunReader
    from mappa.runs.rows import RaisedWarning
    from mappa.store.summary import Summary
    from mappa_core.records import Interval


SEARCH_OPTIONS = "improve.json"
"""The file by which the folder of `mappa improve` is known."""


@click.command("report")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", metavar="FILE.html", type=click.Path(path_type=Path), help="One page on all of them.")
@click.option("--audit", is_flag=True, help="With every verdict and the hash of the evidence that it was given on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run and nothing else.")
def command(runs: Sequence[Path], out: Path | None, audit: bool, as_json: bool) -> None:
    """Write report.html of runs again, and print what was learned.

    A page is one file that needs nothing else: figures, gaps of the coach between strata with their intervals and
    alarms, the most telling trajectories, settings, versions and cost. It is written to the run's folder, or with
    --out to that file, as one page on all runs.
    """
    from mappa.look.counted_verdicts import with_counted_verdicts
    from mappa.look.output_files import check_writable
    from mappa.look.view.drift import read_drift
    from mappa.look.view.plays import summarize_plays
    from mappa.look.view.report import write_page, write_report
    from mappa.runs import RunReader

    if out is not None:
        check_writable(out)
    learned = []
    for folder in runs:
        with RunReader(folder) as reader:
            learned.append(
                _Learned(
                    folder=folder,
                    summary=with_counted_verdicts(_require_summary(reader), reader),
                    plays=summarize_plays(reader),
                    drift=read_drift(reader),
                    warnings=reader.warnings,
                )
            )
    shared = None if out is None else write_page(out, [(one.folder, one.summary) for one in learned], audit=audit)
    for run in learned:
        page = shared or write_report(run.folder, run.summary, audit=audit)
        if as_json:
            echo(_report_json(page, run))
        else:
            _show_report(Console(), page, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """What was learned of a run: its results, or what its `plays` came to where nothing was trained, the gaps, alarms
    and notes of its coach, and warnings of health."""

    folder: Path
    summary: Summary
    plays: PlaysSummary | None
    drift: DriftHistory
    warnings: Sequence[RaisedWarning]


def _require_summary(reader: RunReader) -> Summary:
    if reader.summary is None:
        raise RunError(_explain_missing_summary(reader))
    return reader.summary


def _explain_missing_summary(reader: RunReader) -> str:
    """What a folder without a summary holds, and which command reads it."""
    folder = reader.folder
    if (folder / SEARCH_OPTIONS).exists():
        return (
            f"{folder} holds a search for prompts, and a report is of a training: mappa improve --resume {folder} "
            f"prints the result of a search that ended, mappa observe {folder} reads what was played"
        )
    if reader.counts():
        return (
            f"{folder} holds an evaluation, and a report is of a training: mappa observe {folder} reads what was played"
        )
    return (
        f"{folder} has no summary.json and no rollouts: a training was ended before it began. Go on with it by mappa "
        f"train --resume {folder}"
    )


def _show_report(console: Console, page: Path, run: _Learned) -> None:
    from mappa.cli.result_tables import gains_tables, selection_sentence, show_warnings

    summary, drift = run.summary, run.drift
    console.print(f"[bold]{escape(run.folder.resolve().name)}[/]  {escape(summary.status)}", highlight=False)
    if summary.eval is not None:
        count = format_problem_count(summary.eval.n, summary.eval.clusters, summary.eval.known)
        console.print(f"held-out {escape(summary.eval.metric)}, {count}, 95 % intervals", highlight=False)
        console.print(gains_tables(summary.eval))
        if summary.eval.selection is not None:
            console.print(selection_sentence(summary.eval.selection), soft_wrap=True, highlight=False)
    if run.plays is not None:
        for line in describe_plays(run.plays):
            console.print(clean_line(line), markup=False, highlight=False, soft_wrap=True)
    if drift.gaps:
        console.print("gaps of the coach between strata: points beyond merit, 95 % intervals")
        console.print(_gaps(drift.gaps))
    for alarm in drift.alarms:
        line = f"{alarm.kind} alarm after iteration {alarm.iteration}: {alarm.text}"
        console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
    for note in drift.notes:
        line = f"coach, after iteration {note.iteration}: {note.text}"
        console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
    show_warnings(console, run.warnings)
    console.print(f"report   {page}", markup=False, highlight=False, soft_wrap=True)


def _gaps(gaps: Sequence[GapHistory]) -> Table:
    table = Table(box=None, header_style="dim")
    for name in ("", "where", "gap", "per iteration", "alarms"):
        table.add_column(name, justify="left" if name in ("", "where", "alarms") else "right")
    for gap in gaps:
        table.add_row(
            escape(gap.agent),
            escape(f"{gap.stratifier}: {gap.stratum}") + ("" if gap.phase == "live" else f" ({gap.phase})"),
            _points(gap.last),
            format_or_dash(gap.growth, "+.3f"),
            ", ".join(kind for _, kind in gap.alarms) or "none",
        )
    return table


def _points(gap: Interval) -> str:
    bounds = "" if gap.low is None or gap.high is None else f" [{gap.low:+.2f}, {gap.high:+.2f}]"
    return f"{gap.mean:+.2f}{bounds}"


def _report_json(page: Path, run: _Learned) -> str:
    document = {
        **msgspec.to_builtins(run.summary),
        "report": str(page),
        **msgspec.to_builtins(run.drift),
        "health": msgspec.to_builtins(run.warnings),
        "plays": msgspec.to_builtins(run.plays),
    }
    return msgspec.json.encode(document).decode()
