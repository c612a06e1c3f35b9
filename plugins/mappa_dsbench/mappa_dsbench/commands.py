"""`mappa dsbench`. Implementations are imported when a command is called."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mappa_core import Split, TaskError
from mappa_dsbench.tiny.warm_start import warm_start

FOLDER_TYPE = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group("dsbench")
def command() -> None:
    """Check published data, read the grades of runs, and make the small model of the `tiny` recipe."""


command.add_command(warm_start)


@command.command("prepare", short_help="Check a copy of the published DSBench data, task by task.")
@click.argument("folder", metavar="DIR", type=FOLDER_TYPE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def prepare(folder: Path, as_json: bool) -> None:
    """Check DIR, into which DSBench's data archive was unpacked: what is usable, broken or missing, where it is to be
    had and on which terms it may be used. Nothing is fetched or written. Exit code 2 where no task is usable."""
    from mappa_dsbench.published.prepare import check_all_tasks, format_survey

    report = check_all_tasks(folder)
    click.echo(json.dumps(report) if as_json else format_survey(report))
    if not any(task["state"] == "usable" for task in report["tasks"]):
        raise TaskError(f"{report['root']}: no published task is usable; what is missing or broken is listed above")


@command.command("score", short_help="Grades of a stored run: by task and stratum, rejections, fair scores, RPG.")
@click.argument("run", metavar="RUN", type=FOLDER_TYPE)
@click.option("--split", type=click.Choice(["train", "eval"]), default="eval", show_default=True)
@click.option("--iteration", type=int, help="Only of this iteration. Default: the last one that has any.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def score(run: Path, split: Split, iteration: int | None, as_json: bool) -> None:
    """Tell how a stored run was graded. Nothing is graded anew, and nothing is written."""
    from mappa_dsbench.reports.score import print_scores, score_run

    report = score_run(run, split, iteration)
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        print_scores(report)


@command.command(
    "unlearned", short_help="What each agent stopped doing, between a run's first evaluation and its last."
)
@click.argument("run", metavar="RUN", type=FOLDER_TYPE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def unlearned(run: Path, as_json: bool) -> None:
    """Tell which faults the first actions of each agent had before and after training. Nothing is written."""
    from mappa_dsbench.reports.fault_comparison import compare_faults as compared
    from mappa_dsbench.reports.fault_comparison import print_comparison

    report = compared(run)
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        print_comparison(report)
