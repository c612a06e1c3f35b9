"""Whatever prints a result prints it for scripts, too, and options are worded and ordered alike."""

from __future__ import annotations

import re
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
    "coach label": "asks a person; `observe --json` has the labels",
    "dsbench warm-start": "writes the models that the package ships",
    "mathchat examples": "writes files, and names what to do with them",
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


def test_options_that_commands_share_come_last_and_are_worded_alike():
    for name, command in commands(cli, click.Context(cli)):
        options = [one for one in command.params if isinstance(one, click.Option)]
        order = [one.opts[0] for one in options]
        shared = [option for option in ("--quiet", "--json") if option in order]
        assert not shared or order[-len(shared) :] == shared, name
        for option in options:
            assert option.help, f"{name} {option.opts[0]} has no help"
            for other in ("repeatable", "unless given", "unless named", "if not given", "Default: "):
                assert other not in option.help, f"{name} {option.opts[0]}: say `may be repeated`, `by default`"
        for option in (one for one in options if one.opts[0] == "--json"):
            assert re.fullmatch("Print one JSON object( per run)? and nothing else.", option.help), name
        for option in (one for one in options if one.opts[0] == "--quiet"):
            assert option.help == "Print only the result.", name
