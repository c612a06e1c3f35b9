"""Options that nearly every command has. Nothing of a config is imported here, so that `--help` stays quick."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

quiet_option = click.option("--quiet", is_flag=True, help="Print only the result.")
"""The option of commands that show progress; they receive it as `quiet`."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
"""The option of commands whose result is read by programs, too; they receive it as `as_json`."""


def root_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option that names a folder of runs, `runs` by default; its help is `what` the command does with it."""
    return click.option(
        "--root",
        metavar="DIR",
        type=click.Path(path_type=Path),
        default=Path("runs"),
        show_default=True,
        help=what,
    )
