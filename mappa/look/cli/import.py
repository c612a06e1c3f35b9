"""`mappa import`: convert a log of another framework to a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from mappa.cli.common_options import json_option, root_option
from mappa.cli.console import Console, echo
from mappa.cli.formats import format_count
from mappa.cli.options import load_registry, trust_option
from mappa.look.cli.import_lines import describe_import
from mappa.look.cli.mapping_options import mapping_options
from mappa.look.cli.pulled_logs import find_logs
from mappa_core.redaction import clean_line

if TYPE_CHECKING:
    from mappa.look.importing import Format, ImportResult, LogMapping

FORMATS = (
    "who-and-when", "agent-process-bench", "spans", "openai-agents", "langfuse", "atif", "inspect", "autogen",
    "autogen-events", "crewai", "langchain", "messages",
)  # fmt: skip
"""Names of the formats, as `mappa.look.importing.Format` has them: `--help` imports no part."""


@click.command("import")
@click.argument("files", metavar="FILE|URL...", type=click.Path(), nargs=-1, required=True)
@click.option("--format", "file_format", type=click.Choice(FORMATS), help="Detected from the file by default.")
@mapping_options
@root_option("Folder that the run is made in.")
@click.option("--name", metavar="RUN", help="Name of the run folder; else derived from FILE.")
@trust_option
@json_option
def command(
    files: Sequence[str],
    file_format: Format | None,
    mapping: LogMapping,
    labels: Sequence[str],
    root: Path,
    name: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Turn logs of other frameworks, and labels of people, into a run.

    The format is detected from the file: messages as OpenAI's API writes them, OpenTelemetry spans, or a public set of
    labelled failures. The run can be observed, judged, used to certify a coach, viewed and reported. If it is there
    already, what came since is added to it, and it keeps its options. A line of messages is one rollout, and every
    message of an agent an action; the spans of one trace are a rollout. KEY is a key of the line (for spans, an
    attribute of the root span); dots reach into objects:

    \b
      mappa import chats.jsonl --agent "planner=Splits the task." --outcome result.solved
      mappa judge runs/x --coach gemini model=…

    A URL is that of a tracer. Its traces are pulled first: those that started in a time, have a tag, or the newest N.

    \b
      mappa import 'phoenix://localhost:6006/PROJECT?since=7d&tag=prod&limit=500'
      mappa import 'langfuse://cloud.langfuse.com?since=2026-11-01&until=2026-11-08'

    With --labels the keys of labels are keys of that file's lines, and failures[id=cause.id].step goes through a list.
    """
    from mappa.look.importing import import_logs
    from mappa.look.importing.label_files import parse_label_file

    imported = import_logs(
        load_registry(), find_logs(files, root), mapping, root=root, name=name, file_format=file_format,
        label_files=[parse_label_file(word) for word in labels], trust=trust,
    )  # fmt: skip
    if as_json:
        echo(msgspec.json.encode(msgspec.to_builtins(imported, enc_hook=str)).decode())
    else:
        show_import(Console(), imported)


def show_import(console: Console, imported: ImportResult) -> None:
    """Print what was imported, what was not and why, and a next command."""
    for line, style in describe_import(imported):
        console.print(clean_line(line), markup=False, highlight=False, soft_wrap=True, style=style)
    if imported.measured < imported.trajectories:
        unknown = format_count(imported.trajectories - imported.measured, "rollout")
        console.print(
            f"no outcome `correct` is known of {unknown}: name its key with --outcome, or judge them by a coach alone",
            soft_wrap=True, highlight=False, style="yellow",
        )  # fmt: skip
    labels, folder = imported.labels, shlex.quote(str(imported.folder))
    console.print(f"run      {folder}", markup=False, highlight=False, soft_wrap=True)
    next_command = f"coach eval --run {folder}" if labels.agents or labels.values else f"judge {folder}"
    console.print(f"next     mappa {next_command} --coach OFFER", markup=False, highlight=False, soft_wrap=True)
