"""What several commands ask for: plugins, and the config that a recipe, config files and `key=value` words make."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from mappa_core.cli.main import blocked, plugins
from mappa_core.config.compose import Composed, compose
from mappa_core.plugins import Registry, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked for on the command line."""

    plugin: str | None
    recipe: str | None
    config_files: tuple[Path, ...]
    settings: tuple[str, ...]
    name: str | None

    @property
    def words(self) -> tuple[str, ...]:
        """The `key=value` words, those that options stand for included."""
        return self.settings if self.name is None else (*self.settings, f"run.name={json.dumps(self.name)}")

    def compose(self, registry: Registry, *words: str) -> Composed:
        """Compose the config that was asked for; `words` are what the command itself sets, below the user's own."""
        return compose(registry, self.plugin, self.recipe, self.config_files, (*words, *self.words))


def recipe_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose a config; it receives them as `asked`."""

    @wraps(function)
    def command(
        *,
        plugin: str | None,
        recipe: str | None,
        config_files: tuple[Path, ...],
        settings: tuple[str, ...],
        name: str | None,
        **others: Any,
    ) -> None:
        asked = Asked(plugin=plugin, recipe=recipe, config_files=config_files, settings=settings, name=name)
        function(asked=asked, **others)

    decorators = (
        click.option("--plugin", metavar="NAME", shell_complete=_plugin_names, help="Plugin whose recipe is used."),
        click.option("--recipe", metavar="NAME", help="Recipe of the plugin; `tiny` unless named."),
        click.option(
            "--config",
            "config_files",
            metavar="FILE",
            type=click.Path(path_type=Path),
            multiple=True,
            help="YAML laid over the recipe; may be repeated.",
        ),
        click.option("--name", metavar="RUN", help="Name of the run folder."),
        click.argument("settings", nargs=-1, metavar="[KEY=VALUE]..."),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def _plugin_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in plugins(ctx) if name.startswith(incomplete)]


def load_registry() -> Registry:
    """Core and all installed plugins but those that `mappa --block` leaves out."""
    return load(block=blocked())
