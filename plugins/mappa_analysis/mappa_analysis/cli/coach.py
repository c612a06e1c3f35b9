"""`mappa coach`: evaluate coaches on actions with known truth."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from mappa_core import ConfigError
from mappa_core.commands import (
    NamedCoach,
    Registry,
    announce_providers,
    build_options,
    did_you_mean,
    load_registry,
    parse_overrides,
)

if TYPE_CHECKING:
    from mappa_analysis.cli.verdict_tables import VerdictBar
    from mappa_analysis.coach_eval.batch_judge import JudgingLimits
    from mappa_analysis.coach_eval.blame import BlameEvaluation
    from mappa_analysis.coach_eval.evaluate import CoachEvaluation
    from mappa_analysis.coach_eval.labelled_actions import LabelledSet, LabelSource

POSITIVE_SECONDS = click.FloatRange(min=0.0, min_open=True)


@click.group("coach")
def command() -> None:
    """Certify coaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachChoice:
    """A coach to evaluate: its name in the report, its offer, and the offer's options."""

    name: str
    offer: str
    options: Any


@command.command("eval")
@click.option("--coach", "coaches", metavar="[NAME=]OFFER", multiple=True, required=True, help="May be repeated.")
@click.option("--run", "runs", metavar="RUN", type=click.Path(path_type=Path), multiple=True, help="May be repeated.")
@click.option("--file", metavar="FILE", type=click.Path(path_type=Path), help="Labelled actions, one a line.")
@click.option("--agent", "agents", metavar="AGENT", multiple=True, help="Only actions of this agent; may be repeated.")
@click.option(
    "--against",
    type=click.Choice(["outcome", "counterfactual"]),
    default="outcome",
    show_default=True,
    help="What an action is labelled with: the outcome of its trajectory, or its own counterfactual credit.",
)
@click.option(
    "--repeats", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Times each is judged."
)
@click.option("--limit", metavar="N", type=click.IntRange(1), help="Trajectories at most, drawn at random.")
@click.option(
    "--concurrency", metavar="N", type=click.IntRange(1), default=64, show_default=True, help="Asked at once."
)
@click.option(
    "--timeout", metavar="S", type=POSITIVE_SECONDS, default=120.0, show_default=True, help="Seconds for a verdict."
)
@click.option("--save", metavar="FILE", type=click.Path(path_type=Path), help="Also write the labelled actions.")
@click.option("--quiet", is_flag=True, help="Print only the result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.argument("settings", nargs=-1, metavar="[NAME.KEY=VALUE]...")
def eval_command(
    coaches: Sequence[str],
    runs: Sequence[Path],
    file: Path | None,
    agents: Sequence[str],
    against: LabelSource,
    repeats: int,
    limit: int | None,
    concurrency: int,
    timeout: float,
    save: Path | None,
    quiet: bool,
    as_json: bool,
    settings: Sequence[str],
) -> None:
    """Hold coaches against actions whose truth is known.

    Actions are those of runs, each labelled with the outcome of its trajectory and shown as the run's coach saw it, or
    those of a JSON Lines file: {"scene": …, "label": 1.0, "trajectory": "…"}, as --save writes them; a label above 0.5
    is a right action. A coach is named by its offer, or NAME=OFFER where one is to be tried with several options:

    \b
      mappa coach eval --run runs/x --coach low=gemini --coach high=gemini low.model=… high.model=…

    Runs that were trained with credit.counterfactual.use tell what another action would have changed: with --against
    counterfactual a coach's blame is held against that.
    """
    from mappa_analysis.cli import blame_tables, coach_eval_tables
    from mappa_analysis.cli.verdict_tables import verdict_bar
    from mappa_analysis.coach_eval.batch_judge import JudgingLimits
    from mappa_analysis.coach_eval.labelled_actions import write_labels

    if bool(runs) == bool(file):
        raise ConfigError("name the labelled actions with --run RUN (one or more) or with --file FILE")
    if against == "counterfactual" and repeats > 1:
        raise ConfigError("--against counterfactual compares one verdict of each action: leave --repeats out")
    registry = load_registry()
    chosen = parse_coaches(registry, coaches, settings)
    labels = asyncio.run(_read_labels(registry, runs, file, limit, against))
    if agents:
        labels = labels.for_agents(agents)
    if save is not None:
        write_labels(save, labels)
    errors = Console(stderr=True)
    asking = JudgingLimits(concurrency=concurrency, timeout_s=timeout)
    with verdict_bar(errors, quiet=quiet or as_json) as bar:
        bar.start(len(chosen) * repeats * len(labels.actions))
        if against == "counterfactual":
            blaming = asyncio.run(_evaluate_blame(registry, chosen, labels, asking, errors, bar))
            document, show = blame_tables.blame_json(blaming), partial(blame_tables.show_blame, certificate=blaming)
        else:
            certified = asyncio.run(_evaluate_coaches(registry, chosen, labels, asking, repeats, errors, bar))
            document, show = (
                coach_eval_tables.coach_evaluation_json(certified),
                partial(coach_eval_tables.show_coach_evaluation, certificate=certified),
            )
    if as_json:
        click.echo(document)
    else:
        show(Console())


def parse_coaches(registry: Registry, coaches: Sequence[str], settings: Sequence[str]) -> list[CoachChoice]:
    """Parse the coaches of `--coach` with their options from `NAME.key=value` words.

    Raises:
        ConfigError, PluginError: a name occurs twice, an offer or option is unknown, or an option belongs to no coach.
    """
    offers: dict[str, str] = {}
    for word in coaches:
        name, _, offer = word.rpartition("=")
        name = name or offer
        if name in offers:
            raise ConfigError(f"--coach {word}: {name} is named already; give it another name: --coach NAME={offer}")
        if "." in name:
            raise ConfigError(f"--coach {word}: {name!r} has a dot in it; give it a name: --coach NAME={offer}")
        offers[name] = offer
    tree = parse_overrides(settings)
    for name in tree.fields:
        if name not in offers:
            raise ConfigError(
                f"{name}: no --coach is named so, and options are NAME.key=value.{did_you_mean(name, offers)}"
            )
    return [
        CoachChoice(name=name, offer=offer, options=build_options(registry, "coaches", offer, tree, name))
        for name, offer in offers.items()
    ]


async def _read_labels(
    registry: Registry, runs: Sequence[Path], file: Path | None, limit: int | None, against: LabelSource
) -> LabelledSet:
    from mappa_analysis.coach_eval.labelled_actions import label_runs, read_labels

    if file is not None:
        return read_labels(file, limit)
    return await label_runs(registry, runs, limit, label_source=against)


@asynccontextmanager
async def _open_coaches(
    registry: Registry, chosen: Sequence[CoachChoice], errors: Console
) -> AsyncIterator[list[NamedCoach]]:
    """Build and announce the coaches; closes them at the end of the context."""
    async with AsyncExitStack() as stack:
        judges = []
        for choice in chosen:
            judges.append(NamedCoach(name=choice.name, coach=registry.build("coaches", choice.offer, choice.options)))
            stack.push_async_callback(judges[-1].coach.close)
        announce_providers(
            errors, list(dict.fromkeys(provider for judge in judges for provider in judge.coach.providers))
        )
        yield judges


async def _evaluate_blame(
    registry: Registry,
    chosen: Sequence[CoachChoice],
    labels: LabelledSet,
    asking: JudgingLimits,
    errors: Console,
    bar: VerdictBar,
) -> BlameEvaluation:
    from mappa_analysis.coach_eval.blame import evaluate_blame

    async with _open_coaches(registry, chosen, errors) as judges:
        return await evaluate_blame(judges, labels, asking, on_verdict=bar.advance)


async def _evaluate_coaches(
    registry: Registry,
    chosen: Sequence[CoachChoice],
    labels: LabelledSet,
    asking: JudgingLimits,
    repeats: int,
    errors: Console,
    bar: VerdictBar,
) -> CoachEvaluation:
    from mappa_analysis.coach_eval.evaluate import evaluate_coaches

    async with _open_coaches(registry, chosen, errors) as judges:
        return await evaluate_coaches(judges, labels, asking, repeats=repeats, on_verdict=bar.advance)
