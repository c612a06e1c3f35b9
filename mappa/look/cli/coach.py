"""`mappa coach`: certify coaches and label plays; with other packages also make juries, and coaches of one's own."""

from __future__ import annotations

import click

from mappa.cli.command_group import CommandGroup
from mappa.look.cli.coach_eval import eval_command
from mappa.look.cli.coach_label import label_command
from mappa.look.cli.crash_test import crash_test_command


@click.group("coach", cls=CommandGroup)
def command() -> None:
    """Certify coaches, label plays, make a coach of your labels."""


command.add_command(eval_command)
command.add_command(label_command)
command.add_command(crash_test_command)
