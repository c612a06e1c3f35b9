"""`mappa sandbox`: run programs in the sandbox of a run, without a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mappa.commands import ConfigArguments, did_you_mean, echo, json_option, load_registry
from mappa_core import ConfigError, InputError, Registry, ToolError
from mappa_core.redaction import clean_line
from mappa_core.sandbox import ToolSection

if TYPE_CHECKING:
    from mappa_core import ToolResult
    from mappa_core.sandbox import Sandbox

TOOL = "python"


@click.group("sandbox")
def command() -> None:
    """Try the sandbox that the programs of agents run in."""


@command.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, metavar="[-- ARGS...]")
@click.option("--plugin", metavar="NAME", help="Take tool and limits from this plugin's recipe, not from core.")
@click.option("--recipe", metavar="NAME", help="Recipe of the plugin; `tiny` by default.")
@click.option(
    "--config",
    "config_files",
    metavar="FILE",
    type=click.Path(path_type=Path),
    multiple=True,
    help="YAML file applied over the recipe; may be repeated.",
)
@click.option("--tool", metavar="NAME", default=TOOL, show_default=True, help="The recipe's tool that runs programs.")
@json_option
def run_file(
    file: Path,
    arguments: Sequence[str],
    plugin: str | None,
    recipe: str | None,
    config_files: tuple[Path, ...],
    tool: str,
    as_json: bool,
) -> None:
    """Run one Python program as an agent's would be run, and print the result. The program's folder is empty at first
    and gone afterwards. The exit code is 0 whatever becomes of the program."""
    from mappa_core.codec import to_json

    code = _text(file)
    registry = load_registry()
    config_arguments = ConfigArguments(plugin=plugin, recipe=recipe, config_files=config_files, settings=(), name=None)
    section = _section(config_arguments, registry, tool)
    try:
        sandbox, result = asyncio.run(_run(registry, section, code, arguments))
    except ToolError as error:
        raise InputError(f"the program could not be run: {error}") from error
    if as_json:
        echo(to_json(result).decode())
    else:
        _show(sandbox, result)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the program {file}: {error}") from error


def _section(config_arguments: ConfigArguments, registry: Registry, name: str) -> ToolSection:
    if config_arguments.plugin is None and not config_arguments.config_files:
        if name != TOOL:
            raise ConfigError(f"--tool {name}: only a recipe has other tools than {TOOL}: name one with --plugin")
        return ToolSection(use=TOOL, options=registry.offer("tools", TOOL).options())
    tools = config_arguments.compose(registry).config.tools
    if name not in tools:
        raise ConfigError(f"--tool {name}: the recipe has no such tool.{did_you_mean(name, tools)}")
    return tools[name]


async def _run(
    registry: Registry, section: ToolSection, code: str, arguments: Sequence[str]
) -> tuple[Sandbox, ToolResult]:
    from mappa_core.sandbox import FolderWorkspace, OwnedFolder, Sandboxed, to_tool_limits

    tool = registry.build("tools", section.use, section.options)
    try:
        if not isinstance(tool, Sandboxed):
            raise ConfigError(f"the tool {section.use} runs no programs: name one that does with --tool")
        sandbox = await tool.open()
        with closing(OwnedFolder("mappa-work-")) as folder:
            workspace = FolderWorkspace(folder.path / "work")
            return sandbox, await tool.run(code, arguments, workspace, to_tool_limits(section))
    finally:
        await tool.close()


def _show(sandbox: Sandbox, result: ToolResult) -> None:
    """Print the program's output to the streams it was written to, and its result to standard error."""
    echo(result.stdout, nl=False)
    echo(result.stderr, nl=False, err=True)
    ending = result.status if result.exit_code is None else f"{result.status}, exit code {result.exit_code}"
    detail = f" ({sandbox.detail})" if sandbox.detail else ""
    click.secho(f"{ending}, {result.seconds:.2f} s in {sandbox.name}{detail}", err=True, bold=True)
    for change in result.files:
        size = "" if change.size is None else f" ({change.size} bytes)"
        echo(f"{change.kind} {clean_line(change.path)}{size}", err=True)
    for warning in sandbox.warnings:
        click.secho(warning, err=True, fg="yellow")
