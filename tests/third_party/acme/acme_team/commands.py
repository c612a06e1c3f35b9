"""Commands that end in every way a command can end."""

from __future__ import annotations

import time

import click

from mappa_core import GuardStop, TaskError
from mappa_core.engine import EngineLost


@click.group("acme")
def command() -> None:
    """End in every way a command can end."""


@command.command()
def hello() -> None:
    """Say hello."""
    click.echo("hello from acme")


@command.command()
def reject() -> None:
    """Meet a task file that cannot be used."""
    raise TaskError("tasks.json:3: a row has no [prompt]; add one")


@command.command()
def guard() -> None:
    """Be stopped by a guard."""
    raise GuardStop("too many verdicts are missing (12 of 40); a checkpoint was written")


@command.command()
def lose() -> None:
    """Lose the engine before there is a run."""
    raise EngineLost("Ray did not start on this machine within 120 s")


@command.command()
def bug() -> None:
    """Have a bug."""
    raise ZeroDivisionError("a bug of acme")


@command.command()
def wait() -> None:
    """Wait for a signal."""
    try:
        click.echo("ready")
        time.sleep(60)
    finally:
        click.echo("closed")
