"""`mappa prove`: replace the blamed action of each failed play, and see whether the failure flips."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.table import Table

from mappa.cli.announce import announce_providers
from mappa.cli.common_options import json_option, quiet_option
from mappa.cli.console import Console, echo
from mappa.cli.options import file_option, load_registry, trust_option
from mappa.cli.progress import rollout_bar
from mappa.look.cli.verdict_tables import make_table
from mappa_core import Split
from mappa_core.redaction import clean_line, clean_name

if TYPE_CHECKING:
    from mappa.look.blame_proof import BlameProofs, Proof
    from mappa_core.records import Interval

LABELS = {
    "blamed": "blamed action, corrected",
    "random": "a random action, replaced the same way",
    "resampled": "blamed action, sampled anew",
}
MAX_LISTED = 8


@click.command("prove")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--coach", metavar="OFFER", help="Who judges; the run's own coach by default.")
@click.option("--split", type=click.Choice(["train", "eval"]), default="train", show_default=True, help="Which plays.")
@click.option("--limit", metavar="N", type=click.IntRange(1), help="Failed plays at most, the first ones.")
@click.option("--save", metavar="FILE", type=click.Path(path_type=Path), help="Write the tasks of plays that flipped.")
@file_option
@trust_option
@quiet_option
@json_option
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def command(
    run: Path,
    coach: str | None,
    split: Split,
    limit: int | None,
    save: Path | None,
    trust: bool,
    quiet: bool,
    as_json: bool,
    settings: Sequence[str],
) -> None:
    """Prove whom a coach blames, by playing failed plays on.

    The coach's correction, or an action that is sampled anew, takes the place of the blamed action, and the rest is
    played live: the failure flips, or it does not. How much of that is luck two others say: a random action replaced
    the same way, and the blamed action sampled anew. KEY=VALUE changes the run's config: coach.options.correction=true.
    """
    from mappa.look.blame_proof import prove_blame, require_played, write_tasks
    from mappa.look.output_files import check_writable
    from mappa.session.trust import add_own_plugin, restore_trusted

    if save is not None:
        check_writable(save)
    require_played(run)
    registry = add_own_plugin(load_registry(), run, trust=trust)
    chosen = () if coach is None else (f"coach.use={json.dumps(coach)}",)
    composed = restore_trusted(registry, run, ("run.name=null", *chosen, *settings), trust=trust)
    errors = Console(stderr=True)
    with rollout_bar(errors, quiet=quiet or as_json) as bar:
        proven = asyncio.run(
            prove_blame(
                composed,
                registry,
                run,
                split=split,
                limit=limit,
                on_providers=lambda providers: announce_providers(errors, providers),
                on_start=bar.start,
                on_play=bar.on_rollout_end,
            )
        )
    console = Console()
    if as_json:
        echo(msgspec.json.encode(msgspec.to_builtins(proven, enc_hook=str)).decode())
    else:
        show_proofs(console, proven)
    if save is not None:  # What was paid for is shown by now, whatever becomes of the file.
        write_tasks(save, proven.tasks)
        if not as_json:
            _show_saved(console, proven, save)


def show_proofs(console: Console, proven: BlameProofs) -> None:
    """Print the whole result."""
    for line in _facts(proven):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print(_shares_table(proven))
    for one in proven.proofs[:MAX_LISTED]:
        _show_proof(console, one)
    if len(proven.proofs) > MAX_LISTED:
        console.print(f"and {len(proven.proofs) - MAX_LISTED:,} more: --json", highlight=False)
    for reason, times in proven.left_out.items():
        console.print(f"{times:7,} x {clean_line(reason)}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"plays    mappa runs show {proven.folder} --split counterfactual",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def _show_saved(console: Console, proven: BlameProofs, save: Path) -> None:
    """Print how many tasks are in the file, and what plays them."""
    count = len(proven.tasks)
    options = f"{{path: {save}, stratum: stratum}}"
    for line in (
        f"saved    {count:,} {'task' if count == 1 else 'tasks'} in {save}",
        f'next     mappa eval … tasks.use=file "tasks.options={options}"',
    ):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _facts(proven: BlameProofs) -> Iterator[str]:
    corrected = sum(one.corrected for one in proven.proofs)
    flipped = sum(one.flips["blamed"] is True for one in proven.proofs)
    stay = sum(one.flips["blamed"] is False for one in proven.proofs)
    yield (
        f"{proven.coach} blames somebody in {len(proven.proofs):,} of {proven.failed:,} failed plays, and corrects "
        f"{corrected:,} of them"
    )
    yield (
        f"{flipped:,} flip with another action in the blamed one's place, and {stay:,} do not. In a single play that "
        "may be luck: what is beyond a random action speaks for the blame"
    )
    yield "intervals are of 95 %, by task"


def _shares_table(proven: BlameProofs) -> Table:
    table = make_table("in the place of", "plays that flip, %", "blamed beyond that, points")
    for arm, label in LABELS.items():
        share = next((value for name, value in proven.shares.items() if name == arm), None)
        beyond = next((value for name, value in proven.beyond.items() if name == arm), None)
        table.add_row(label, _interval(share, ".1f"), "" if arm == "blamed" else _interval(beyond, "+z.1f"))
    if proven.corrected_share is not None:
        table.add_row("  only where the coach corrects", _interval(proven.corrected_share, ".1f"), "")
    return table


def _show_proof(console: Console, proof: Proof) -> None:
    """Print a proof in two lines: its trajectory is copied from here, and a column of it would be broken."""
    became = {True: "flips", False: "does not flip", None: "was lost"}[proof.flips["blamed"]]
    console.print(f"{clean_name(proof.trajectory)}  {became}", markup=False, highlight=False, soft_wrap=True)
    blamed = f"   {clean_name(proof.agent)} at {proof.position}: {proof.reason}"
    console.print(blamed, markup=False, highlight=False, soft_wrap=True)


def _interval(value: Interval | None, spec: str) -> str:
    if value is None:
        return "-"
    if value.low is None or value.high is None:
        return format(100 * value.mean, spec)
    return f"{100 * value.mean:{spec}} [{100 * value.low:{spec}}, {100 * value.high:{spec}}]"
