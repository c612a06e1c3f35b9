"""`mappa train`: train a team, or resume a run."""

from __future__ import annotations

from pathlib import Path

import click

from mappa.cli.common_options import json_option, quiet_option
from mappa.cli.options import ConfigArguments, load_registry, recipe_options, trust_option
from mappa.config.compose import ComposedConfig
from mappa_core.errors import ConfigError
from mappa_core.plugins import Registry


@click.command("train")
@recipe_options
@click.option("--resume", metavar="RUN", type=click.Path(path_type=Path), help="Continue the run in this folder.")
@trust_option
@click.option("--dry-run", is_flag=True, help="Check the config, the tasks and the models; train nothing.")
@quiet_option
@json_option
def command(
    arguments: ConfigArguments, resume: Path | None, trust: bool, dry_run: bool, quiet: bool, as_json: bool
) -> None:
    """Train a team of agents on a coach's verdict of every action.

    `mappa eval --probe 8` says beforehand whether there is something to learn.
    """
    from mappa.cli.console import Console
    from mappa.cli.run_result import train_and_print
    from mappa.session.trust import add_own_plugin
    from mappa.training.run import Run
    from mappa.training.warm_start import WarmStart, is_warm_start

    registry = load_registry()
    if resume is None:
        run = Run(arguments.compose(registry), registry)
    else:
        if arguments.chooses_config or arguments.name:
            others = "--plugin, --recipe, --config and --name"
            raise ConfigError(f"--resume goes on with the run's own config: leave out {others}")
        registry = add_own_plugin(registry, resume, trust=trust)
        kind = WarmStart if is_warm_start(resume) else Run
        run = kind.resume(resume, *arguments.words, registry=registry, trust=trust)
    console = Console(stderr=as_json, quiet=quiet and not as_json)
    if not as_json and not quiet:
        console.print(recipe_line(run.composed, registry), soft_wrap=True, highlight=False)
    if dry_run:
        Console().print(run.check(), highlight=False)
        return
    train_and_print(run, console, quiet=quiet, as_json=as_json)


def recipe_line(composed: ComposedConfig, registry: Registry) -> str:
    """Name the recipe of the run, and the other recipes of its plugin."""
    others = [name for name in registry.plugin(composed.plugin).recipes if name != composed.recipe]
    return f"{composed.full_name} (others by --recipe: {', '.join(sorted(others)) or 'none'})"
