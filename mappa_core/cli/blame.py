"""What `mappa coach eval --against counterfactual` prints."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mappa_core.cli.verdicts import columns, figure, show_reasons
from mappa_core.evaluation.blame import BlameCertificate, Blaming


def as_document(certificate: BlameCertificate) -> str:
    """A certificate as one JSON object: shares are 0-1, gains in the unit of the outcome, null what is not known."""
    return msgspec.json.encode(msgspec.to_builtins(certificate)).decode()


def show(console: Console, certificate: BlameCertificate) -> None:
    """Print everything that was found."""
    for line in _facts(certificate):
        console.print(line, soft_wrap=True, highlight=False)
    console.print(_found(certificate))
    for coach in certificate.coaches:
        if coach.unsettled or coach.counts.reasons:
            console.print(f"\n{escape(coach.name)}, not compared:", highlight=False)
        for why, count in coach.unsettled.items():
            console.print(f"{count:7,} x {why}", markup=False, highlight=False)
        show_reasons(console, coach.counts)


def _facts(certificate: BlameCertificate) -> Iterator[str]:
    yield (
        f"{certificate.actions:,} actions with a credit, of {certificate.trajectories:,} trajectories; "
        f"in {certificate.guilty:,} of them another action helps"
    )
    if certificate.truth_shown:
        yield f"the coach was shown the truth for {escape(', '.join(certificate.truth_shown))}"
    if certificate.left_out:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in certificate.left_out.items())
        yield f"left out: {escape(kinds)}"
    yield "intervals are of 95 %, by drawing tasks"


def _found(certificate: BlameCertificate) -> Table:
    table = columns("", "", "of", "", text=2)
    for coach in certificate.coaches:
        for place, (what, count, value) in enumerate(_rows(coach)):
            table.add_row("" if place else escape(coach.name), what, count, value)
    return table


def _rows(coach: Blaming) -> Iterator[tuple[str, str, str]]:
    """What is said, of how many trajectories, actions or scores, and the figure."""
    for what, pick in (("lowest score", coach.lowest), ("blamed agent", coach.blamed)):
        yield f"{what} is guilty", f"{pick.trajectories:,}", figure(pick.agreement)
        yield "  a pick at random", "", figure(pick.chance)
        yield "  beyond that", "", figure(pick.beyond, "+z.2f")
    yield "another than the blamed action helps", f"{coach.blamed_actions:,}", figure(coach.raises)
    yield "  gain of the outcome", "", figure(coach.gain, "+z.2f")
    yield "  beyond that of actions not blamed", "", figure(coach.beyond, "+z.2f")
    yield "ranks of score and credit", f"{coach.counts.scored:,}", figure(coach.spearman, "+z.2f")
