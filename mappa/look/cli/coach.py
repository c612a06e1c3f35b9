"""`mappa coach`: certify coaches, and make juries of them with mappa-calibration."""

from __future__ import annotations

import click

from mappa.cli.command_group import CommandGroup
from mappa.look.cli.coach_eval import eval_command
from mappa.look.cli.crash_test import crash_test_command


@click.group("coach", cls=CommandGroup)
def command() -> None:
    """Certify coaches, and make juries of them."""


command.add_command(eval_command)
command.add_command(crash_test_command)
