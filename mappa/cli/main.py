"""Entry point of the command line: finds commands, and converts errors and signals to messages and exit codes.

0  done
1  a bug: the traceback is shown
2  the input is wrong: one message says what, where and what to do
3  a guard stopped the run, after a checkpoint
130, 143  stopped by SIGINT, SIGTERM
"""

from __future__ import annotations

import importlib
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from typing import Any, TypeVar, cast

import click
import structlog
from click.shell_completion import CompletionItem
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.processors import format_exc_info

from mappa.cli.find_commands import find_commands
from mappa_core.errors import GuardStop, InputError
from mappa_core.plugins import did_you_mean, find_entry_points, first_party_packages, load_plugins
from mappa_core.redaction import clean, keep_environment, redact

RUNNING, LOOKING = "mappa.cli", "mappa.look.cli"
CORE_COMMANDS = {
    **dict.fromkeys(("train", "eval", "runs", "config", "new", "doctor", "completion"), RUNNING),
    **dict.fromkeys(("blame", "coach", "compare", "demo", "docs", "export", "import", "observe", "plan"), LOOKING),
    **dict.fromkeys(("plugins", "recoach", "report", "sweep", "view"), LOOKING),
}
"""Packages of commands by name, in the order of `--help`; each is `command` in the module of its name. Those of other
distributions are entry points."""

EXIT_INPUT, EXIT_GUARD, EXIT_INTERRUPTED, EXIT_TERMINATED = 2, 3, 130, 143
Found = TypeVar("Found")


class MappaGroup(click.Group):
    """Core's commands, those of other packages, and a group of commands per plugin. Help imports no plugin."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*command_names(ctx), *plugin_entry_points(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in command_names(ctx):
            return _command(ctx, cmd_name)
        return _plugin_group(cmd_name) if cmd_name in plugin_entry_points(ctx) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            if package := first_party_packages("commands").get(args[0]):
                ctx.fail(f'mappa {args[0]} comes with {package}: pip install "{package}"')
            ctx.fail(f"No such command {args[0]!r}.{did_you_mean(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # Names only, so that completion does not import every command.
        names = [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            names = command_names(ctx)
            formatter.write_dl([(name, _command(ctx, name).get_short_help_str(formatter.width)) for name in names])
        points = plugin_entry_points(ctx).values()
        if rows := [(one.name, one.dist.metadata["Summary"] if one.dist else one.value) for one in points]:
            with formatter.section("Plugins (mappa PLUGIN --help lists the commands of one)"):
                formatter.write_dl(rows)


@click.command(cls=MappaGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--block", metavar="PLUGIN", multiple=True, is_eager=True, help="Leave an installed plugin out; may be repeated."
)
@click.version_option(package_name="mappa", prog_name="mappa")
def cli(block: Sequence[str]) -> None:
    """Train teams of LLM agents on a coach's verdict of every single action."""
    # Standard output is for results, which scripts may read; standard error is looked up anew for every line.
    warnings.showwarning = _print_warning
    keep_environment()
    sys.excepthook = lambda *error: sys.stderr.write(redact("".join(traceback.format_exception(*error))))
    renderer = ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain_traceback)
    structlog.reset_defaults()
    processors = [*structlog.get_config()["processors"][:-1], format_exc_info, _clean_event, renderer]
    structlog.configure(processors=processors, logger_factory=lambda *names: structlog.PrintLogger(sys.stderr))


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        with _sigterm_as_exit():
            code = cli.main(args=args, prog_name="mappa", standalone_mode=False)
            return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except InputError as error:
        _print_error("Error", str(error))
        return EXIT_INPUT
    except GuardStop as stop:
        _print_error("Stopped", str(stop))
        return EXIT_GUARD
    except (click.Abort, KeyboardInterrupt):
        _print_error("Interrupted", "")
        return EXIT_INTERRUPTED


def _print_warning(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
    """Print a warning for users in the style of errors, and any other as Python does."""
    if issubclass(category, FutureWarning):
        _print_error("Warning", str(message))
    else:
        sys.stderr.write(warnings.formatwarning(message, category, *where[:2]))


def _clean_event(logger: Any, method: str, event: Mapping[str, Any]) -> Mapping[str, Any]:
    shown = {key: one if isinstance(one, str) else repr(one) for key, one in event.items()}
    return {key: event[key] if clean(text) == text else clean(text) for key, text in shown.items()}


def _print_error(title: str, message: str) -> None:
    from rich.text import Text

    from mappa.cli.console import Console

    console = Console(stderr=True)
    text = Text.assemble((f"{title}: " if message else title, "bold red"), message)
    console.print(text, soft_wrap=not console.is_terminal, highlight=False)


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Let SIGTERM unwind the stack like an exit, so that all resources are closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(EXIT_TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def command_names(ctx: click.Context | None = None) -> tuple[str, ...]:
    """Commands that are not blocked: core's, then those of other packages, but not `GROUP.NAME` below one of core's."""
    others = (name for name in _find_once(find_commands, ctx) if "." not in name)
    return (*CORE_COMMANDS, *(name for name in others if name not in CORE_COMMANDS))


def _command(ctx: click.Context, name: str) -> click.Command:
    found = _find_once(find_commands, ctx)
    if name not in CORE_COMMANDS:
        return cast(click.Command, found[name].load())
    command = cast(click.Command, importlib.import_module(f"{CORE_COMMANDS[name]}.{name}").command)
    if isinstance(command, click.Group):
        for below in (one for one in found if one.startswith(f"{name}.")):
            command.add_command(found[below].load())
    return command


def blocked_plugins(ctx: click.Context | None = None) -> tuple[str, ...]:
    """Plugins left out with `--block`; none before the options are parsed, as in `--help`. During shell completion
    there is no current context, so pass one."""
    current = ctx or click.get_current_context(silent=True)
    params = current.find_root().params if current else {}
    return cast(tuple[str, ...], params["block"]) if "block" in params else ()


def plugin_entry_points(ctx: click.Context) -> dict[str, EntryPoint]:
    """Entry points of installed plugins by name, not imported; without blocked ones and those named like a command."""
    names = command_names(ctx)
    return {point.name: point for point in _find_once(find_entry_points, ctx) if point.name not in names}


def _find_once(find: Callable[[Collection[str]], Found], ctx: click.Context | None) -> Found:
    """What `find` finds without blocked plugins, once per invocation: it reads a file of every installed package."""
    blocked, current = blocked_plugins(ctx), ctx or click.get_current_context(silent=True)
    kept = current.meta.setdefault(f"{__name__}.{find.__name__}", {}) if current else {}
    if blocked not in kept:
        kept[blocked] = find(blocked)
    return cast(Found, kept[blocked])


def _plugin_group(name: str) -> click.Group:
    plugin = load_plugins(only=(name,)).plugin(name)
    none = "" if plugin.commands else " It has no commands."
    return click.Group(name, commands=plugin.commands, help=f"Commands of the plugin {name} ({plugin.package}).{none}")
