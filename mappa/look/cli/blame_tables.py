"""Output of `mappa coach eval --against counterfactual`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.table import Table

from mappa.cli.console import Console, escape
from mappa.look.cli.verdict_tables import format_estimate, make_table, show_reasons
from mappa.look.coach_eval.blame import BlameEvaluation, BlameMetrics


def blame_json(certificate: BlameEvaluation) -> str:
    """Encode an evaluation as one JSON object: shares are 0-1, gains in the unit of the outcome, unknown values
    null."""
    return msgspec.json.encode(msgspec.to_builtins(certificate)).decode()


def show_blame(console: Console, certificate: BlameEvaluation) -> None:
    """Print the whole evaluation."""
    for line in _facts(certificate):
        console.print(line, soft_wrap=True, highlight=False)
    console.print(_results_table(certificate))
    for coach in certificate.coaches:
        if coach.unsettled or coach.counts.reasons:
            console.print(f"\n{escape(coach.name)}, not compared:", highlight=False)
        for why, count in coach.unsettled.items():
            console.print(f"{count:7,} x {why}", markup=False, highlight=False)
        show_reasons(console, coach.counts)


def _facts(certificate: BlameEvaluation) -> Iterator[str]:
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


def _results_table(certificate: BlameEvaluation) -> Table:
    table = make_table("", "", "of", "", text=2)
    for coach in certificate.coaches:
        for place, (what, count, value) in enumerate(_rows(coach)):
            table.add_row("" if place else escape(coach.name), what, count, value)
    return table


def _rows(coach: BlameMetrics) -> Iterator[tuple[str, str, str]]:
    """Rows of label, number of trajectories, actions or scores, and value."""
    for what, pick in (("lowest score", coach.lowest), ("blamed agent", coach.blamed)):
        yield f"{what} is guilty", f"{pick.trajectories:,}", format_estimate(pick.agreement)
        yield "  a pick at random", "", format_estimate(pick.chance)
        yield "  beyond that", "", format_estimate(pick.beyond, "+z.2f")
    yield "another than the blamed action helps", f"{coach.blamed_actions:,}", format_estimate(coach.raises)
    yield "  gain of the outcome", "", format_estimate(coach.gain, "+z.2f")
    yield "  beyond that of actions not blamed", "", format_estimate(coach.beyond, "+z.2f")
    yield "ranks of score and credit", f"{coach.counts.scored:,}", format_estimate(coach.spearman, "+z.2f")
