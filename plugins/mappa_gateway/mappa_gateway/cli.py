"""`mappa gateway`: try an external agent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mappa.commands import ConfigArguments, load_registry, recipe_options
from mappa_core import ConfigError, Trajectory, Verdict
from mappa_core.redaction import clean_line

if TYPE_CHECKING:
    from mappa.commands import Console

GATEWAY_RECIPE = "gateway/gateway"


@click.command("gateway")
@recipe_options
@click.option("--tasks", "count", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@click.option("--coach", is_flag=True, help="Ask the coach too, and show its verdicts and its errors.")
def command(arguments: ConfigArguments, count: int, coach: bool) -> None:
    """Play tasks with an agent of your own, and show its requests.

    It shows what became of each request, and trains nothing. The agent is a function or a command that speaks to a
    server of OpenAI's or Anthropic's form: workflow.options.function or .command. Without --plugin and --recipe it
    starts from the recipe gateway/gateway, so that one --config file with tasks, agent, model and coach is enough.
    `mappa train --recipe gateway/gateway` with the same file trains it. With --coach it exits as training would (3)
    where too many verdicts fail.
    """
    from mappa.commands import Console, announce_providers, show_evaluation, show_trajectory
    from mappa.sessions import evaluate_standalone

    verdicts: list[Verdict] = []

    def show(trajectory: Trajectory) -> None:
        verdicts.extend(trajectory.verdicts)
        show_trajectory(console, trajectory)

    registry = load_registry()
    if arguments.plugin is None and arguments.recipe is None:
        arguments = replace(arguments, recipe=GATEWAY_RECIPE)
    settings = ("eval.coach=true",) if coach else ()
    composed = arguments.compose(registry, f"eval.problems={count}", *settings)
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
            on_trajectory=show,
        )
    )
    console.rule()
    show_evaluation(console, evaluated.evaluation)
    if composed.config.eval.coach:
        _show_verdicts(console, verdicts)
    else:
        console.print("the coach was not asked: --coach asks it, as training does")
    console.print(f"trajectories: mappa runs show {evaluated.folder}", soft_wrap=True, highlight=False)
    if composed.config.eval.coach:
        _check_verdicts(verdicts, composed.config.coach.max_missing)


def _show_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Print how many verdicts there are by status, and why scores are missing."""
    from mappa.judging import count_statuses

    counts = count_statuses(verdicts)
    statuses = f"{counts.scored:,} scored, {counts.abstained:,} abstained, {counts.failed:,} failed"
    console.print(f"coach     {counts.verdicts:,} verdicts: {statuses}", highlight=False)
    for reason, times in counts.reasons.items():
        console.print(f"{times:7,} x {clean_line(reason)}", markup=False, highlight=False, soft_wrap=True)


def _check_verdicts(verdicts: Sequence[Verdict], max_missing: float) -> None:
    from mappa.judging import check_answered, count_statuses

    check_answered([count_statuses(verdicts)], max_missing)
