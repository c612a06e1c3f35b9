"""Is a coach's preference told from merit, and from the errors that it repeats? Simulated coaches that are known.

An agent acts several times from each prompt. Its action is right or wrong; a fair coach gives `2.5 + 4 x right` points,
with an `error` that it repeats whenever it judges the same action (as any rule does, and a model at temperature 0), and
with `noise` that is new in every judgement. A biased coach gives 1.5 points more where it likes what it sees: one of
two plans, an action of twice the length, or an agent's name. What it likes is right less often (by 2 points of the fair
coach), as often, or more often, so that merit goes with the stratum. *Blind judgement* is the same coach without
the preference; half of the variance of its error is that of its first judgement. *A second coach* errs as much, by
itself. *Siblings* have neither. The figures are what `bias_corrected` takes off of a gap in the end (points), in how
many runs it raised an alarm of each kind, and in how many it said itself that it cannot tell.

Required: in every cell of a fair coach at most 5 % of runs with an alarm of each kind, and at most 0.1 points taken off
on average; in every cell of a biased one at least 1.2 points taken off, or it said that it cannot tell.

`--form second` plays another simulation, on which nothing was tuned: see `second_form.py`. `--quick` plays the corners
of the grid, in few and short runs unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import click
import numpy as np
import second_form
from rich.console import Console
from rich.table import Table
from stored import write_simulation
from two_judgements import judge_twice

from mappa.cli.formats import format_share
from mappa.statistics import wilson_interval
from mappa_calibration.actions import ActionColumns, task_cluster
from mappa_calibration.bias_model import BiasModel
from mappa_calibration.options import BiasOptions
from mappa_core import Use

ITERATIONS, TASKS, SIBLINGS = 200, 16, 4
BASE, MERIT, BONUS = 2.5, 4.0, 1.5
"""Far enough from the ends of the scale for the bonus to be given nearly whole: nobody gets more than 10 points."""
SPREADS = (0.0, 0.5, 1.0, 1.5)
"""Standard deviations of the error that is repeated, and of the noise that is not, in points."""
JUDGED_TWICE = 0.25
RIGHT = {"worse": (0.25, 0.75), "equal": (0.5, 0.5), "better": (0.75, 0.25)}
"""Share of right actions where the coach likes what it sees, and elsewhere."""
WAYS: dict[str, tuple[str, str]] = {
    "plan, by blind judgement": ("plan", "blind"),
    "agent, by blind judgement": ("agent", "blind"),
    "plan, by a second coach": ("plan", "second"),
    "length, by a second coach": ("length", "second"),
    "agent, by a second coach": ("agent", "second"),
    "length, by siblings": ("length", "siblings"),
}
"""What the coach likes, and how it is told: the stratifier, and the method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A coach and a team."""

    way: str
    bonus: float
    right: str
    error: float
    noise: float

    @property
    def stratifier(self) -> str:
        return WAYS[self.way][0]

    @property
    def method(self) -> str:
        return WAYS[self.way][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Points taken off a gap at the end of every run, shares of runs with an alarm, and that said it cannot tell."""

    case: Case
    removed: tuple[float, ...]
    level: float
    widening: float
    untold: float


def cases(spreads: Sequence[float] = SPREADS) -> Iterator[Case]:
    for way, bonus, right, error, noise in product(WAYS, (0.0, BONUS), RIGHT, spreads, spreads):
        yield Case(way=way, bonus=bonus, right=right, error=error, noise=noise)


def simulate(case: Case, runs: int, seed: int, *, iterations: int = ITERATIONS, form: str = "first") -> Result:
    """Play runs of a case in one of FORMS."""
    rng = np.random.default_rng((seed, *repr(case).encode()))
    removed, kinds, untold = zip(*[play(case, rng, iterations, FORMS[form]) for _ in range(runs)], strict=True)
    level, widening = (float(np.mean([kind in found for found in kinds])) for kind in ("level", "widening"))
    return Result(case=case, removed=removed, level=level, widening=widening, untold=float(np.mean(untold)))


def play(case: Case, rng: np.random.Generator, iterations: int, played: Form) -> tuple[float, set[str], bool]:
    """Play one run of a form: the points that the model takes off the gap at its end, the kinds of alarms that it
    raised, and whether it said that it cannot tell."""
    stratifier = case.stratifier
    options = BiasOptions(
        coach=Use(use="first"),
        strata=[stratifier],
        words={"plan": ["sum"]} if (stratifier, case.method) == ("plan", "blind") else {},
        second=Use(use="second") if case.method == "second" else None,
    )
    options.check()
    model, alarms, untold = BiasModel(options), set[str](), False
    for iteration in range(iterations):
        report = model.learn({"live": played(case, iteration, rng)}, iteration)
        alarms.update(alarm.kind for alarm in report.alarms)
        untold |= any("cannot be told" in note for note in report.notes)
    if stratifier == "agent":
        found = [model.bias("live", agent, {}, 64.0) for agent in ("liked", "other")]
    elif stratifier == "length":
        found = [model.bias("live", "liked", {}, tokens) for tokens in (128.0, 64.0)]
    else:
        found = [model.bias("live", "liked", {stratifier: stratum}, 64.0) for stratum in ("sum", "scale")]
    return found[0] - found[1], alarms, untold


def played(case: Case, iteration: int, rng: np.random.Generator) -> ActionColumns:
    """The scored actions of one iteration."""
    task = np.repeat(np.arange(TASKS), SIBLINGS)
    liked = rng.random(len(task)) < 0.5
    right = rng.random(len(task)) < np.where(liked, *RIGHT[case.right]) + rng.uniform(-0.2, 0.2, TASKS)[task]
    honest = BASE + MERIT * right
    points, again = judge_twice(case, honest, case.bonus * liked, rng.standard_normal)
    names = [f"{iteration}/{number}" for number in range(TASKS)]
    return ActionColumns(
        agent=np.where(liked | (case.stratifier != "agent"), "liked", "other").astype(object),
        points=np.clip(points, 0, 10),
        reference=np.where(rng.random(len(task)) < JUDGED_TWICE, np.clip(again, 0, 10), np.nan),
        prompt=task,
        cluster=np.array([task_cluster(name) for name in names])[task],
        tokens=np.where(liked & (case.stratifier == "length"), 128.0, 64.0),
        strata={"plan": np.where(liked, "sum", "scale").astype(object)},
    )


Form = Callable[[Case, int, np.random.Generator], ActionColumns]
"""Plays the scored actions of a case in one iteration, with what its coach likes."""
FORMS: Mapping[str, Form] = {"first": played, "second": second_form.played}


def show(found: Sequence[Result]) -> None:
    table = Table(box=None, header_style="dim")
    names = "what and how", "preference", "liked is right", "error", "noise", "taken off", "level", "widening"
    for name in (*names, "cannot tell"):
        table.add_column(name)
    for one in found:
        case, removed = one.case, np.array(one.removed)
        low, high = np.quantile(removed, (0.05, 0.95))
        table.add_row(
            case.way, f"{case.bonus:g}", case.right, f"{case.error:g}", f"{case.noise:g}",
            f"{removed.mean():+.2f} ({low:+.2f} to {high:+.2f})",
            f"{one.level:.0%}", f"{one.widening:.0%}", f"{one.untold:.0%}",
        )  # fmt: skip
    Console(width=160).print(table)


@click.command(help=__doc__)
@click.option("--runs", type=click.IntRange(min=1), help="Runs of each case.  [default: 40; quick: 4]")
@click.option("--iterations", type=click.IntRange(min=1), help="Of each run.  [default: 200; quick: 60]")
@click.option("--quick", is_flag=True, help="Only errors and noise of 0 and 1.5.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Draws the runs.")
@click.option("--form", default="first", show_default=True, type=click.Choice(list(FORMS)), help="What is simulated.")
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), help="Only this way; repeatable.")
@click.option("--fair", is_flag=True, help="Only coaches without a preference.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for all figures.")
def main(
    runs: int | None,
    iterations: int | None,
    quick: bool,
    seed: int,
    form: str,
    ways: tuple[str, ...],
    fair: bool,
    out: Path | None,
) -> None:
    runs, iterations = runs or (4 if quick else 40), iterations or (60 if quick else ITERATIONS)
    spreads = (SPREADS[0], SPREADS[-1]) if quick else SPREADS
    chosen = [case for case in cases(spreads) if case.way in (ways or WAYS) and not (fair and case.bonus)]
    found = [simulate(case, runs, seed, iterations=iterations, form=form) for case in chosen]
    show(found)
    for words in (*alarm_rates(found), *summaries(found)):
        click.echo(words)
    results = [*map(asdict, found)]
    write_simulation(out, "preferences", form=form, runs=runs, iterations=iterations, seed=seed, results=results)


def alarm_rates(found: Sequence[Result]) -> Iterator[str]:
    """By what is liked and how it is told: runs of fair coaches with an alarm of each kind, with Wilson's interval."""
    for way, kind in product(WAYS, ("level", "widening")):
        own = [one for one in found if one.case.way == way and not one.case.bonus]
        if runs := sum(len(one.removed) for one in own):
            alarms = sum(round(getattr(one, kind) * len(one.removed)) for one in own)
            shown = format_share(wilson_interval(alarms / runs, runs))
            yield f"fair, {way}: a {kind} alarm in {alarms} of {runs} runs, {shown}"


def summaries(found: Sequence[Result]) -> Iterator[str]:
    """By what is liked and how it is told: the cells with the most points taken off a fair coach, and with the fewest
    taken off a biased one that did not say that it cannot tell."""
    for way in WAYS:
        fair = [abs(float(np.mean(one.removed))) for one in found if one.case.way == way and not one.case.bonus]
        biased = [one for one in found if one.case.way == way and one.case.bonus]
        told = [float(np.mean(one.removed)) for one in biased if one.untold < 1]
        if fair:
            yield f"fair, {way}: at most {max(fair):.2f} points taken off in a cell"
        if told:
            yield f"biased, {way}: {min(told):.2f} to {max(told):.2f} points taken off in a cell"
        elif biased:
            yield f"biased, {way}: it says that it cannot tell"


if __name__ == "__main__":
    main()
