"""Commands that end in every way a command can end."""

from __future__ import annotations

import time

import click

from mappa_core import GuardStop, TaskError


@click.command()
def hello() -> None:
    """Say hello."""
    click.echo("hello from acme")


@click.command()
def reject() -> None:
    """Meet a task file that cannot be used."""
    raise TaskError("tasks.json:3: a row has no [prompt]; add one")


@click.command()
def guard() -> None:
    """Be stopped by a guard."""
    raise GuardStop("too many verdicts are missing (12 of 40); a checkpoint was written")


@click.command()
def bug() -> None:
    """Have a bug."""
    raise ZeroDivisionError("a bug of acme")


@click.command()
def wait() -> None:
    """Wait for a signal."""
    try:
        click.echo("ready")
        time.sleep(60)
    finally:
        click.echo("closed")


ALL = (hello, reject, guard, bug, wait)
