"""Options shared by commands: plugins, and the config composed of a recipe, config files and `key=value` words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from mappa.cli.command_group import blocked_plugins, plugin_names
from mappa.config.compose import ComposedConfig, compose
from mappa_core.plugins import Registry, load_plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigArguments:
    """Command-line arguments that choose a config."""

    plugin: str | None
    recipe: str | None
    config_files: tuple[Path, ...]
    settings: tuple[str, ...]
    name: str | None

    @property
    def words(self) -> tuple[str, ...]:
        """The `key=value` words, including those of options."""
        return self.settings if self.name is None else (*self.settings, f"run.name={json.dumps(self.name)}")

    def compose(self, registry: Registry, *words: str) -> ComposedConfig:
        """Compose the config; `words` are settings of the command itself, which the user's override."""
        return compose(registry, self.plugin, self.recipe, self.config_files, (*words, *self.words))


def recipe_options(function: Callable[..., None], *, words: str = "[KEY=VALUE]...") -> Callable[..., None]:
    """Add the options that choose a config to a command; it receives them as `arguments`. `words` is how its help calls
    the words that follow."""

    @wraps(function)
    def command(**given: Any) -> None:
        arguments = ConfigArguments(**{one.name: given.pop(one.name) for one in fields(ConfigArguments)})
        function(arguments=arguments, **given)

    decorators = (
        click.option("--plugin", metavar="NAME", shell_complete=_plugin_names, help="Plugin whose recipe is used."),
        click.option("--recipe", metavar="NAME", help="Recipe of the plugin; `tiny` by default."),
        click.option(
            "--config",
            "config_files",
            metavar="FILE",
            type=click.Path(path_type=Path),
            multiple=True,
            help="YAML file applied over the recipe; may be repeated.",
        ),
        click.option("--name", metavar="RUN", help="Name of the run folder."),
        click.argument("settings", nargs=-1, metavar=words),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


trust_option = click.option("--trust", is_flag=True, help="Trust a run of others with all that it runs and reaches.")
"""The option of commands that build what a stored run names; they receive it as `trust`."""


def _plugin_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in plugin_names(ctx) if name.startswith(incomplete)]


def load_registry() -> Registry:
    """Load core and all installed plugins except those left out with `mappa --block`."""
    return load_plugins(block=blocked_plugins())
