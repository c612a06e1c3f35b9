"""`mappa compare`: compare settings, and test whether their difference is significant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, product
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from mappa.cli.common_options import json_option, root_option
from mappa.cli.console import Console, Name, echo
from mappa.cli.formats import format_problem_count, format_share
from mappa.cli.tables import columns_table
from mappa_core import ConfigError

if TYPE_CHECKING:
    from mappa.look.compare import Arm, Comparison, PairComparison
    from mappa.look.run_results import RunResult

WIDE = 110
"""Columns from which on a table has room for names of arms and for every figure."""
_MAX_NAME_CHARACTERS = {True: 24, False: 4}
"""Maximum characters of an arm's name in tables, wide and narrow ones."""


@click.command("compare")
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=click.Path())
@click.option("--by", "by", metavar="KEY", multiple=True, help="Setting that makes an arm; may be repeated.")
@click.option("--arm", "arms", metavar="NAME=RUN", multiple=True, help="A run of an arm; once for each of its runs.")
@click.option("--against", metavar="ARM", help="Compare all arms with this one, instead of all pairs.")
@click.option("--measure", metavar="NAME", help="A figure of the workflow in place of its metric.")
@root_option("Folder of runs that are given by name alone.")
@json_option
def command(
    runs: Sequence[str],
    by: Sequence[str],
    arms: Sequence[str],
    against: str | None,
    measure: str | None,
    root: Path,
    as_json: bool,
) -> None:
    """Compare settings by held-out results, paired and over seeds.

    The p-values of all pairs are adjusted together. Runs that differ in nothing but their seed are one arm. With --by
    KEY an arm is named by that setting alone, with --arm NAME=RUN by you. Runs that evaluated other tasks, drew other
    samples or were graded otherwise are refused.

    \b
      mappa compare runs/a-* runs/b-*
      mappa compare --by coach.use runs/*
      mappa compare --arm old=runs/a0 --arm old=runs/a1 --arm new=runs/b0
    """
    import msgspec

    from mappa.look.compare import compare_arms
    from mappa.look.run_results import differing_settings, group_by_arm

    if bool(runs) == bool(arms) or (arms and by):
        raise ConfigError("name the runs, and how they are grouped by --by KEY; or name groups by --arm NAME=RUN")
    results = [_read_run(run, root) for run in runs]
    groups = _read_arms(arms, root) if arms else group_by_arm(results, by)
    if len(groups) < 2:
        raise ConfigError(
            "there is but one setting to compare: the runs differ in nothing but their seeds. Name groups of them by "
            "--arm NAME=RUN, or the setting that makes the difference by --by KEY"
        )
    compared = compare_arms(groups, measure=measure, against=against, named_by=by or differing_settings(results))
    if as_json:
        echo(msgspec.json.encode(comparison_json(compared)).decode())
    else:
        show_comparison(Console(), compared, comparison_notes(compared))


def _read_arms(arms: Sequence[str], root: Path) -> dict[str, list[RunResult]]:
    groups: dict[str, list[RunResult]] = {}
    for word in arms:
        name, equals, run = word.partition("=")
        if not (name and equals and run):
            raise ConfigError(f"--arm {word}: write NAME=RUN, for example --arm new=runs/second")
        groups.setdefault(name, []).append(_read_run(run, root))
    return groups


def _read_run(run: str, root: Path) -> RunResult:
    from mappa.look.run_results import read_result

    folder = Path(run)
    return read_result(folder if folder.is_dir() or not (root / run).is_dir() else root / run)


def comparison_json(compared: Comparison) -> dict[str, Any]:
    """Convert a comparison to JSON values, with the finding of each pair in words; shares are 0-1."""
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(compared)
    for document_pair, pair in zip(document["pairs"], compared.pairs, strict=True):
        document_pair["finding"] = pair.finding
    return document


def show_comparison(console: Console, compared: Comparison, notes: Sequence[str]) -> None:
    """Print the arms, the differences between them, and in words what follows from them and what does not."""
    problems = format_problem_count(compared.problems, compared.clusters)
    console.print(
        f"held-out {compared.measure}, {problems}, {compared.samples} samples of each, 95 % intervals",
        style="bold", highlight=False, soft_wrap=True,
    )  # fmt: skip
    wide = console.width >= WIDE
    labels = label_arms([arm.name for arm in compared.arms], _MAX_NAME_CHARACTERS[wide])
    for name, label in labels.items():
        if label != name:
            console.print(f"{label}: {name}", highlight=False, markup=False, soft_wrap=True)
    table = columns_table("arm", "seeds", "mean", *compared.arms[0].parsing)
    for arm in compared.arms:
        seeds, parsing = ", ".join(map(str, arm.seeds)), map(format_share, arm.parsing.values())
        table.add_row(Name(labels[arm.name]), seeds, describe_mean(arm), *parsing)
    console.print(table)
    if compared.pairs:
        console.print(_differences(compared, labels, wide))
    for pair in compared.pairs:
        console.print(pair_sentence(pair, labels), highlight=False, markup=False, soft_wrap=True)
    for note in notes:
        console.print(note, style="dim", highlight=False, markup=False, soft_wrap=True)


def describe_mean(arm: Arm) -> str:
    """The mean of an arm, and how many problems it leaves out."""
    return format_share(arm.mean) + (f" ({arm.lost} problems lost)" if arm.lost else "")


def label_arms(names: Sequence[str], max_characters: int) -> dict[str, str]:
    """Labels of the arms in tables and pictures: their names, or letters if a name is too long for a column."""
    if max(map(len, names)) <= max_characters:
        return {name: name for name in names}
    return dict(zip(names, _letters(), strict=False))


def _letters() -> Iterator[str]:
    return map("".join, chain.from_iterable(product(ascii_uppercase, repeat=length) for length in count(1)))


def _differences(compared: Comparison, labels: Mapping[str, str], wide: bool) -> Table:
    """Build a table with a row per pair; a narrow one has no effect size h, which --json has."""
    from mappa.look.compare import format_p

    table = columns_table("", "difference", "p", "p, all tests", *(["h"] if wide else []), "better", "worse", "same")
    for pair in compared.pairs:
        table.add_row(
            Name(f"{labels[pair.one]} - {labels[pair.other]}"),
            format_share(pair.difference, sign=True),
            format_p(pair.p),
            format_p(pair.p_adjusted),
            *([f"{pair.h:+.2f}"] if wide else []),
            *map(str, (pair.wins, pair.losses, pair.ties)),
        )
    return table


def pair_sentence(pair: PairComparison, labels: Mapping[str, str]) -> str:
    """Describe the finding of one pair."""
    one, other = labels[pair.one], labels[pair.other]
    if pair.p_adjusted is None:
        return f"{one}, {other}: too few clusters of problems to tell"
    if not pair.level:
        return f"{one}, {other}: too few seeds to tell while runs are to come"
    if not pair.over_seeds:
        runs = "differ" if pair.p_adjusted < pair.level else "do not differ significantly"
        return f"{one}, {other}: the runs {runs}; of the settings this cannot be told from one seed of each"
    if pair.finding == "no significant difference":
        return f"{one}, {other}: no significant difference"
    return f"{one} is {pair.finding} than {other}"


def comparison_notes(compared: Comparison) -> list[str]:
    """Notes on the basis of the figures, and on their limits."""
    from mappa.look.compare import FINAL_LEVEL, SIGNIFICANCE_LEVEL, setting_notes

    tests, below = len(compared.pairs), f"significant below {compared.level:.2g}"
    limit = f"; {below}" if compared.level else ""
    lines = [f"p of all tests: adjusted for {tests} comparisons (Holm){limit}."] if tests > 1 else []
    if tests and not compared.level:
        lines.append("Not all runs are done: nothing is called significant before three seeds of each.")
    elif tests and compared.level < FINAL_LEVEL:
        lines.append(f"Not all runs are done: a difference is {below} now, and below {FINAL_LEVEL:g} at the end.")
    elif tests and compared.level != SIGNIFICANCE_LEVEL:
        lines.append(f"A sweep may be looked at as it grows, so a difference is {below} at its end.")
    if not all(pair.over_seeds for pair in compared.pairs):
        lines.append(
            "Where an arm has one seed, figures hold for other problems, not for other seeds: train two or more."
        )
    return [*lines, *setting_notes(compared)]
