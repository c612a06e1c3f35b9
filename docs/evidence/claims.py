"""Claims that are made before anything is trained, and what the runs say of them.

A claim says of two arms how the held-out accuracy of the one should be to that of the other. Pairs are compared as
`mappa compare` does, on the same problems and over seeds, and the p-values of all claims of a study are adjusted
together (Holm). A difference that was claimed *held* where it is significant and of that sign. That there is none
*held* where none is significant and the 95 % interval lies within 10 points of zero; an interval that reaches beyond
leaves it *open*, for too few seeds tell nothing either way; so does a single seed, which speaks of problems alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import click
from arms import table
from study import Study

from mappa.cli.formats import format_share
from mappa.look.across_seeds import holm
from mappa.look.compare import PairComparison, PairFinding, compare_arms
from mappa.look.run_results import RunResult, read_result

MARGIN = 0.1
"""Accuracy (a share) below which a difference is called small."""
Standing = Literal["held", "not held", "open"]
Runs = Mapping[str, Sequence[RunResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """`one` is expected to be better than `other`, worse, or neither, on all held-out tasks or those of a `stratum`."""

    one: str
    other: str
    expected: PairFinding
    stratum: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim, the comparison that was made for it, and whether it held."""

    claim: Claim
    pair: PairComparison
    standing: Standing

    @property
    def cells(self) -> tuple[str, ...]:
        claim, pair = self.claim, self.pair
        where = "all" if claim.stratum is None else claim.stratum
        p = "-" if pair.p_adjusted is None else f"{pair.p_adjusted:.3f}"
        difference = format_share(pair.difference, sign=True)
        equal = self.standing == "held" and claim.expected == "no significant difference"
        standing = f"held, within {100 * MARGIN:g} points" if equal else self.standing
        return f"{claim.one} - {claim.other}", where, difference, p, pair.finding, claim.expected, standing


def results(runs: Mapping[str, Sequence[Path]]) -> dict[str, list[RunResult]]:
    """What every run reports, by arm."""
    return {arm: [read_result(folder) for folder in folders] for arm, folders in runs.items()}


def restricted(result: RunResult, problems: frozenset[str]) -> RunResult:
    """The result on some of its problems alone."""
    evaluation = result.evaluation
    marked = replace(evaluation, strata=tuple(str(name in problems) for name in evaluation.problems))
    chosen = marked.for_stratum(str(True))
    strata = dict(zip(evaluation.problems, evaluation.strata, strict=True))
    return replace(
        result,
        evaluation=replace(chosen, strata=tuple(strata[name] for name in chosen.problems)),
        tasks={name: digest for name, digest in result.tasks.items() if name in problems},
    )


def within(result: RunResult, stratum: str | None) -> RunResult:
    """The result on the problems of a stratum, or on all of them."""
    if stratum is None:
        return result
    return restricted(result, frozenset(result.evaluation.for_stratum(stratum).problems))


def judged(claims: Sequence[Claim], runs: Runs) -> tuple[Judged, ...]:
    """Hold every claim against the runs.

    Raises:
        ConfigError: runs of a pair evaluated other tasks.
    """
    pairs = [_pair(claim, runs) for claim in claims]
    tested = [index for index, pair in enumerate(pairs) if pair.p is not None]
    adjusted = dict(zip(tested, holm([p for pair in pairs if (p := pair.p) is not None]), strict=True))
    pairs = [replace(pair, p_adjusted=adjusted.get(index)) for index, pair in enumerate(pairs)]
    return tuple(
        Judged(claim=claim, pair=pair, standing=standing(claim, pair))
        for claim, pair in zip(claims, pairs, strict=True)
    )


def _pair(claim: Claim, runs: Runs) -> PairComparison:
    arms = {name: [within(result, claim.stratum) for result in runs[name]] for name in (claim.other, claim.one)}
    return compare_arms(arms, against=claim.other).pairs[0]


def standing(claim: Claim, pair: PairComparison) -> Standing:
    """Whether a claim held: see the head of this module."""
    low, high = pair.difference.low, pair.difference.high
    if pair.finding == "cannot be told" or low is None or high is None:
        return "open"
    if claim.expected != "no significant difference":
        return "held" if pair.finding == claim.expected else "not held"
    if pair.finding != "no significant difference":
        return "not held"
    return "held" if low > -MARGIN and high < MARGIN else "open"


def rows(runs: Runs, strata: Sequence[str | None] = (None,)) -> Iterator[tuple[str, ...]]:
    """A line for every arm: its mean over seeds with its interval, and the seeds one by one, on all tasks (None) and
    on those of each stratum named."""
    for arm in runs:
        for stratum in strata:
            shown = [within(result, stratum) for result in runs[arm]]
            mean = compare_arms({arm: shown}).arms[0].mean
            by_seed = ", ".join(share_of(result) for result in shown)
            yield arm, "all" if stratum is None else stratum, format_share(mean), by_seed


def share_of(result: RunResult) -> str:
    """The accuracy of one run, in per cent."""
    found = result.evaluation.interval
    return "-" if found is None else f"{100 * found.mean:.1f}"


def report(study: Study, runs: Mapping[str, Sequence[Path]], claims: Sequence[Claim], **further: object) -> None:
    """Print arms and claims, and write them with all else."""
    found = results(runs)
    strata = tuple(dict.fromkeys([None, *(claim.stratum for claim in claims)]))
    verdicts = judged(claims, found)
    click.echo(table(("arm", "tasks", "after", "by seed"), rows(found, strata)))
    click.echo()
    click.echo(table(("pair", "tasks", "difference", "p", "found", "claimed", ""), [one.cells for one in verdicts]))
    cells = [
        {"arm": arm, "stratum": stratum, **_cell([within(result, stratum) for result in group])}
        for arm, group in found.items()
        for stratum in strata
    ]
    study.finish(study.write(cells=cells, claims=verdicts, **further))


def _cell(group: Sequence[RunResult]) -> dict[str, object]:
    return {
        "mean": compare_arms({"arm": group}).arms[0].mean,
        "by_seed": {result.seed: result.evaluation.interval for result in group},
    }
