"""`mappa plugins search` and `mappa plugins check`: find packages with plugins, and hold one to its contract."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from mappa_core import ConfigError
from mappa_core.commands import Console, Name, columns_table, echo


@click.command("search")
@click.argument("words", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def search(words: tuple[str, ...], as_json: bool) -> None:
    """Find packages with plugins in the directory that is shipped: by name, kind or offer. Asks no network."""
    from mappa_analysis.plugin_directory import installed_version, search_directory

    found = search_directory(" ".join(words))
    if as_json:
        rows = {name: {**asdict(one), "installed": installed_version(name)} for name, one in found.items()}
        echo(json.dumps(rows, ensure_ascii=False))
        return
    if not found:
        raise ConfigError(f"no package in the directory has to do with {' '.join(words)!r}; docs: mappa docs plugins")
    table = columns_table("package", "offers", "API", "installed", text=2)
    for name, one in found.items():
        offers = ", ".join(dict.fromkeys(offer for names in one.offers.values() for offer in names))
        table.add_row(Name(name), Name(offers or "commands"), str(one.api), installed_version(name) or "-")
    Console().print(table)


@click.command("check")
@click.argument("distribution")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def check(distribution: str, as_json: bool) -> None:
    """Hold an installed DISTRIBUTION to the contract of packages with plugins; exit code 2 where it is not met."""
    from mappa_analysis.plugin_check import check_package

    checked = check_package(distribution)
    if as_json:
        echo(json.dumps({"name": checked.name, "version": checked.version, "faults": checked.faults}))
    else:
        echo("\n".join((checked.line, *(f"- {fault}" for fault in checked.faults))))
    if checked.faults:
        raise click.exceptions.Exit(2)
