"""`mappa plugins`: list installed plugins, their offers, and why a plugin is broken."""

from __future__ import annotations

import json

import click

from mappa_core.cli.options import load_registry
from mappa_core.plugins import BrokenPlugin, Plugin, Registry


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--traceback", "tracebacks", is_flag=True, help="Show the tracebacks of broken plugins.")
def command(as_json: bool, tracebacks: bool) -> None:
    """List plugins, what they offer, and which are broken."""
    registry = load_registry()
    if as_json:
        click.echo(json.dumps(_document(registry), ensure_ascii=False))
        return
    for plugin in registry.plugins.values():
        _show(plugin)
    for broken in registry.broken.values():
        _show_broken(broken, tracebacks)


def _rows(plugin: Plugin) -> dict[str, list[str]]:
    """Offers, recipes and commands of a plugin, by kind; empty kinds are left out."""
    rows = {str(kind): sorted(offers) for kind, offers in plugin.offers.items()}
    rows["recipes"] = sorted(f"{plugin.name}/{name}" for name in plugin.recipes)
    rows["commands"] = sorted(f"mappa {plugin.name} {one.name}" for one in plugin.commands)
    return {kind: names for kind, names in rows.items() if names}


def _document(registry: Registry) -> dict[str, object]:
    return {
        "plugins": {
            plugin.name: {"package": plugin.package, "version": plugin.version, **_rows(plugin)}
            for plugin in registry.plugins.values()
        },
        "broken": {
            broken.name: {
                "package": broken.package,
                "version": broken.version,
                "reason": broken.reason,
                "traceback": broken.traceback,
            }
            for broken in registry.broken.values()
        },
    }


def _show(plugin: Plugin) -> None:
    click.echo(f"{click.style(plugin.name, bold=True)}  {plugin.package} {plugin.version}")
    for kind, names in _rows(plugin).items():
        click.echo(f"  {kind:<12}{', '.join(names)}")
    click.echo()


def _show_broken(broken: BrokenPlugin, tracebacks: bool) -> None:
    click.echo(f"{click.style(broken.name, bold=True)}  {broken.package} {broken.version}")
    click.secho(f"  broken      {broken.reason}", fg="red")
    if tracebacks:
        click.echo(broken.traceback)
    click.echo()
