"""What `mappa coach eval` prints: one table per question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mappa_core.cli.progress import percent
from mappa_core.cli.verdicts import columns, figure, show_reasons
from mappa_core.evaluation.agreement import Estimate
from mappa_core.evaluation.certificate import SAME, Agreement, Effects, Effort, EnsembleCertificate
from mappa_core.evaluation.certify import Certificate

FINDINGS = {
    "better": "the ensemble beats its best member",
    "worse": "the ensemble is worse than its best member",
    "no significant difference": "no significant difference to its best member",
    None: "too little to compare it with its best member",
}


def as_document(certificate: Certificate) -> str:
    """A certificate as one JSON object: shares are 0-1, effects and noise points (0-10), null what is not known."""
    document: dict[str, Any] = msgspec.to_builtins(certificate)
    if certificate.ensemble is not None:
        document["ensemble"]["finding"] = certificate.ensemble.finding
    return msgspec.json.encode(document).decode()


def show(console: Console, certificate: Certificate) -> None:
    """Print everything that was found."""
    for line in _facts(certificate):
        console.print(line, soft_wrap=True, highlight=False)
    _print(console, "agreement with the truth", "AUC 0.5 is chance, 1 is perfect", _agreement(certificate))
    if certificate.repeats > 1:
        _print(console, "noise", "the same action judged again", _noise(certificate))
    _print(console, "bias", "points, between actions of one agent with the same label", _effects(certificate))
    _print(console, "missing verdicts", "left out above, never a number", _missing(certificate))
    for coach in certificate.coaches:
        if coach.counts.reasons:
            console.print(f"{escape(coach.name)}:", highlight=False)
            show_reasons(console, coach.counts)
    _print(console, "time and cost", "until a verdict is there; US dollars", _effort(certificate))
    if certificate.ensemble is not None:
        _print(console, "ensemble", "the mean of all coaches, where all scored", _ensemble(certificate.ensemble))
        console.print(FINDINGS[certificate.ensemble.finding], highlight=False)


def _facts(certificate: Certificate) -> Iterator[str]:
    times = "" if certificate.repeats == 1 else f", each judged {certificate.repeats} times"
    yield (
        f"{certificate.actions:,} actions of {certificate.trajectories:,} trajectories{times}; "
        f"{percent(certificate.right)} are right (label above 0.5)"
    )
    if certificate.truth_shown:
        yield f"the coach was shown the truth for {escape(', '.join(certificate.truth_shown))}"
    if certificate.left_out:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in certificate.left_out.items())
        yield f"trajectories without an outcome, left out: {escape(kinds)}"
    yield "intervals are of 95 %, by drawing trajectories"


def _print(console: Console, question: str, note: str, table: Table) -> None:
    console.print(f"\n[bold]{question}[/]  [dim]{note}[/]", highlight=False)
    console.print(table)


def _agreement(certificate: Certificate) -> Table:
    table = columns("", "verdicts", "AUC", "Spearman")
    for coach in certificate.coaches:
        table.add_row(escape(coach.name), *_agreeing(coach.overall))
        if len(coach.by_agent) > 1:
            for agent, part in coach.by_agent.items():
                table.add_row(f"  {escape(agent)}", *_agreeing(part))
    return table


def _agreeing(part: Agreement) -> tuple[str, str, str]:
    return f"{part.verdicts:,}", figure(part.auc), figure(part.spearman, "+z.2f")


def _noise(certificate: Certificate) -> Table:
    table = columns("", "sd, points", f"pairs within {SAME:g} points, %")
    for coach in certificate.coaches:
        if coach.noise is not None:
            table.add_row(escape(coach.name), figure(coach.noise.sd), figure(coach.noise.same, ".1f", unit=100))
    return table


def _effects(certificate: Certificate) -> Table:
    table = columns("", "coach", "points", text=2)
    effects = {coach.name: dict(_named(coach.effects)) for coach in certificate.coaches}
    varying = (what for one in effects.values() for what, effect in one.items() if effect is not None)
    for what in dict.fromkeys(varying):
        for place, (name, one) in enumerate(effects.items()):
            table.add_row("" if place else escape(what), escape(name), figure(one.get(what), "+z.2f"))
    return table


def _named(effects: Effects) -> Iterator[tuple[str, Estimate | None]]:
    """Every effect with what it is of; of two strata the one against the other says all."""
    yield f"twice as many {effects.unit}", effects.length
    yield "one place later", effects.order
    for stratifier, strata in effects.strata.items():
        if len(strata) == 2:
            one, other = strata
            yield f"{stratifier}: {one} against {other}", strata[one]
        elif len(strata) > 2:
            yield from ((f"{stratifier}: {one} against others", effect) for one, effect in strata.items())


def _missing(certificate: Certificate) -> Table:
    table = columns("", "verdicts", "scored", "abstained", "failed")
    for coach in certificate.coaches:
        counts = coach.counts
        shares = (_share(count, counts.verdicts) for count in (counts.scored, counts.abstained, counts.failed))
        table.add_row(escape(coach.name), f"{counts.verdicts:,}", *shares)
    return table


def _share(count: int, whole: int) -> str:
    return f"{count:,} ({percent(count / whole)})" if count else "0"


def _effort(certificate: Certificate) -> Table:
    table = columns("", "median", "95 % within", "1,000 actions")
    for coach in certificate.coaches:
        effort = coach.effort
        table.add_row(escape(coach.name), _seconds(effort.median_s), _seconds(effort.p95_s), _cost(effort))
    return table


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def _cost(effort: Effort) -> str:
    if not effort.providers:
        return "$0: asks nobody"
    if effort.usd_per_1000 is None:
        return "unknown"
    left_out = f" ({effort.unpriced:,} verdicts unknown)" if effort.unpriced else ""
    return f"${effort.usd_per_1000:.2f}{left_out}"


def _ensemble(ensemble: EnsembleCertificate) -> Table:
    table = columns("", "verdicts", "AUC", "Spearman")
    agreement = ensemble.agreement
    table.add_row("mean", f"{agreement.verdicts:,}", figure(agreement.auc), figure(agreement.spearman, "+z.2f"))
    if ensemble.best is not None:
        table.add_row(f"best member: {escape(ensemble.best)}", "", figure(ensemble.best_auc), "")
        table.add_row("mean less best", "", figure(ensemble.gain, "+z.3f"), "")
    if ensemble.left_out:
        table.add_row("left out, not scored by all", f"{ensemble.left_out:,}", "", "")
    return table
