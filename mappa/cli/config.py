"""`mappa config`: show every setting of a run, with its value and origin."""

from __future__ import annotations

import json

import click

from mappa.cli.common_options import json_option
from mappa.cli.options import ConfigArguments, load_registry, recipe_options


@click.command("config")
@recipe_options
@json_option
def command(arguments: ConfigArguments, as_json: bool) -> None:
    """Show every setting of a run, its value and who set it."""
    composed = arguments.compose(load_registry())
    if as_json:
        document = {
            "plugin": composed.plugin,
            "recipe": composed.recipe,
            "recipe_hash": composed.recipe_hash,
            "config": composed.document,
            "origins": composed.origins,
            "not_installed": {one.key: one.reason for one in composed.missing_offers},
        }
        click.echo(json.dumps(document, ensure_ascii=False))
        return
    _show(composed.to_yaml())
    for one in composed.missing_offers:
        click.secho(f"not installed: {one.key}.use: {one.reason}", fg="yellow", err=True)


def _show(text: str) -> None:
    from rich.syntax import Syntax

    from mappa.cli.console import Console

    console = Console()
    if console.is_terminal:
        console.print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    else:
        click.echo(text, nl=False)
