"""`mappa coach`: certify coaches."""

from __future__ import annotations

import click

from mappa_analysis.cli.coach_eval import eval_command


@click.group("coach")
def command() -> None:
    """Certify coaches."""


command.add_command(eval_command)
