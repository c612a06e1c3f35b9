"""`mappa gateway`: try an external agent."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import click

from mappa.commands import ConfigArguments, load_registry, recipe_options
from mappa_core import ConfigError

GATEWAY_RECIPE = "gateway/gateway"


@click.command("gateway")
@recipe_options
@click.option("--tasks", "count", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="How many.")
def command(arguments: ConfigArguments, count: int) -> None:
    """Play tasks with an agent of your own, and show its requests.

    It shows what became of each request, and trains nothing. The agent is a function or a command that speaks to an
    OpenAI-compatible server: workflow.options.function or .command. Without --plugin and --recipe it starts from the
    recipe gateway/gateway, so that one --config file with tasks, agent, model and coach is enough. `mappa train
    --recipe gateway/gateway` with the same file trains it.
    """
    from mappa.commands import Console, announce_providers, show_evaluation, show_trajectory
    from mappa.sessions import evaluate_standalone

    registry = load_registry()
    if arguments.plugin is None and arguments.recipe is None:
        arguments = replace(arguments, recipe=GATEWAY_RECIPE)
    composed = arguments.compose(registry, f"eval.problems={count}")
    if composed.config.workflow.use != "gateway":
        raise ConfigError(
            f"recipe {composed.full_name} plays the workflow {composed.config.workflow.use}: add workflow.use=gateway, "
            "and the agent's own program by workflow.options.function or workflow.options.command"
        )
    console, errors = Console(), Console(stderr=True)
    evaluated = asyncio.run(
        evaluate_standalone(
            composed,
            registry,
            purpose="gateway",
            on_providers=lambda providers: announce_providers(errors, providers),
            on_trajectory=lambda trajectory: show_trajectory(console, trajectory),
        )
    )
    console.rule()
    show_evaluation(console, evaluated.evaluation)
    console.print(f"trajectories: mappa runs show {evaluated.folder}", soft_wrap=True, highlight=False)
