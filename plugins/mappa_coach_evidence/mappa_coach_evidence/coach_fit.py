"""`mappa coach fit evidence`: weights of the coach from labels of one's own."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from mappa.commands import Console, echo, json_option, load_registry
from mappa.judging import LabelledRun, check_writable, make_table, read_labelled_runs
from mappa.statistics import Interval
from mappa_coach_evidence.evidence import weigh
from mappa_coach_evidence.fitting import Choice, Fit, fit_weights
from mappa_coach_evidence.habits import is_habit
from mappa_coach_evidence.read_choices import read_choice
from mappa_coach_evidence.validation import Validation, validate
from mappa_coach_evidence.weights import WEIGHTS
from mappa_coach_evidence.weights_file import VERSION, WeightsFile, hash_weights
from mappa_core import NOBODY, ConfigError

MIN_QUESTIONS = 3
MAX_SHOWN_WEIGHTS = 8
SMALLEST_SHIFT = 0.05
"""Log-odds by which a weight has to move to be shown."""


@click.group("fit")
def fit_group() -> None:
    """Make a coach of your own labels."""


@fit_group.command("evidence")
@click.option(
    "--run", "runs", metavar="RUN", type=click.Path(path_type=Path), multiple=True, required=True,
    help="A labelled run; may be repeated.",
)  # fmt: skip
@click.option("--labeller", metavar="NAME", help="Use the labels of this person; by default of any.")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), required=True, help="The weights.")
@json_option
def command(runs: Sequence[Path], labeller: str | None, out: Path, as_json: bool) -> None:
    """Fit the weights of the coach `evidence` to labels.

    The weights that come with the coach are moved as far as the labels say; with few of them, little or not at all.
    Beside the evidence they learn where, by whom and in which kind of action this team fails. What that is worth on
    questions that it has not seen is estimated by cross-validation and printed. FILE is an option of the coach:

    \b
      mappa coach label runs/x
      mappa coach fit evidence --run runs/x --out my-coach.json
      mappa judge runs/x --coach evidence weights=my-coach.json
    """
    check_writable(out)
    labelled = asyncio.run(read_labelled_runs(load_registry(), runs, labeller=labeller)).runs
    choices = select_choices(labelled)
    validation, fit = validate(choices, WEIGHTS), fit_weights(choices, WEIGHTS)
    build_file(choices, fit).write(out)
    if as_json:
        document = {"out": str(out), "labelled": len(labelled), "fit": fit, "validation": validation}
        echo(msgspec.json.encode(document).decode())
    else:
        show_fit(Console(), len(labelled), fit, validation, out, runs)


def select_choices(labelled: Sequence[LabelledRun]) -> list[Choice]:
    """The labelled plays that say which actions are at fault, and which are not.

    Raises:
        ConfigError: there are none, or of too few questions to hold a fit against some of them.
    """
    found = [(run, read_choice(run)) for run in labelled if run.guilt is not None]
    choices = [choice for _, choice in found if choice.is_informative]
    if not choices:
        why = Counter(_reason(run, choice) for run, choice in found)
        counted = ", ".join(f"{count:,} {reason}" for reason, count in why.items()) or "none says who is guilty"
        raise ConfigError(
            f"a fit is learned from actions that are at fault beside others that are not, and the labels of these "
            f"{len(labelled):,} plays are all of one kind ({counted}): label plays that failed, with their step"
        )
    questions = len({choice.question for choice in choices})
    if questions < MIN_QUESTIONS:
        raise ConfigError(
            f"the labels are of {questions} question{'s' * (questions != 1)}, and a fit needs {MIN_QUESTIONS} or more "
            "to be held against one that it has not seen: label plays of others"
        )
    return choices


def _reason(run: LabelledRun, choice: Choice) -> str:
    assert run.guilt is not None  # only these are read
    if run.guilt.agents == {NOBODY}:
        return "say that nobody failed"
    if not choice.decisive.any():
        return "name no action that the coach can blame"
    return "name every action of their play"


def build_file(choices: Sequence[Choice], fit: Fit) -> WeightsFile:
    """The file of a fit, with the hashes of the questions that made it."""
    return WeightsFile(
        version=VERSION,
        rules=hash_weights(WEIGHTS),
        variance=fit.variance,
        plays=len(choices),
        weights=dict(sorted(fit.weights.items())),
        fitted_on=sorted({choice.question for choice in choices}),
    )


def show_fit(
    console: Console, labelled: int, fit: Fit, validation: Validation, out: Path, runs: Sequence[Path]
) -> None:
    """Print what the fit is worth, what it learned, and how it is used."""

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    tell(f"{validation.plays:,} of {labelled:,} labelled plays say which of several actions decided")
    console.print("\n[bold]first place of the ranking[/]  [dim]questions left out of the fit, % right[/]")
    table = make_table("", "right", "the fit beyond that")
    table.add_row("fitted to your labels", _format_share(validation.fitted), "")
    table.add_row("shipped weights", _format_share(validation.shipped), _format_share(validation.over_shipped, "+.1f"))
    table.add_row(
        "most common place of your labels",
        _format_share(validation.common),
        _format_share(validation.over_common, "+.1f"),
    )
    console.print(table)
    for line in _finding(fit, validation):
        tell(line)
    tell(f"\nwrote {out}")
    folder = shlex.quote(str(runs[0]))
    tell(f"next     mappa judge {folder} --coach evidence weights={shlex.quote(str(out))}")


def _finding(fit: Fit, validation: Validation) -> Iterator[str]:
    if not fit.variance:
        yield "your labels do not say clearly that other weights are better: the file has the shipped ones"
    else:
        moved = sorted(
            ((weight - weigh(name, WEIGHTS), name) for name, weight in fit.weights.items()),
            key=lambda one: -abs(one[0]),
        )
        shown = [f"{_describe_feature(name)} {by:+.1f}" for by, name in moved if abs(by) >= SMALLEST_SHIFT]
        yield f"moved most (log-odds): {', '.join(shown[:MAX_SHOWN_WEIGHTS])}"
    if validation.is_better:
        yield "certainly better than the shipped weights and than the most common place of your labels"
    elif validation.is_worse:
        yield "certainly worse than one of these: do not use it"
    else:
        yield "not certainly better than both: label more plays, and fit again"


def _describe_feature(name: str) -> str:
    return name if not is_habit(name) else f"habit: {name}"


def _format_share(share: Interval, spec: str = ".1f") -> str:
    text = f"{100 * share.mean:{spec}}"
    if share.low is None or share.high is None:
        return text
    return f"{text} \\[{100 * share.low:{spec}}, {100 * share.high:{spec}}]"
