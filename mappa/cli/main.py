"""Entry point of the command line: converts errors and signals to messages and exit codes.

0  done
1  a bug: the traceback is shown
2  the input is wrong: one message says what, where and what to do
3  a guard stopped the run, after a checkpoint; too many verdicts of a judgement failed; the engine did not start
130, 143  stopped by SIGINT, SIGTERM
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from mappa.cli.command_group import MappaGroup, show_commands
from mappa_core.errors import EngineLost, GuardStop, InputError, Terminated
from mappa_core.redaction import clean, clean_line, keep_environment, redact

EXIT_INPUT, EXIT_GUARD, EXIT_INTERRUPTED, EXIT_TERMINATED = 2, 3, 130, 143


@click.command(cls=MappaGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--block", metavar="PLUGIN", multiple=True, is_eager=True, help="Leave an installed plugin out; may be repeated."
)
@click.option(
    "--commands",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_commands,
    help="Show every command with what it does, and exit.",
)
@click.version_option(package_name="mappa", prog_name="mappa")
def cli(block: Sequence[str]) -> None:
    """Understand, mend and train teams of LLM agents: a coach judges every single action."""
    import structlog
    from structlog.dev import ConsoleRenderer, plain_traceback
    from structlog.processors import format_exc_info

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
    except EngineLost as lost:
        _print_error("Engine lost", str(lost))
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
    # One line an event; a traceback has lines of its own.
    safe = {key: clean(text) if key == "exception" else clean_line(text) for key, text in shown.items()}
    return {key: event[key] if safe[key] == text else safe[key] for key, text in shown.items()}


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

    def terminate(number: int, frame: object) -> None:
        raise Terminated(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
