"""`mappa judge`: judge the recorded actions of a run with a coach, and compare the advantages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.table import Table

from mappa.cli.announce import announce_providers
from mappa.cli.common_options import json_option, quiet_option
from mappa.cli.console import Console, echo, escape
from mappa.cli.formats import format_or_dash, format_percent
from mappa.cli.options import file_option, load_registry, trust_option
from mappa.look.cli.verdict_tables import check_answered, format_estimate, make_table, show_reasons, verdict_bar
from mappa_core import Split
from mappa_core.redaction import clean_name

if TYPE_CHECKING:
    from mappa.look.advantage_comparison import ActionAdvantages, AdvantageComparison
    from mappa.look.judge import JudgedRun


@click.command("judge")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--coach", metavar="OFFER", required=True, help="Who judges; the run's own coach keeps its options.")
@click.option("--iteration", metavar="N", type=click.IntRange(0), help="Only rollouts of this iteration, from 0.")
@click.option(
    "--split", type=click.Choice(["train", "eval"]), default="train", show_default=True, help="Which rollouts."
)
@click.option("--limit", metavar="N", type=click.IntRange(1), help="Trajectories at most, the first ones.")
@file_option
@trust_option
@quiet_option
@json_option
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def command(
    run: Path,
    coach: str,
    iteration: int | None,
    split: Split,
    limit: int | None,
    trust: bool,
    quiet: bool,
    as_json: bool,
    settings: Sequence[str],
) -> None:
    """Judge the recorded actions of a run with a coach; trains nothing.

    The verdicts are added to run.db beside the run's own, in phase `again`. Where the run learned from verdicts, it
    shows how the advantages would have changed. KEY=VALUE are options of the coach; coach.KEY=VALUE changes the run's
    section `coach` for it, as in coach.spend_usd=5.
    """
    from mappa.look.judge import judge_run
    from mappa.session.trust import add_own_plugin, restore_trusted

    registry = add_own_plugin(load_registry(), run, trust=trust)
    own = (word if word.startswith("coach.") else f"coach.options.{word}" for word in settings)
    composed = restore_trusted(registry, run, (f"coach.use={json.dumps(coach)}", *own), trust=trust)
    errors = Console(stderr=True)
    with verdict_bar(errors, quiet=quiet or as_json) as bar:
        judged = asyncio.run(
            judge_run(
                composed,
                registry,
                run,
                split=split,
                iteration=iteration,
                limit=limit,
                on_providers=lambda providers: announce_providers(errors, providers),
                on_start=bar.start,
                on_verdict=bar.advance,
            )
        )
    if as_json:
        echo(judged_json(judged))
    else:
        show_judged(Console(), judged)
    check_answered([judged.counts], composed.config.coach.max_missing)


def judged_json(judged: JudgedRun) -> str:
    """Encode the changes as one JSON object; shares are 0-1, unknown values null."""
    document: dict[str, Any] = msgspec.to_builtins(judged, enc_hook=str)
    document |= {
        "overall": _change(judged.overall),
        "by_agent": {agent: _change(change) for agent, change in judged.by_agent.items()},
        "by_iteration": {str(iteration): _change(change) for iteration, change in judged.by_iteration.items()},
    }
    return msgspec.json.encode(document).decode()


def _change(change: AdvantageComparison) -> Mapping[str, Any]:
    return {**msgspec.to_builtins(change), "flip_share": change.flip_share}


def show_judged(console: Console, judged: JudgedRun) -> None:
    """Print the changes of advantages: by agent, by iteration, and the actions with the largest changes."""
    _show_verdicts(console, judged)
    if not judged.overall.actions:
        if not judged.imported:
            console.print("no policy of this run learns, so there are no advantages to compare", highlight=False)
        console.print(f"next     mappa observe {judged.folder}", soft_wrap=True, highlight=False, markup=False)
        return
    console.print("\n[bold]advantages[/]  [dim]of each action, before and after; intervals are of 95 %[/]")
    console.print(_changes("agent", {"all": judged.overall, **judged.by_agent}))
    if len(judged.by_iteration) > 1:
        console.print(_changes("iteration", {str(iteration): one for iteration, one in judged.by_iteration.items()}))
    if not judged.movers:
        console.print("no advantage moved")
        return
    console.print("\n[bold]biggest movers[/]")
    for one in judged.movers:
        _show_mover(console, one)
    console.print(
        f"next     mappa runs trace {judged.folder} TRAJECTORY", soft_wrap=True, highlight=False, markup=False
    )


def _show_verdicts(console: Console, judged: JudgedRun) -> None:
    counts = judged.counts
    cost = "; their cost is unknown" if judged.usd is None else f" for ${judged.usd:.4f}" if judged.usd else ""
    if judged.uncertain_calls:
        cost += f", and at most ${judged.uncertain_usd:.4f} by {judged.uncertain_calls:,} calls of unknown bill"
    replayed = f", {counts.replayed:,} of them from the cassette" if counts.replayed else ""
    console.print(
        f"{clean_name(judged.coach)}: {counts.verdicts:,} verdicts ({counts.scored:,} scored, "
        f"{counts.abstained:,} abstained, {counts.failed:,} failed){replayed}{cost}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    cannot_tell = judged.rollouts - judged.blaming
    console.print(
        f"it blames somebody in {judged.blaming:,} of {judged.rollouts:,} rollouts, and cannot tell in {cannot_tell:,}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    for line in _terms_of_comparison(judged) if judged.overall.actions else ():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    show_reasons(console, counts)


def _terms_of_comparison(judged: JudgedRun) -> list[str]:
    """What the new verdicts stand for, and what the comparison leaves out."""
    lines = [
        f"added in phase `again`, with ids that end in {judged.name}; below they stand in for the "
        f"{judged.stands_for} ones",
        *(
            f"{key} was {coefficient:g} and is 0 here: log-probabilities of the reference are not kept"
            for key, coefficient in judged.kl_left_out.items()
        ),
    ]
    if judged.corrected:
        lines.append(f"{judged.corrected:,} of the old scores were corrected for bias; the new ones are not")
    return lines


def _changes(title: str, changes: Mapping[str, AdvantageComparison]) -> Table:
    table = make_table(title, "actions", "unscored", "correlation", "signs flipped")
    for name, change in changes.items():
        flips = f"{change.flips:,} ({format_percent(change.flip_share)})"
        missing = f"{change.missing_before:,} -> {change.missing_after:,}"
        table.add_row(escape(name), f"{change.actions:,}", missing, format_estimate(change.correlation, "+z.2f"), flips)
    return table


def _show_mover(console: Console, one: ActionAdvantages) -> None:
    """Print an action in two lines: its trajectory is copied from here, and a column of it would be broken."""
    reward = f"{format_or_dash(one.reward_before, '.2f')} -> {format_or_dash(one.reward_after, '.2f')}"
    advantage = f"{format_or_dash(one.before, '+z.2f')} -> {format_or_dash(one.after, '+z.2f')}"
    console.print(
        f"{clean_name(one.trajectory)}  {clean_name(one.agent)}", markup=False, highlight=False, soft_wrap=True
    )
    console.print(f"   reward {reward}, advantage {advantage}", markup=False, highlight=False, soft_wrap=True)
