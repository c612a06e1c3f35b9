"""`mappa coach`: what the scores of coaches are worth."""

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

from mappa_core.cli.asking import announce
from mappa_core.cli.options import load_registry
from mappa_core.config.compose import options_of
from mappa_core.config.text import read_words
from mappa_core.errors import ConfigError
from mappa_core.plugins import Registry, choices

if TYPE_CHECKING:
    from mappa_core.cli.verdicts import Bar
    from mappa_core.evaluation.asking import Asking
    from mappa_core.evaluation.blame import BlameCertificate
    from mappa_core.evaluation.certify import Certificate
    from mappa_core.evaluation.labelled import Against, Labels
    from mappa_core.rollout.team import Judge

SECONDS = click.FloatRange(min=0.0, min_open=True)


@click.group("coach")
def command() -> None:
    """Certify coaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A coach to be certified: its name in the report, its offer, and the offer's options."""

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
@click.option("--timeout", metavar="S", type=SECONDS, default=120.0, show_default=True, help="Seconds for a verdict.")
@click.option("--save", metavar="FILE", type=click.Path(path_type=Path), help="Also write the labelled actions.")
@click.option("--quiet", is_flag=True, help="Print only the result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.argument("settings", nargs=-1, metavar="[NAME.KEY=VALUE]...")
def evaluate(
    coaches: Sequence[str],
    runs: Sequence[Path],
    file: Path | None,
    agents: Sequence[str],
    against: Against,
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
    from mappa_core.cli import blame, certificate
    from mappa_core.cli.verdicts import counting_verdicts
    from mappa_core.evaluation.asking import Asking
    from mappa_core.evaluation.labelled import save_labels

    if bool(runs) == bool(file):
        raise ConfigError("name the labelled actions with --run RUN (one or more) or with --file FILE")
    if against == "counterfactual" and repeats > 1:
        raise ConfigError("--against counterfactual compares one verdict of each action: leave --repeats out")
    registry = load_registry()
    chosen = chosen_coaches(registry, coaches, settings)
    labels = asyncio.run(_labels(registry, runs, file, limit, against))
    if agents:
        labels = labels.of(agents)
    if save is not None:
        save_labels(save, labels)
    errors = Console(stderr=True)
    asking = Asking(concurrency=concurrency, timeout_s=timeout)
    with counting_verdicts(errors, quiet=quiet or as_json) as bar:
        bar.starting(len(chosen) * repeats * len(labels.actions))
        if against == "counterfactual":
            blaming = asyncio.run(_blaming(registry, chosen, labels, asking, errors, bar))
            document, show = blame.as_document(blaming), partial(blame.show, certificate=blaming)
        else:
            certified = asyncio.run(_certified(registry, chosen, labels, asking, repeats, errors, bar))
            document, show = certificate.as_document(certified), partial(certificate.show, certificate=certified)
    if as_json:
        click.echo(document)
    else:
        show(Console())


def chosen_coaches(registry: Registry, coaches: Sequence[str], settings: Sequence[str]) -> list[Choice]:
    """The coaches that `--coach` names with the options that `NAME.key=value` words give.

    Raises:
        ConfigError, PluginError: a name occurs twice, an offer or an option is unknown, or a word is of no coach.
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
    tree = read_words(settings)
    for name in tree.fields:
        if name not in offers:
            raise ConfigError(f"{name}: no --coach is named so, and options are NAME.key=value.{choices(name, offers)}")
    return [
        Choice(name=name, offer=offer, options=options_of(registry, "coaches", offer, tree, name))
        for name, offer in offers.items()
    ]


async def _labels(
    registry: Registry, runs: Sequence[Path], file: Path | None, limit: int | None, against: Against
) -> Labels:
    from mappa_core.evaluation.labelled import labels_of_file, labels_of_runs

    if file is not None:
        return labels_of_file(file, limit)
    return await labels_of_runs(registry, runs, limit, against=against)


@asynccontextmanager
async def _built(registry: Registry, chosen: Sequence[Choice], errors: Console) -> AsyncIterator[list[Judge]]:
    """The coaches, announced, for as long as they are asked."""
    from mappa_core.rollout.team import Judge

    async with AsyncExitStack() as stack:
        judges = []
        for one in chosen:
            judges.append(Judge(name=one.name, coach=registry.build("coaches", one.offer, one.options)))
            stack.push_async_callback(judges[-1].coach.close)
        announce(errors, list(dict.fromkeys(provider for judge in judges for provider in judge.coach.providers)))
        yield judges


async def _blaming(
    registry: Registry, chosen: Sequence[Choice], labels: Labels, asking: Asking, errors: Console, bar: Bar
) -> BlameCertificate:
    from mappa_core.evaluation.blame import certify_blame

    async with _built(registry, chosen, errors) as judges:
        return await certify_blame(judges, labels, asking, judged=bar.judged)


async def _certified(
    registry: Registry,
    chosen: Sequence[Choice],
    labels: Labels,
    asking: Asking,
    repeats: int,
    errors: Console,
    bar: Bar,
) -> Certificate:
    from mappa_core.evaluation.certify import certify

    async with _built(registry, chosen, errors) as judges:
        return await certify(judges, labels, asking, repeats=repeats, judged=bar.judged)
