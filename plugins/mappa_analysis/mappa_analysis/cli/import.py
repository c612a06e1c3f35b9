"""`mappa import`: convert a log of another framework to a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console

from mappa_core import ConfigError
from mappa_core.commands import load_registry

if TYPE_CHECKING:
    from mappa_analysis.importing import Format, ImportResult


@click.command("import")
@click.argument("file", metavar="FILE.jsonl", type=click.Path(path_type=Path))
@click.option("--format", "file_format", type=click.Choice(["messages", "spans"]), help="Else by the first line.")
@click.option("--agent", "agents", metavar="NAME[=BRIEF]", multiple=True, help="Who acts, and what for; repeatable.")
@click.option("--unnamed", metavar="NAME", default="assistant", show_default=True, help="Who acts where none is named.")
@click.option("--messages", metavar="KEY", default="messages", show_default=True, help="The list of messages.")
@click.option("--prompt", metavar="KEY", help="The text of the task; else the first message of a user.")
@click.option("--task-id", metavar="KEY", help="The name of the task; else one is made of its text.")
@click.option("--truth", metavar="KEY", help="The known answer; no agent and, unless asked, no coach sees it.")
@click.option("--stratum", metavar="KEY", help="What groups tasks in reports.")
@click.option("--cluster", metavar="KEY", help="What tasks have in common that are no independent evidence.")
@click.option("--outcome", "outcomes", metavar="[NAME=]KEY", multiple=True, help="A number; `correct` unless named.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option("--name", metavar="RUN", help="Name of the run folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(
    file: Path,
    file_format: Format | None,
    agents: Sequence[str],
    unnamed: str,
    messages: str,
    prompt: str | None,
    task_id: str | None,
    truth: str | None,
    stratum: str | None,
    cluster: str | None,
    outcomes: Sequence[str],
    root: Path,
    name: str | None,
    as_json: bool,
) -> None:
    """Make a run of what other frameworks recorded: message logs as OpenAI's API writes them, or OpenTelemetry spans.

    The run can be observed, judged (recoach), used to certify a coach, viewed and reported. A line of messages is one
    rollout, every message of an assistant an action; spans of one trace are a rollout. KEY is a key of the line (of
    spans: an attribute of the root span); with dots it looks into objects:

    \b
      mappa import chats.jsonl --agent "planner=Splits the task." --outcome result.solved
      mappa recoach runs/x --coach gemini model=…
    """
    from mappa_analysis.importing import LogMapping, import_file

    mapping = LogMapping(
        agents=_pairs(agents, "--agent", value_may_lack=True),
        default_agent=unnamed,
        messages=messages,
        prompt=prompt,
        task_id=task_id,
        truth=truth,
        stratum=stratum,
        cluster=cluster,
        outcomes=_pairs([one if "=" in one else f"correct={one}" for one in outcomes], "--outcome"),
    )
    imported = import_file(load_registry(), file, mapping, root=root, name=name, file_format=file_format)
    if as_json:
        click.echo(msgspec.json.encode(msgspec.to_builtins(imported, enc_hook=str)).decode())
    else:
        show_import(Console(), imported)


def _pairs(words: Sequence[str], option: str, *, value_may_lack: bool = False) -> dict[str, str]:
    """Parse NAME=VALUE words. Raises ConfigError for a word without a name, or a duplicate name."""
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or (equals and not value) or (not equals and not value_may_lack):
            raise ConfigError(f"{option} {word}: write NAME=VALUE")
        if name in pairs:
            raise ConfigError(f"{option} {word}: {name} is named already")
        pairs[name] = value
    return pairs


def show_import(console: Console, imported: ImportResult) -> None:
    """Print what was imported, and a next command."""
    actions = ", ".join(f"{agent} {count}" for agent, count in imported.agents.items())
    console.print(
        f"{imported.trajectories} rollouts of {imported.tasks} tasks from {imported.format}; actions: {actions}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if imported.measured < imported.trajectories:
        console.print(
            f"{imported.trajectories - imported.measured} rollouts have no outcome `correct`: name its key with "
            "--outcome, or judge them by a coach alone",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"run      {imported.folder}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"next     mappa recoach {imported.folder} --coach OFFER", markup=False, highlight=False, soft_wrap=True
    )
