"""Output of `mappa coach eval` on labelled runs: a table for each question, with naive answers under the coaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.table import Table

from mappa.cli.console import Console, escape
from mappa.look.cli.coach_eval_tables import effort_table, missing_table
from mappa.look.cli.verdict_tables import make_table, show_reasons
from mappa.look.coach_eval.agreement import LabellerAgreement
from mappa.look.coach_eval.attribution import TASKS
from mappa.look.coach_eval.attribution_figures import ALL, MEAN, Figure
from mappa.look.coach_eval.evaluate_attribution import AttributionEvaluation, AttributionMetrics
from mappa_core.records import Interval

MAX_COACHES_BY_STRATUM = 4
"""With more coaches only the figures over all strata are printed; JSON has the others."""
MAX_NAME = 24
"""Characters of a coach's name in a table of figures."""
NOTES = {
    "guilty agent, by all labellers": "runs that several people labelled: all of them say so",
    "decisive step, by all labellers": "runs that several people labelled: all of them say so",
    "guilty agent": "whom the verdict on the first of the ranking blames, else whose action it is",
    "decisive step": "the first of the ranking: by suspicion, else the lowest score",
    "within one step": "the same, or the action before or after",
    "first three": "the decisive step is among the first three of the ranking",
    "accused agent": "accusations alone: how many, and how many of these are right",
    "accused step": "accusations alone: the accused action is the decisive one",
    "kind of failure": "of accusations: the label's own word, or what MAST or AgentRx call it",
    "step labels": "1, 0 or -1 by thirds of the points",
    "first error": "the first action that is labelled -1, or that there is none",
}


def attribution_json(certificates: Sequence[AttributionEvaluation]) -> str:
    """Encode evaluations as one JSON object: shares are 0-1, unknown values null."""
    return msgspec.json.encode({"evaluations": msgspec.to_builtins(certificates)}).decode()


def show_attribution(console: Console, certificates: Sequence[AttributionEvaluation]) -> None:
    """Print the evaluations, one after another."""
    for place, certificate in enumerate(certificates):
        if place:
            console.print()
        _show(console, certificate)


def _show(console: Console, certificate: AttributionEvaluation) -> None:
    for line in _facts(certificate):
        console.print(line, soft_wrap=True, highlight=False)
    for name, count in certificate.overlap.items():
        console.print(
            f"{count:,} of the {certificate.runs:,} runs made the weights of {name}, or are of questions that did, and "
            "certify nothing of it: --unseen leaves them out",
            style="yellow", markup=False, soft_wrap=True, highlight=False,
        )  # fmt: skip
    if certificate.agreement is not None:
        for line in describe_agreement(certificate.agreement):
            console.print(line, markup=False, soft_wrap=True, highlight=False)
    for task in TASKS:
        figures = [
            (coach.name, figure) for coach in certificate.coaches for figure in coach.figures if figure.task == task
        ]
        if figures:
            console.print(f"\n[bold]{task}[/]  [dim]{NOTES[task]}[/]", highlight=False)
            console.print(_figure_table(figures, detailed=len(certificate.coaches) <= MAX_COACHES_BY_STRATUM))
    if any(coach.published for coach in certificate.coaches):
        console.print("\n[bold]by the published rules[/]  [dim]their own arithmetic, %[/]", highlight=False)
        console.print(_published_table(certificate.coaches))
    if any(coach.calibration for coach in certificate.coaches):
        console.print("\n[bold]confidence[/]  [dim]Brier score and calibration error; 0 is perfect[/]", highlight=False)
        console.print(_calibration_table(certificate.coaches))
    if certificate.repeats > 1:
        console.print(
            "\n[bold]repeats[/]  [dim]pairs of repeats with the same answer about a run, %[/]", highlight=False
        )
        console.print(_repeats_table(certificate.coaches))
    console.print("\n[bold]missing verdicts[/]  [dim]no answer, counted apart from wrong ones[/]", highlight=False)
    console.print(missing_table(certificate.coaches))
    for coach in certificate.coaches:
        if coach.counts.reasons and len(certificate.coaches) <= MAX_COACHES_BY_STRATUM:
            console.print(f"{escape(coach.name)}:", highlight=False)
            show_reasons(console, coach.counts)
    console.print("\n[bold]time, calls and cost[/]  [dim]US dollars[/]", highlight=False)
    console.print(effort_table(certificate.coaches))
    for coach in certificate.coaches:
        if coach.usage is not None:
            console.print(f"{escape(coach.name)}: {_spent(coach)}", highlight=False, soft_wrap=True)


def _facts(certificate: AttributionEvaluation) -> Iterator[str]:
    times = "" if certificate.repeats == 1 else f", each judged {certificate.repeats} times"
    yield (
        f"{certificate.runs:,} labelled runs of {certificate.questions:,} questions, {certificate.actions:,} "
        f"actions{times}"
    )
    if len(certificate.strata) > 1:
        yield escape(", ".join(f"{stratum} {count:,}" for stratum, count in certificate.strata.items()))
    shown = "The truth was shown to the coach" if certificate.truth else "The truth was not shown to the coach"
    seen = (
        "it judged all actions of a run together, after its end"
        if certificate.hindsight
        else "it judged each action with what came before it"
    )
    yield f"{shown}; {seen}"
    if certificate.left_out:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in certificate.left_out.items())
        yield f"runs left out: {escape(kinds)}"
    yield "intervals are of 95 %; runs of one question are one cluster"


def describe_agreement(agreement: LabellerAgreement) -> Iterator[str]:
    """Say how far people agree: the ceiling of any figure on these runs."""
    kappa = "" if agreement.kappa is None else f" (kappa {agreement.kappa:.2f})"
    yield (
        f"{', '.join(agreement.labellers)} labelled {agreement.plays:,} runs beside each other: the same agent in "
        f"{_share(agreement.same_agent)} % of {agreement.agents:,}{kappa}, the same step in "
        f"{_share(agreement.same_step)} % of {agreement.steps:,}, within one step {_share(agreement.near_step)} %"
    )
    yield "no coach can be held to more than that; what one of them says is right, and apart what all of them say"


def _figure_table(figures: Sequence[tuple[str, Figure]], *, detailed: bool) -> Table:
    table = make_table("", "right, % of all", "answered", "% of these", "beyond the best below")
    strata = list(dict.fromkeys(figure.stratum for _, figure in figures))
    shown = strata if detailed or len(strata) == 1 else [one for one in strata if one in (ALL, MEAN)]
    for stratum in shown:
        of_stratum = [(name, figure) for name, figure in figures if figure.stratum == stratum]
        table.add_row(f"[bold]{escape(stratum)}[/]" if len(strata) > 1 else "")
        for name, figure in of_stratum:
            gain = f"{_share(figure.gain, sign=True)}" if figure.gain is not None else ""
            table.add_row(
                f"  {escape(_shorten(name))}",
                _share(figure.of_all),
                f"{figure.answers:,} of {figure.entries:,}",
                _share(figure.of_answered, bounds=False),
                gain,
            )
        _, first = of_stratum[0]
        for name, interval in sorted(first.naive.items(), key=lambda one: -one[1].mean):
            table.add_row(f"  [dim]{name}[/]", f"[dim]{_share(interval)}[/]")
    return table


def _published_table(coaches: Sequence[AttributionMetrics]) -> Table:
    table = make_table("", "", "of all", "mean of strata", "by stratum", text=2)
    for coach in coaches:
        for place, figure in enumerate(coach.published):
            strata = ", ".join(f"{100 * share:.2f}" for share in figure.by_stratum.values())
            table.add_row(
                "" if place else escape(coach.name),
                figure.name,
                f"{100 * figure.all:.2f}",
                f"{100 * figure.mean_of_strata:.2f}",
                strata,
            )
    return table


def _calibration_table(coaches: Sequence[AttributionMetrics]) -> Table:
    table = make_table("", "that", "of", "Brier", "base rate", "error", text=2)
    for coach in coaches:
        for place, one in enumerate(coach.calibration):
            table.add_row(
                "" if place else escape(coach.name),
                one.of,
                f"{one.entries:,}",
                _number(one.brier),
                f"{one.constant:.3f}",
                f"{one.error:.3f}",
            )
    return table


def _repeats_table(coaches: Sequence[AttributionMetrics]) -> Table:
    table = make_table("", "same answer, %")
    for coach in coaches:
        table.add_row(escape(coach.name), _share(coach.same))
    return table


def _shorten(name: str) -> str:
    """A name that fits its column, shortened in the middle."""
    if len(name) <= MAX_NAME:
        return name
    half = (MAX_NAME - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def _spent(coach: AttributionMetrics) -> str:
    usage = coach.usage
    assert usage is not None
    price = "of unknown price" if usage.usd is None else f"${usage.usd:.4f}"
    tokens = [
        f"{count:,} {what} tokens"
        for count, what in ((usage.prompt_tokens, "prompt"), (usage.completion_tokens, "completion"))
        if count is not None
    ]
    return ", ".join([f"{usage.calls:,} calls", *tokens, price])


def _share(value: Interval | None, *, sign: bool = False, bounds: bool = True) -> str:
    """A share in per cent, with its interval."""
    if value is None:
        return "-"
    spec = "+z.1f" if sign else ".1f"
    text = format(100 * value.mean, spec)
    if not bounds or value.low is None or value.high is None:
        return text
    return f"{text} [{100 * value.low:{spec}}, {100 * value.high:{spec}}]"


def _number(value: Interval) -> str:
    if value.low is None or value.high is None:
        return f"{value.mean:.3f}"
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"
