"""Options shared by commands: plugins, and the config composed of a recipe, config files and `key=value` words.

A plugin that is a file is loaded where its option is parsed, and is there for `load_registry` of the same command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from mappa.cli.command_group import blocked_plugins, plugin_names
from mappa.config.compose import ComposedConfig, compose
from mappa.config.plugin_files import LoadedPlugin, load_plugin_file, names_file
from mappa.config.yaml_io import parse_overrides
from mappa_core.errors import ConfigError
from mappa_core.plugins import Registry, load_plugins

_FILES = f"{__name__}.files"
"""Plugins of files that a command loaded, in the `meta` of its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigArguments:
    """Command-line arguments that choose a config."""

    plugin: str | None
    recipe: str | None
    config_files: tuple[Path, ...]
    settings: tuple[str, ...]
    name: str | None

    @property
    def chooses_config(self) -> bool:
        """Whether a config is chosen; the plugin of a run, where it is a file, may be named beside the run's config."""
        is_file = any(loaded.name == self.plugin for loaded in _loaded_files())
        return bool((self.plugin and not is_file) or self.recipe or self.config_files)

    @property
    def words(self) -> tuple[str, ...]:
        """The `key=value` words, including those of options."""
        return self.settings if self.name is None else (*self.settings, f"run.name={json.dumps(self.name)}")

    def compose(self, registry: Registry, *words: str) -> ComposedConfig:
        """Compose the config; `words` are settings of the command itself, which the user's override."""
        if self.name is not None:
            self._refuse_other("--name", self.name, "run.name")
        return compose(registry, self.plugin, self.recipe, self.config_files, (*words, *self.words))

    def refuse_contradictions(self, keys: Mapping[str, str]) -> None:
        """Raise ConfigError if an option that was given to the current command and a `key=value` word give a setting
        different values; `keys` has the setting of each such option, by the name of its parameter."""
        context = click.get_current_context()
        for parameter in context.command.params:
            key = keys.get(parameter.name or "")
            # A default is no word of the user's, who may name the setting in its place.
            if key is not None and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
                self._refuse_other(parameter.opts[0], context.params[parameter.name or ""], key)

    def _refuse_other(self, option: str, value: object, key: str) -> None:
        node = parse_overrides(self.settings).at(key)
        if node is not None and str(node.plain) != str(value):
            raise ConfigError(f"{option} {value} contradicts {key}={node.plain}, which is the same setting: give one")


def recipe_options(
    function: Callable[..., None], *, words: str = "[KEY=VALUE]...", are_paths: bool = False
) -> Callable[..., None]:
    """Add the options that choose a config to a command; it receives them as `arguments`. `words` is how its help calls
    the words that follow; if some `are_paths`, a shell completes them."""

    @wraps(function)
    def command(**given: Any) -> None:
        arguments = ConfigArguments(**{one.name: given.pop(one.name) for one in fields(ConfigArguments)})
        function(arguments=arguments, **given)

    decorators = (
        click.option(
            "--plugin",
            metavar="NAME",
            shell_complete=_plugin_names,
            callback=_load_file,
            help="Plugin whose recipe is used: an installed one, or a file (./team.py), module or module:object.",
        ),
        click.option("--recipe", metavar="NAME", help="Recipe of the plugin; its only one or `tiny` by default."),
        click.option(
            "--config",
            "config_files",
            metavar="FILE",
            type=click.Path(path_type=Path),
            multiple=True,
            help="YAML file applied over the recipe; may be repeated.",
        ),
        click.option("--name", metavar="RUN", help="Name of the run folder."),
        click.argument("settings", nargs=-1, metavar=words, shell_complete=_paths if are_paths else None),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


trust_option = click.option("--trust", is_flag=True, help="Trust a run of others with all that it runs and reaches.")
"""The option of commands that build what a stored run names; they receive it as `trust`."""


def file_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option that names the file of a run's plugin, to commands that take a run and no recipe."""
    return click.option(
        "--plugin",
        metavar="FILE",
        callback=_load_file,
        expose_value=False,
        help="A plugin that is a file or module: of the run's team where it changed since, of a coach, …",
    )(function)


def _load_file(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Load the plugin of a file or module, and return the name of the plugin."""
    if given is None or ctx.resilient_parsing or not names_file(given):
        return given
    loaded = load_plugin_file(given)
    ctx.meta.setdefault(_FILES, []).append(loaded)
    return loaded.name


def _loaded_files() -> Sequence[LoadedPlugin]:
    current = click.get_current_context(silent=True)
    return () if current is None else current.meta.get(_FILES, ())


def _paths(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _plugin_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in plugin_names(ctx) if name.startswith(incomplete)]


def load_registry() -> Registry:
    """Load core, all installed plugins except those left out with `mappa --block`, and those of files that the command
    names."""
    return load_plugins(block=blocked_plugins(), modules={loaded.name: loaded.hooks for loaded in _loaded_files()})
