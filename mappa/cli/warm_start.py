"""`mappa warm-start`: teach a team by examples, for a training to start from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mappa.cli.common_options import json_option, quiet_option
from mappa.cli.options import ConfigArguments, load_registry, recipe_options
from mappa_core.errors import ConfigError

if TYPE_CHECKING:
    from mappa.config.compose import ComposedConfig

FULL_RATE, LORA_RATE = 5e-5, 5e-4
"""Default learning rates: adapters take about ten times that of whole models."""
OPTION_SETTINGS = {
    "epochs": "train.iterations",
    "learning_rate": "train.learning_rate",
    "batch_size": "train.minibatch_rows",
}
"""The setting that each option of the same name gives."""


@click.command("warm-start")
@click.option(
    "--examples",
    "sources",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    required=True,
    help="Chat data: JSON lines or Parquet, or a folder that `mappa export --to sft` wrote; may be repeated.",
)
@click.option("--agent", "agents", metavar="NAME", multiple=True, help="Teach only this agent; may be repeated.")
@click.option(
    "--epochs", type=click.IntRange(min=1), default=3, show_default=True, help="Most passes over the examples."
)
@click.option(
    "--learning-rate", type=float, help=f"Learning rate; {FULL_RATE:g}, or {LORA_RATE:g} for adapters, by default."
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=10, show_default=True, help="Examples per optimiser step."
)
@recipe_options
@quiet_option
@json_option
def command(
    arguments: ConfigArguments,
    sources: tuple[Path, ...],
    agents: tuple[str, ...],
    epochs: int,
    learning_rate: float | None,
    batch_size: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Teach a team by examples, before reinforcement.

    \b
    A training starts from what it learned:
      mappa train … policies.default.from=RUN@best
    """
    from mappa.cli.console import Console
    from mappa.cli.run_result import train_and_print
    from mappa.store.folder import open_checkpoints
    from mappa.training.warm_start import WarmStart, read_team_examples

    arguments.refuse_contradictions(OPTION_SETTINGS)
    registry = load_registry()
    # After the config files, which are written for the training that follows.
    words = (
        f"train.iterations={epochs}", f"train.minibatch_rows={batch_size}", "train.epochs=1", "train.mean=token",
        "train.entropy_coef=0", "train.correction.kind=none", "train.correction.geometric_low=null",
        "train.correction.geometric_high=null", "train.warmup_iterations=0", "checkpoint.every=1", "checkpoint.keep=2",
        "checkpoint.best=false", "eval.before=false", "eval.every=0", "eval.coach=false",
    )  # fmt: skip
    composed = arguments.compose(registry, *words)
    rate = _default_rate(composed) if learning_rate is None else learning_rate
    composed = arguments.compose(registry, *words, f"train.learning_rate={rate}")
    examples = read_team_examples(composed, registry, sources, agents)
    console = Console(stderr=as_json, quiet=quiet and not as_json)
    for (agent, reason), count in examples.left_out.items():
        console.print(f"{agent}: {count} examples {reason} are left out", highlight=False)
    run = WarmStart(composed, registry, examples=examples.kept)
    trained = train_and_print(run, console, quiet=quiet, as_json=as_json)
    if as_json:
        return
    # Without held-out examples no epoch is known to be the best.
    which = "last" if open_checkpoints(trained.folder, None).best() is None else "best"
    Console().print(f"train    … policies.default.from={trained.folder}@{which}", highlight=False, soft_wrap=True)


def _default_rate(composed: ComposedConfig) -> float:
    kinds = {policy.kind for policy in composed.config.policies.values()} - {"frozen", "api"}
    if len(kinds) > 1:
        raise ConfigError("the team has adapters and whole models, which learn at different rates: say --learning-rate")
    return LORA_RATE if kinds == {"lora"} else FULL_RATE
