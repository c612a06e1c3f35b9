"""`mappa advise`: rank the fixes of a team, from one run's verdicts and from trials within a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from mappa.commands import (
    Console,
    announce_providers,
    echo,
    file_option,
    json_option,
    load_registry,
    quiet_option,
    rollout_bar,
    trust_option,
)
from mappa.runs import RunReader
from mappa.sessions import ComposedConfig, add_own_plugin, restore_trusted
from mappa_core import ConfigError
from mappa_core.transport import Provider
from mappa_gepa.cli.improve import PROPOSER
from mappa_gepa.stored_search import check_playable, checkpoint_prompts

NOTHING_TO_TRY = (
    "--rollouts: nothing is named to be tried: --proposer OFFER for prompts, --train, --model AGENT=POLICY, "
    "--swap AGENT=AGENT"
)


@click.command("advise")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--rollouts", metavar="N", type=click.IntRange(0), default=0, help="Budget of all trials. [0: none]")
@click.option("--proposer", metavar="OFFER", help="Provider that writes prompts; its options: proposer.KEY=VALUE.")
@click.option(
    "--model", "models", metavar="AGENT=POLICY", multiple=True, help="Try a policy of the config; may be repeated."
)
@click.option(
    "--swap",
    "swaps",
    metavar="AGENT=AGENT",
    multiple=True,
    help="Try two agents with each other's policy; may be repeated.",
)
@click.option("--train", "trained", is_flag=True, help="Try short trainings of blamed agents that can be trained.")
@click.option("--agent", "agents", metavar="NAME", multiple=True, help="Consider only this agent; may be repeated.")
@file_option
@trust_option
@quiet_option
@json_option
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def command(
    run: Path,
    rollouts: int,
    proposer: str | None,
    models: Sequence[str],
    swaps: Sequence[str],
    trained: bool,
    agents: Sequence[str],
    trust: bool,
    quiet: bool,
    as_json: bool,
    settings: Sequence[str],
) -> None:
    """Find out which fix of a team is worth making.

    It may be none, a prompt, training, another model, a swap. From the verdicts of RUN it estimates how much fixing
    each agent can gain at most. With --rollouts it tries prompts (--proposer), short trainings (--train), models
    (--model) and swaps (--swap) on the run's held-out tasks, in a race against the team as it is. KEY=VALUE changes the
    run's config, and adds policies to try: policies.big.kind=api.
    """
    from mappa_gepa.advise.advice import advise
    from mappa_gepa.advise.trials import TrialOptions
    from mappa_gepa.cli.advice_output import advice_json, show_advice
    from mappa_gepa.improve import Watcher

    if rollouts and not (proposer or models or swaps or trained):
        raise ConfigError(NOTHING_TO_TRY)
    words = tuple(word for word in settings if not word.startswith(PROPOSER))
    proposed = tuple(word.removeprefix(PROPOSER) for word in settings if word.startswith(PROPOSER))
    registry = add_own_plugin(load_registry(), run, trust=trust)
    errors, announced = Console(stderr=True), set[Provider]()

    followed = _last_prompts(run)

    def variant(*others: str) -> ComposedConfig:
        return restore_trusted(registry, run, ("run.name=null", *words, *others), recorded=followed, trust=trust)

    def announce(providers: Sequence[Provider]) -> None:
        announce_providers(errors, [one for one in providers if one not in announced])
        announced.update(providers)

    if rollouts:
        check_playable(run, variant())
    with rollout_bar(errors, quiet=quiet or as_json) as bar:
        if rollouts:
            bar.start(rollouts)
        advice = asyncio.run(
            advise(
                run,
                variant,
                registry,
                agents=agents,
                models=[_pair(text, "--model", "AGENT=POLICY, an agent and a policy of the config") for text in models],
                swaps=[_pair(text, "--swap", "AGENT=AGENT, two agents") for text in swaps],
                options=TrialOptions(rollouts=rollouts, train=trained, proposer=proposer, proposer_settings=proposed),
                watcher=Watcher(on_providers=announce, on_rollout=bar.on_rollout_end),
            )
        )
    if as_json:
        echo(msgspec.json.encode(advice_json(advice, words)).decode())
    else:
        show_advice(Console(), advice, words)


def _last_prompts(run: Path) -> tuple[str, ...]:
    """The prompts of the run's last checkpoint, as `key=value`, where a training changed them."""
    with RunReader(run) as reader:
        return checkpoint_prompts(reader, max(reader.checkpoints, default=0))


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    first, separator, second = text.partition("=")
    if not first or not separator or not second:
        raise ConfigError(f"{option} {text}: not {form}")
    return first, second
