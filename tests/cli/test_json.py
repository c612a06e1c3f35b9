"""Whatever prints a result prints it for scripts, too."""

from __future__ import annotations

from collections.abc import Iterator

import click

from mappa.cli.command_group import command_names
from mappa.cli.main import cli

WITHOUT = {
    "new": "writes a package, and names what to do with it",
    "completion": "prints a script",
    "demo": "serves a page",
    "view": "serves a page",
    "export": "writes files that other libraries read",
    "gateway": "shows requests as they come; `runs trace --json` has them of the run that it names",
    "dsbench warm-start": "writes the models that the package ships",
    "mathchat warm-start": "writes the models that the package ships",
    "mathchat prepare": "writes manifest.json, which says all that it prints",
}
"""Commands without --json, and why."""


def commands(command: click.Command, context: click.Context, *path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    for name in command.list_commands(context) if path else command_names():
        below = command.get_command(context, name)
        assert below is not None
        yield from commands(below, click.Context(below, info_name=name, parent=context), *path, name)


def test_every_command_that_prints_a_result_has_json():
    found = dict(commands(cli, click.Context(cli)))
    options = {name: [one for one in command.params if "--json" in one.opts] for name, command in found.items()}
    assert {name for name, json in options.items() if not json} == {*WITHOUT} & {*found}
    assert {"train", "runs trace", "observe", "dsbench score"} <= {*found}
    assert all(one.is_flag for json in options.values() for one in json)
