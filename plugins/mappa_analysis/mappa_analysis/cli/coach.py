"""`mappa coach`: certify coaches, and make juries of them."""

from __future__ import annotations

import click

from mappa_analysis.cli.coach_calibrate import calibrate_command
from mappa_analysis.cli.coach_eval import eval_command
from mappa_analysis.cli.crash_test import crash_test_command


@click.group("coach")
def command() -> None:
    """Certify coaches, and make juries of them."""


command.add_command(calibrate_command)
command.add_command(eval_command)
command.add_command(crash_test_command)
