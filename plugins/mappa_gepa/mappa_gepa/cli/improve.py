"""`mappa improve`: search for better prompts, and report what they gain on tasks that chose nothing."""

from __future__ import annotations

import asyncio
import difflib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mappa.commands import (
    ConfigArguments,
    Console,
    announce_providers,
    echo,
    json_option,
    load_registry,
    quiet_option,
    recipe_options,
    rollout_bar,
    trust_option,
)
from mappa.runs import RunReader
from mappa.sessions import ComposedConfig, add_own_plugin, diff_configs, restore_resumed, restore_trusted
from mappa_core import ConfigError, Registry
from mappa_core.codec import to_json
from mappa_gepa.options import PERFECT, ImproveOptions
from mappa_gepa.stored_search import CONFIG_NAME, StoredSearch, check_playable, checkpoint_prompts

if TYPE_CHECKING:
    from mappa.statistics import Interval
    from mappa_gepa.improve import Improvement

PROPOSER = "proposer."
"""Begins a `key=value` word that is an option of the proposer."""
REFUSALS = {
    "leak": "held an answer of a task",
    "longer": "only got longer",
    "tags": "changed what the workflow fills in",
    "tried": "had been tried",
    "unchanged": "changed nothing",
    "unreadable": "held no prompt",
}


@click.command("improve")
@recipe_options
@click.option("--run", metavar="RUN", type=click.Path(path_type=Path), help="Take config and last weights of this run.")
@click.option("--resume", metavar="RUN", type=click.Path(path_type=Path), help="Continue the search in this folder.")
@click.option(
    "--proposer", metavar="OFFER", help="Provider whose model writes prompts; its options: proposer.KEY=VALUE."
)
@click.option("--rollouts", metavar="N", type=int, help="Rollouts of the whole run, the report's included. [400]")
@click.option("--propose", metavar="N", type=int, help="Tasks that proposals learn from, at most. [64]")
@click.option("--choose", metavar="N", type=int, help="Tasks that choose among candidates, at most. [24]")
@click.option("--report", metavar="N", type=int, help="Tasks that choose nothing and are reported, at most. [48]")
@click.option("--minibatch", metavar="N", type=int, help="Tasks that a proposal is shown and first tried on. [4]")
@click.option("--samples", metavar="N", type=int, help="Rollouts per task and candidate. [1]")
@click.option("--feedback", type=click.Choice(["verdicts", "outcome"]), help="What a proposal is shown. [verdicts]")
@click.option("--choice", type=click.Choice(["blame", "round_robin"]), help="Whose prompt is changed next. [blame]")
@click.option(
    "--agent", "agents", metavar="NAME", multiple=True, help="Change only this agent's prompt; may be repeated."
)
@click.option("--patience", metavar="N", type=int, help="End after N proposals in a row of which none is kept. [16]")
@click.option("--max-growth", metavar="X", type=float, help="Refuse prompts longer than X times the original. [4]")
@click.option("--max-tokens", metavar="N", type=int, help="Tokens of a proposal, thinking included. [4096]")
@trust_option
@quiet_option
@json_option
def command(
    arguments: ConfigArguments,
    run: Path | None,
    resume: Path | None,
    trust: bool,
    quiet: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Search for better prompts of a team, without changing weights.

    The optimiser is GEPA. Tasks of the split train are parted by hash: some teach, some choose, and the others report.
    A proposal for an agent is shown the verdicts on its own actions. KEY=VALUE changes the config, proposer.KEY=VALUE
    the proposer's options.
    """
    from mappa_gepa.improve import Watcher, improve

    given = {name: value for name, value in chosen.items() if value not in (None, ())}
    _check_beside(arguments, run, resume, given)
    registry, earlier = load_registry(), run or resume
    if earlier is not None:
        registry = add_own_plugin(registry, earlier, trust=trust)
    composed, search = _compose(arguments, registry, run, resume, given, trust=trust)
    errors = Console(stderr=True)
    with rollout_bar(errors, quiet=quiet or as_json) as bar:
        bar.start(search.options.rollouts)
        watcher = Watcher(
            on_providers=lambda providers: announce_providers(errors, providers), on_rollout=bar.on_rollout_end
        )
        found = asyncio.run(improve(composed, registry, search, folder=resume, watcher=watcher))
    if as_json:
        echo(msgspec.json.encode(improvement_json(found)).decode())
    else:
        show_improvement(Console(), found, search.options)


def _check_beside(arguments: ConfigArguments, run: Path | None, resume: Path | None, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for what is given beside --run or --resume, which say it already."""
    if (run or resume) and arguments.chooses_config:
        raise ConfigError("--run and --resume take that run's config: leave out --plugin, --recipe and --config")
    has_proposer_settings = any(word.startswith(PROPOSER) for word in arguments.words)
    if resume is not None and (run or given or has_proposer_settings or arguments.name):
        raise ConfigError("--resume goes on with the options of that search: give nothing beside it but KEY=VALUE")


def _compose(
    arguments: ConfigArguments,
    registry: Registry,
    run: Path | None,
    resume: Path | None,
    given: dict[str, Any],
    *,
    trust: bool,
) -> tuple[ComposedConfig, StoredSearch]:
    """The config and the search that the arguments choose, or those of the run that is resumed."""
    proposer_settings = tuple(word.removeprefix(PROPOSER) for word in arguments.words if word.startswith(PROPOSER))
    words = tuple(word for word in arguments.words if not word.startswith(PROPOSER))
    if resume is not None:
        return _restore(registry, resume, words, trust=trust), StoredSearch.read_trusted(resume, trust=trust)
    if "proposer" not in given:
        raise ConfigError(
            "no proposer was named: --proposer OFFER, a provider whose model writes the prompts (openai, …)"
        )
    options = ImproveOptions(proposer_settings=proposer_settings, **given)
    if run is None:
        return arguments_without(arguments, PROPOSER).compose(registry), StoredSearch(options=options)
    with RunReader(run) as reader:
        weights = max(reader.checkpoints.items(), default=None)
        followed = () if weights is None else checkpoint_prompts(reader, weights[0])
    composed = restore_trusted(registry, run, ("run.name=null", *words), recorded=followed, trust=trust)
    check_playable(run, composed)
    return composed, StoredSearch(options=options, weights=None if weights is None else str(weights[1].resolve()))


def arguments_without(arguments: ConfigArguments, prefix: str) -> ConfigArguments:
    """Return the arguments without the words that begin with `prefix`."""
    values = {field.name: getattr(arguments, field.name) for field in fields(arguments)}
    settings = tuple(word for word in arguments.settings if not word.startswith(prefix))
    return ConfigArguments(**{**values, "settings": settings})


def _restore(registry: Registry, folder: Path, words: Sequence[str], *, trust: bool) -> ComposedConfig:
    """The config of a search that is resumed. Raises ConfigError if `words` would change what is recorded."""
    before, composed = restore_resumed(registry, folder, words, trust=trust)
    refused = [change for change in diff_configs(before, composed) if not change.allowed_on_resume]
    if refused:
        listed = "\n".join(f"  {change}" for change in refused)
        raise ConfigError(f"a search that is resumed cannot change this:\n{listed}\nStart a new one for it.")
    return composed


def show_improvement(console: Console, found: Improvement, options: ImproveOptions) -> None:
    """Print the whole result."""
    for line in _lines(found, options):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _lines(found: Improvement, options: ImproveOptions) -> Iterator[str]:
    for agent in found.changed:
        yield from _diff(agent, found.originals[agent], found.prompts[agent])
    yield from _gain_lines(found)
    refused = sum(found.refusals.values())
    reasons = ", ".join(f"{count} {REFUSALS[reason]}" for reason, count in sorted(found.refusals.items()))
    cost = "of unknown price" if found.usd is None else f"${found.usd:.4f}"
    yield (
        f"search    {found.rollouts:,} of {options.rollouts:,} rollouts; proposals: {found.proposals:,}, of which "
        f"{found.candidates:,} kept and {refused:,} refused{f' ({reasons})' if reasons else ''}; {cost}"
    )
    yield f"run       {found.folder}"
    if not found.proposals and found.chosen_on[0] < PERFECT:
        yield f"next      mappa observe {shlex.quote(str(found.folder))}"
    if found.changed:
        config = shlex.quote(str(found.folder / CONFIG_NAME))
        yield f"next      mappa eval --recipe {found.recipe} --config {config}"


def _gain_lines(found: Improvement) -> Iterator[str]:
    if found.before is None or found.after is None or found.gain is None:
        yield f"gain      none: {_why_no_gain(found)}"
        return
    for label, evaluation in (("before", found.before), ("after", found.after)):
        interval = evaluation.interval
        assert interval is not None  # every task of the report has a result
        yield f"{label:<9} {evaluation.metric} {interval.mean:.1%}{format_bounds(interval, '.1%')}"
    gain = found.gain
    low, high = gain.low, gain.high
    says = "better" if low is not None and low > 0 else "worse" if high is not None and high < 0 else "cannot be told"
    tasks = len(found.after.problems)
    bounds = format_bounds(gain, "+.1%")
    yield f"gain      {100 * gain.mean:+.1f} points{bounds} on {tasks} tasks that chose nothing: {says}"
    before, after = found.chosen_on
    yield f"chosen    {before:.1%} -> {after:.1%} on the tasks that chose, which the choice makes too good"


def _why_no_gain(found: Improvement) -> str:
    if found.proposals:
        return "no candidate did better than the original prompts on the tasks that choose"
    if found.chosen_on[0] >= PERFECT:
        return "the original prompts solve every task that chooses"
    return "nothing was proposed, as no verdict takes points from an agent"


def format_bounds(interval: Interval, spec: str) -> str:
    """The ends of an interval behind its mean; nothing where they are unknown."""
    return "" if interval.low is None or interval.high is None else f" [{interval.low:{spec}}, {interval.high:{spec}}]"


def _diff(agent: str, before: str, after: str) -> Iterator[str]:
    yield from difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{agent}.md before", f"{agent}.md after", lineterm=""
    )
    yield ""


def improvement_json(found: Improvement) -> dict[str, Any]:
    """The result as JSON values; shares are 0-1."""
    evaluations = {"before": found.before, "after": found.after}
    return {
        "folder": str(found.folder),
        **{name: None if one is None else to_builtins(one.interval) for name, one in evaluations.items()},
        "gain": to_builtins(found.gain),
        "tasks": None if found.after is None else len(found.after.problems),
        "changed": list(found.changed),
        "prompts": dict(found.prompts),
        "rollouts": found.rollouts,
        "proposals": found.proposals,
        "candidates": found.candidates,
        "refused": dict(found.refusals),
        "usd": found.usd,
    }


def to_builtins(value: Any) -> Any:
    """A record as JSON values."""
    return msgspec.json.decode(to_json(value))
