"""Output of `mappa coach calibrate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from mappa.commands import Console, escape
from mappa.judging import Estimate, make_table
from mappa_calibration.jury.calibrate import CalibrationResult
from mappa_calibration.jury.validation import Gain, Validation, runs_needed

MIN_ANCHOR_SHARE = 0.05
"""Least weight of a member among those that may be the best for being named."""


def jury_json(result: CalibrationResult) -> str:
    """Encode a result as one JSON object; shares are 0-1."""
    return msgspec.json.encode(msgspec.to_builtins(result, enc_hook=str)).decode()


def show_jury(console: Console, result: CalibrationResult) -> None:
    """Print what the jury was fitted on, what it is worth, and where it is."""
    for line in _facts(result):
        console.print(line, soft_wrap=True, highlight=False)
    console.print(
        "\n[bold]on questions that it has not seen[/]  [dim]five folds, means over strata, %[/]", highlight=False
    )
    table = make_table("", "best member", "its share", "jury", "gain", text=2)
    for name, gain in (("steps", result.validation.steps), ("first error", result.validation.first_error)):
        table.add_row(name, escape(gain.best), f"{100 * gain.best_share.value:.1f}", _share(gain.jury), _gain(gain))
    console.print(table)
    if result.validation.agreement is not None:
        share = _share(result.validation.agreement)
        console.print(
            f"of two runs of a question, one with an error, it scores the other higher: {share} %", highlight=False
        )
    if result.curve:
        console.print(
            "\n[bold]with fewer labels[/]  [dim]gain in steps over the same best member, points[/]", highlight=False
        )
        table = make_table("labelled runs", "mean", "lowest", "highest", "better", "worse", "first error worse")
        for row in result.curve:
            table.add_row(*_curve_row(row))
        console.print(table)
        needed = runs_needed(result.curve)
        few = "at none of these sizes" if needed is None else f"from {needed} labelled runs on"
        console.print(f"certainly better than the best member {few}", highlight=False)
    console.print(f"\nwrote {escape(str(result.out))} and, for --config, {escape(str(result.recipe))}", highlight=False)


def _facts(result: CalibrationResult) -> Iterator[str]:
    strata = ", ".join(f"{escape(name)} {count:,}" for name, count in result.strata.items())
    yield f"{len(result.anchor)} members, fitted on {result.labels:,} labels of {result.runs:,} runs ({strata})"
    yield f"{result.questions:,} questions were used, {result.left:,} are left for a certificate"
    best = {name: share for name, share in result.anchor.items() if share >= MIN_ANCHOR_SHARE}
    yield "may be the best: " + ", ".join(f"{escape(name)} {share:.0%}" for name, share in best.items())


def _curve_row(row: Sequence[Validation]) -> Iterator[str]:
    gains = [100 * measured.steps.gain.value for measured in row]
    yield f"{row[0].runs:,}"
    yield from (f"{value:+.1f}" for value in (sum(gains) / len(gains), min(gains), max(gains)))
    for count in (
        sum(measured.steps.better for measured in row),
        sum(measured.steps.worse for measured in row),
        sum(measured.first_error.worse for measured in row),
    ):
        yield f"{count} of {len(row)}"


def _share(found: Estimate) -> str:
    return f"{100 * found.value:.1f}{_bounds(found, '.1f')}"


def _gain(gain: Gain) -> str:
    return f"{100 * gain.gain.value:+.1f}{_bounds(gain.gain, '+.1f')}"


def _bounds(found: Estimate, form: str) -> str:
    if found.low is None or found.high is None:
        return ""
    return escape(f" [{100 * found.low:{form}}, {100 * found.high:{form}}]")
