"""`mappa plugins`: list installed plugins, their offers, and why one is broken; hold a package to its contract."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

import click

from mappa.cli.command_group import blocked_plugins
from mappa.cli.common_options import json_option
from mappa.cli.console import echo
from mappa.cli.find_commands import find_commands
from mappa.cli.options import file_option, load_registry
from mappa_core.plugins import Plugin


@click.group("plugins", invoke_without_command=True)
@click.option("--traceback", "tracebacks", is_flag=True, help="Show the tracebacks of broken plugins.")
@json_option
@file_option
@click.pass_context
def command(ctx: click.Context, as_json: bool, tracebacks: bool) -> None:
    """List plugins, what they offer, and which are broken."""
    if ctx.invoked_subcommand is not None:
        return
    registry, commands = load_registry(), _commands_by_package()
    if as_json:
        plugins = {
            one.name: {"package": one.package, "version": one.version, **_rows(one, commands[one.package])}
            for one in registry.plugins.values()
        }
        shown = ("package", "version", "reason", "traceback")
        broken_plugins = {one.name: {key: getattr(one, key) for key in shown} for one in registry.broken.values()}
        click.echo(json.dumps({"plugins": plugins, "broken": broken_plugins}, ensure_ascii=False))
        return
    for plugin in registry.plugins.values():
        click.echo(f"{click.style(plugin.name, bold=True)}  {plugin.package} {plugin.version}")
        for kind, names in _rows(plugin, commands[plugin.package]).items():
            click.echo(f"  {kind:<11} {', '.join(names)}")
        click.echo()
    for broken in registry.broken.values():
        click.echo(f"{click.style(broken.name, bold=True)}  {broken.package} {broken.version}")
        click.secho(f"  broken      {broken.reason}", fg="red")
        if tracebacks:
            click.echo(broken.traceback)
        click.echo()


@command.command("check")
@click.argument("distribution")
@json_option
def check(distribution: str, as_json: bool) -> None:
    """Hold an installed DISTRIBUTION to the contract of packages with plugins; exit code 2 where it is not met."""
    from mappa.look.plugin_check import check_package

    checked = check_package(distribution)
    if as_json:
        echo(json.dumps({"name": checked.name, "version": checked.version, "faults": checked.faults}))
    else:
        echo("\n".join((checked.line, *(f"- {fault}" for fault in checked.faults))))
    if checked.faults:
        raise click.exceptions.Exit(2)


def _commands_by_package() -> Mapping[str, list[str]]:
    """What each package brings of the commands of `mappa`."""
    commands = defaultdict[str, list[str]](list)
    for name, point in find_commands(blocked_plugins()).items():
        if point.dist is not None:
            commands[point.dist.name].append(f"mappa {name.replace('.', ' ')}")
    return commands


def _rows(plugin: Plugin, commands: list[str]) -> dict[str, list[str]]:
    """Offers and recipes of a plugin and the commands of its package, by kind; empty kinds are left out."""
    rows = {str(kind): sorted(offers) for kind, offers in plugin.offers.items()}
    rows["recipes"] = sorted(f"{plugin.name}/{name}" for name in plugin.recipes)
    rows["commands"] = commands
    return {kind: names for kind, names in rows.items() if names}
