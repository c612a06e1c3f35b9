"""The commands of `mappa`: where each is found, and how they are listed. Until one is called, none is imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, cast

import click

from mappa.cli.command_table import COMMANDS, FIRST, GROUPS
from mappa.cli.find_commands import find_commands
from mappa_core.errors import PluginError, Terminated
from mappa_core.plugins import did_you_mean, find_entry_points, first_party_packages

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from click.shell_completion import CompletionItem

OTHER = "other"
"""The group of commands that this project does not know, and of those about one plugin."""


class CommandGroup(click.Group):
    """A group to which packages add commands: one that is not installed is an error that names its package."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            path = f"{ctx.command_path} {name}"
            _, *words = path.split()
            if package := first_party_packages("commands").get(".".join(words)):
                ctx.fail(f'{path} comes with {package}: pip install "{package}"')
            ctx.fail(f"No such command {name!r}.{self.find_hint(ctx, name)}")
        return super().resolve_command(ctx, args)

    def find_hint(self, ctx: click.Context, name: str) -> str:
        """What to say of an unknown name, with a leading space."""
        return did_you_mean(name, self.list_commands(ctx))


class MappaGroup(CommandGroup):
    """Commands of the application and of installed packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in grouped_names(ctx).values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_command(ctx, cmd_name) if cmd_name in command_names(ctx) else None

    def find_hint(self, ctx: click.Context, name: str) -> str:
        if name in plugin_names(ctx):
            return f" The plugin {name} has no commands of its own; `mappa plugins` lists what it offers."
        return super().find_hint(ctx, name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        # Names only, so that completion does not import every command.
        names = [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands come before options: they are what a reader looks for here."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = grouped_names(ctx)
        width = max(len(name) for name in (*FIRST, *groups))
        with formatter.section("First commands"):
            formatter.write_dl([(name.ljust(width), COMMANDS[name].summary) for name in FIRST])
        with formatter.section("All commands (mappa --commands says what each does)"):
            formatter.write_dl([(group.ljust(width), ", ".join(names)) for group, names in groups.items()])


def show_commands(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """The callback of `--commands`: print every command with its line, by group, and exit."""
    if not wanted or ctx.resilient_parsing:
        return
    formatter = ctx.make_formatter()
    for group, names in grouped_names(ctx).items():
        with formatter.section(group):
            formatter.write_dl([(name, _summarize(ctx, name)) for name in names])
    click.echo(formatter.getvalue().strip("\n"), color=ctx.color)
    ctx.exit()


def _summarize(ctx: click.Context, name: str) -> str:
    """The line on a command; of one that is not this project's, the summary of its distribution."""
    if name in COMMANDS:
        return COMMANDS[name].summary
    point = _entry_points(ctx)[name]
    return point.dist.metadata["Summary"] if point.dist else point.value


def grouped_names(ctx: click.Context) -> Mapping[str, Sequence[str]]:
    """Names of the listed commands by group; none of the groups is empty."""
    names = command_names(ctx)
    groups = {group: [name for name in listed if name in names] for group, listed in GROUPS.items()}
    groups[OTHER] = [name for name in names if name not in COMMANDS]
    return {group: listed for group, listed in groups.items() if listed}


def command_names(ctx: click.Context | None = None) -> tuple[str, ...]:
    """Commands that are installed and not blocked, also unlisted ones: the project's, then others by the alphabet."""
    found = _entry_points(ctx)
    own = (name for name, command in COMMANDS.items() if command.package is not None or name in found)
    return (*own, *(name for name in found if "." not in name and name not in COMMANDS))


def load_command(ctx: click.Context, name: str) -> click.Command:
    """Import a command. Raises PluginError if that of another package cannot be imported."""
    listed, found = COMMANDS.get(name), _entry_points(ctx)
    if listed is None or listed.package is None:
        return _load(found[name])
    command = cast(click.Command, importlib.import_module(f"{listed.package}.{name.replace('-', '_')}").command)
    if isinstance(command, click.Group):
        added = [_load(point) for key, point in found.items() if key.startswith(f"{name}.")]
        # A copy: the group is one for the process, and another call may block the package.
        command = copy(command)
        command.commands = {**command.commands, **{str(one.name): one for one in added}}
    return command


def _load(point: EntryPoint) -> click.Command:
    try:
        return cast(click.Command, point.load())
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # third-party code, which may also call exit
        package = point.dist.name if point.dist else point.module
        why = f"{type(error).__name__}: {error}"
        raise PluginError(f"the command {point.name} ({package}) does not load: {why}") from error


def blocked_plugins(ctx: click.Context | None = None) -> tuple[str, ...]:
    """Plugins left out with `--block`; none before the options are parsed. During shell completion there is no current
    context, so pass one."""
    current = ctx or click.get_current_context(silent=True)
    params = current.find_root().params if current else {}
    return cast(tuple[str, ...], params["block"]) if "block" in params else ()


def plugin_names(ctx: click.Context) -> tuple[str, ...]:
    """Names of installed plugins that are not blocked; none is imported."""
    return tuple(point.name for point in find_entry_points(blocked_plugins(ctx)))


def _entry_points(ctx: click.Context | None) -> Mapping[str, EntryPoint]:
    """Commands of packages that are not blocked, once per invocation: it reads a file of every installed package."""
    blocked, current = blocked_plugins(ctx), ctx or click.get_current_context(silent=True)
    kept = current.meta.setdefault(__name__, {}) if current else {}
    if blocked not in kept:
        if blocked:
            find_entry_points(blocked)  # Raises PluginError for a plugin that is not installed.
        kept[blocked] = find_commands(blocked)
    return cast("Mapping[str, EntryPoint]", kept[blocked])
