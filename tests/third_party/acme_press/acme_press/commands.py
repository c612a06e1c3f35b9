"""The command: `mappa press diary RUN`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

from mappa.runs import RunReader
from mappa_core import InputError


@click.group("press")
def command() -> None:
    """Read what the press wrote."""


@command.command()
@click.argument("run", type=click.Path(path_type=Path))
def diary(run: Path) -> None:
    """Say what the diary of RUN holds, beside what the store holds."""
    path = run / "diary.jsonl"
    if not path.exists():
        raise InputError(f"{path} is not there: train with trackers=[{{use: press_diary}}]")
    entries = Counter(json.loads(line)["what"] for line in path.read_text(encoding="utf-8").splitlines())
    with RunReader(run) as reader:
        stored = sum(reader.counts().values())
    click.echo(f"{stored} trajectories stored; in the diary {dict(sorted(entries.items()))}")
