"""`mappa new`: a package with one offer, complete: code, tests, README, CI, and for a workflow prompts and a recipe. Or
the package of a plugin that was one file, or one more offer of a package that is there."""

from __future__ import annotations

from pathlib import Path

import click

from mappa.cli.new.addition import add_offer
from mappa.cli.new.from_file import write_file_package
from mappa.cli.new.rendering import PACKAGE_KINDS as PACKAGE_KINDS
from mappa.cli.new.rendering import write_package
from mappa.cli.options import load_registry
from mappa_core.errors import ConfigError

_FOLDER = click.Path(path_type=Path)
FROM_FILE = "package"


@click.command("new")
@click.argument("kind", type=click.Choice((*PACKAGE_KINDS, FROM_FILE)))
@click.argument("name")
@click.option("--in", "parent", type=_FOLDER, help="The folder to write into; this one by default.")
@click.option("--into", type=_FOLDER, metavar="PACKAGE", help="The folder of a package to add the offer to.")
def command(kind: str, name: str, parent: Path | None, into: Path | None) -> None:
    """Write a package with a new workflow, coach, tool or other offer.

    The package mappa-NAME offers a KIND called NAME. It passes its tests as it is, and is a start to write over. `mappa
    new package ./team.py` makes a package of a plugin that is one file.
    """
    if into is not None and (parent is not None or kind == FROM_FILE):
        raise ConfigError("--into adds one offer to a package that is there: leave out --in, and name a kind of offer")
    registry = load_registry()
    if into is not None:
        folder = add_offer(kind, name, into, registry)
        click.echo(f"wrote {folder}\n")
        click.echo(f'  cd {into}\n  pip install --editable ".[test]"\n  pytest')
        return
    if kind == FROM_FILE:
        folder = write_file_package(Path(name), parent or Path(), registry)
    else:
        folder = write_package(kind, name, parent or Path(), registry)
    click.echo(f"wrote {folder}\n")
    click.echo(f'  cd {folder}\n  pip install --editable ".[test]"\n  pytest')
    if kind in ("workflow", FROM_FILE):
        click.echo(f"  mappa train --plugin {folder.name.removeprefix('mappa-')}")
