"""Output of `mappa coach eval`: one table per question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
from rich.table import Table

from mappa.cli.console import Console, escape
from mappa.cli.formats import format_percent
from mappa.look.cli.verdict_tables import format_estimate, make_table, show_reasons
from mappa.look.coach_eval.bootstrap import Estimate
from mappa.look.coach_eval.evaluate import CoachEvaluation
from mappa.look.coach_eval.metrics import (
    SAME_SCORE_POINTS,
    Agreement,
    EnsembleMetrics,
    JudgingCost,
    NuisanceEffects,
    VerdictCounts,
)


class JudgedCoach(Protocol):
    """What is counted of any coach."""

    @property
    def name(self) -> str: ...

    @property
    def counts(self) -> VerdictCounts: ...

    @property
    def effort(self) -> JudgingCost: ...


FINDINGS = {
    "better": "the ensemble beats its best member",
    "worse": "the ensemble is worse than its best member",
    "no significant difference": "no significant difference to its best member",
    None: "whether it differs from its best member cannot be told",
}


def coach_evaluation_json(certificate: CoachEvaluation) -> str:
    """Encode an evaluation as one JSON object: shares are 0-1, effects and noise points (0-10), unknown values null."""
    document: dict[str, Any] = msgspec.to_builtins(certificate)
    if certificate.ensemble is not None:
        document["ensemble"]["finding"] = certificate.ensemble.finding
    return msgspec.json.encode(document).decode()


def show_coach_evaluation(console: Console, certificate: CoachEvaluation) -> None:
    """Print the whole evaluation."""
    for line in _facts(certificate):
        console.print(line, soft_wrap=True, highlight=False)
    _print(console, "agreement with the truth", "AUC 0.5 is chance, 1 is perfect", _agreement(certificate))
    if certificate.repeats > 1:
        _print(console, "noise", "the same action judged again", _noise(certificate))
    _print(console, "bias", "points, between actions of one agent with the same label", _effects(certificate))
    _print(console, "missing verdicts", "left out above, never a number", missing_table(certificate.coaches))
    for coach in certificate.coaches:
        if coach.counts.reasons:
            console.print(f"{escape(coach.name)}:", highlight=False)
            show_reasons(console, coach.counts)
    _print(console, "time and cost", "until a verdict is there; US dollars", effort_table(certificate.coaches))
    if certificate.ensemble is not None:
        _print(console, "ensemble", "the mean of all coaches, where all scored", _ensemble(certificate.ensemble))
        console.print(FINDINGS[certificate.ensemble.finding], highlight=False)


def _facts(certificate: CoachEvaluation) -> Iterator[str]:
    times = "" if certificate.repeats == 1 else f", each judged {certificate.repeats} times"
    yield (
        f"{certificate.actions:,} actions of {certificate.trajectories:,} trajectories{times}; "
        f"{format_percent(certificate.right)} are right (label above 0.5)"
    )
    if certificate.truth_shown:
        yield f"the coach was shown the truth for {escape(', '.join(certificate.truth_shown))}"
    if certificate.left_out:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in certificate.left_out.items())
        yield f"trajectories without an outcome, left out: {escape(kinds)}"
    yield "intervals are of 95 %, by drawing tasks"


def _print(console: Console, question: str, note: str, table: Table) -> None:
    console.print(f"\n[bold]{question}[/]  [dim]{note}[/]", highlight=False)
    console.print(table)


def _agreement(certificate: CoachEvaluation) -> Table:
    table = make_table("", "verdicts", "AUC", "Spearman")
    for coach in certificate.coaches:
        table.add_row(escape(coach.name), *_agreement_cells(coach.overall))
        if len(coach.by_agent) > 1:
            for agent, part in coach.by_agent.items():
                table.add_row(f"  {escape(agent)}", *_agreement_cells(part))
    return table


def _agreement_cells(part: Agreement) -> tuple[str, str, str]:
    return f"{part.verdicts:,}", format_estimate(part.auc), format_estimate(part.spearman, "+z.2f")


def _noise(certificate: CoachEvaluation) -> Table:
    table = make_table("", "sd, points", f"pairs within {SAME_SCORE_POINTS:g} points, %")
    for coach in certificate.coaches:
        if coach.noise is not None:
            table.add_row(
                escape(coach.name), format_estimate(coach.noise.sd), format_estimate(coach.noise.same, ".1f", unit=100)
            )
    return table


def _effects(certificate: CoachEvaluation) -> Table:
    table = make_table("", "coach", "points", text=2)
    effects = {coach.name: dict(_labelled_effects(coach.effects)) for coach in certificate.coaches}
    varying = (what for one in effects.values() for what, effect in one.items() if effect is not None)
    for what in dict.fromkeys(varying):
        for place, (name, one) in enumerate(effects.items()):
            table.add_row("" if place else escape(what), escape(name), format_estimate(one.get(what), "+z.2f"))
    return table


def _labelled_effects(effects: NuisanceEffects) -> Iterator[tuple[str, Estimate | None]]:
    """Yield every effect with its label; two strata need only one comparison."""
    yield f"twice as many {effects.unit}", effects.length
    yield "one place later", effects.order
    for stratifier, strata in effects.strata.items():
        if len(strata) == 2:
            one, other = strata
            yield f"{stratifier}: {one} against {other}", strata[one]
        elif len(strata) > 2:
            yield from ((f"{stratifier}: {one} against others", effect) for one, effect in strata.items())


def missing_table(coaches: Sequence[JudgedCoach]) -> Table:
    """Build the table of missing verdicts by coach."""
    table = make_table("", "verdicts", "scored", "abstained", "failed")
    for coach in coaches:
        counts = coach.counts
        shares = (_share(count, counts.verdicts) for count in (counts.scored, counts.abstained, counts.failed))
        table.add_row(escape(coach.name), f"{counts.verdicts:,}", *shares)
    return table


def _share(count: int, whole: int) -> str:
    return f"{count:,} ({format_percent(count / whole)})" if count else "0"


def effort_table(coaches: Sequence[JudgedCoach]) -> Table:
    """Build the table of time and cost by coach."""
    table = make_table("", "median", "95 % within", "1,000 actions")
    for coach in coaches:
        effort = coach.effort
        table.add_row(escape(coach.name), _seconds(effort.median_s), _seconds(effort.p95_s), _cost(effort))
    return table


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def _cost(effort: JudgingCost) -> str:
    if not effort.providers:
        return "$0: asks nobody"
    if effort.usd_per_1000 is None:
        return "unknown"
    left_out = f" ({effort.unpriced:,} verdicts unknown)" if effort.unpriced else ""
    return f"${effort.usd_per_1000:.2f}{left_out}"


def _ensemble(ensemble: EnsembleMetrics) -> Table:
    table = make_table("", "verdicts", "AUC", "Spearman")
    agreement = ensemble.agreement
    table.add_row(
        "mean", f"{agreement.verdicts:,}", format_estimate(agreement.auc), format_estimate(agreement.spearman, "+z.2f")
    )
    if ensemble.best is not None:
        table.add_row(f"best member: {escape(ensemble.best)}", "", format_estimate(ensemble.best_auc), "")
        table.add_row("mean less best", "", format_estimate(ensemble.gain, "+z.3f"), "")
    if ensemble.left_out:
        table.add_row("left out, not scored by all", f"{ensemble.left_out:,}", "", "")
    return table
