"""Is a coach's preference told from merit? Simulated coaches whose preferences are known, and later agents who fail.

An agent acts first, several times from each prompt. Its action is right or wrong; the team succeeds where it is right
and the later agents, who turn a right action into a success with probability `later`, do their part. An honest coach
gives `1.5 + 7 x right` points with noise; a biased one 1.5 more where it likes what it sees: one of two plans, a plan
that the agent does not choose (`task`), an action of twice the length, or an agent's name. What it likes is right less
often (by 3.5 points of the honest coach), as often, or more often. The figures are what `bias_corrected` takes off of a
gap in the end (points), in how many runs it raised an alarm, and in how many it said itself that it cannot tell.

`--form second` plays another simulation, on which nothing was tuned: see `second_form.py`.
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

from mappa.cli.formats import format_share
from mappa.statistics import wilson_interval
from mappa_calibration.actions import ActionColumns, task_cluster
from mappa_calibration.bias_model import BiasModel
from mappa_calibration.options import BiasOptions

ITERATIONS, TASKS, SIBLINGS = 60, 16, 4
BASE, MERIT, NOISE, BONUS = 1.5, 7.0, 0.5, 1.5
LATER = (0.3, 0.6, 0.9, 1.0)
RIGHT = {"worse": (0.25, 0.75), "equal": (0.5, 0.5), "better": (0.75, 0.25)}
"""Share of right actions where the coach likes what it sees, and elsewhere."""
WAYS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "plan, by siblings": ("plan", {}),
    "plan, by blind judgement": ("plan", {"plan": ["sum"]}),
    "task, by siblings": ("task", {}),
    "length, by siblings": ("length", {}),
    "agent, by blind judgement": ("agent", {}),
}
"""What the coach likes, and how it is told: the stratifier, and the words that are hidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A coach and a team. `later`: chance that later agents turn a right action into a success, where the coach likes
    what it sees and elsewhere."""

    way: str
    bonus: float
    right: str
    later: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Points taken off a gap at the end of every run, shares of runs with an alarm, and that said it cannot tell."""

    case: Case
    removed: tuple[float, ...]
    alarms: float
    untold: float


def cases() -> Iterator[Case]:
    for way, bonus, right, later in product(WAYS, (0.0, BONUS), RIGHT, LATER):
        yield Case(way=way, bonus=bonus, right=right, later=(later, later))
    for way, other in product(WAYS, (0.6, 0.3, 0.1)):
        yield Case(way=way, bonus=0.0, right="equal", later=(0.9, other))


def simulate(case: Case, runs: int, seed: int, *, iterations: int = ITERATIONS, form: str = "first") -> Result:
    """Play runs of a case in one of FORMS."""
    rng = np.random.default_rng((seed, *repr(case).encode()))
    found = [play(case, rng, iterations, FORMS[form]) for _ in range(runs)]
    removed, alarms, untold = zip(*found, strict=True)
    return Result(case=case, removed=removed, alarms=float(np.mean(alarms)), untold=float(np.mean(untold)))


def play(case: Case, rng: np.random.Generator, iterations: int, played: Form) -> tuple[float, bool, bool]:
    """Play one run of a form: the points that the model takes off the gap at its end, and whether it raised an alarm or
    said that it cannot tell."""
    stratifier, words = WAYS[case.way]
    options = BiasOptions(strata=[stratifier], words=words)
    options.check()
    model, alarmed, untold = BiasModel(options), False, False
    for iteration in range(iterations):
        report = model.learn({"live": played(case, stratifier, iteration, rng)}, iteration)
        alarmed |= bool(report.alarms)
        untold |= any("cannot be told" in note for note in report.notes)
    if stratifier == "agent":
        found = [model.bias("live", agent, {}, 64.0) for agent in ("liked", "other")]
    elif stratifier == "length":
        found = [model.bias("live", "liked", {}, tokens) for tokens in (128.0, 64.0)]
    else:
        found = [model.bias("live", "liked", {stratifier: stratum}, 64.0) for stratum in ("sum", "scale")]
    return found[0] - found[1], alarmed, untold


def played(case: Case, stratifier: str, iteration: int, rng: np.random.Generator) -> ActionColumns:
    """The scored actions of one iteration."""
    task = np.repeat(np.arange(TASKS), SIBLINGS)
    liked = rng.random(TASKS * SIBLINGS) < 0.5
    if stratifier == "task":
        liked = (rng.random(TASKS) < 0.5)[task]
    chance = np.where(liked, *RIGHT[case.right]) + rng.uniform(-0.2, 0.2, TASKS)[task]
    right = rng.random(len(task)) < chance
    honest = BASE + MERIT * right
    points = np.clip(honest + case.bonus * liked + rng.normal(0, NOISE, len(task)), 0, 10)
    again = np.clip(honest + rng.normal(0, NOISE, len(task)), 0, 10)
    if WAYS[case.way][1] == {} and stratifier != "agent":
        again = np.clip(again + case.bonus * liked, 0, 10)  # What is not hidden is liked again.
    names = [f"{iteration}/{number}" for number in range(TASKS)]
    return ActionColumns(
        agent=np.where(liked | (stratifier != "agent"), "liked", "other").astype(object),
        points=points,
        reference=np.where(rng.random(len(task)) < 0.25, again, np.nan),
        outcome=(right & (rng.random(len(task)) < np.where(liked, *case.later))).astype(float),
        prompt=task,
        cluster=np.array([task_cluster(name) for name in names])[task],
        tokens=np.where(liked & (stratifier == "length"), 128.0, 64.0),
        strata={name: np.where(liked, "sum", "scale").astype(object) for name in ("plan", "task")},
    )


Form = Callable[[Case, str, int, np.random.Generator], ActionColumns]
"""Plays the scored actions of a case in one iteration, with what its coach likes."""
FORMS: Mapping[str, Form] = {"first": played, "second": second_form.played}


def show(found: Sequence[Result]) -> None:
    table = Table(box=None, header_style="dim")
    for name in ("what and how", "preference", "liked is right", "later agents", "taken off", "alarms", "cannot tell"):
        table.add_column(name)
    for one in found:
        case, removed = one.case, np.array(one.removed)
        low, high = np.quantile(removed, (0.05, 0.95))
        table.add_row(
            case.way, f"{case.bonus:g}", case.right, f"{case.later[0]:g} / {case.later[1]:g}",
            f"{removed.mean():+.2f} ({low:+.2f} to {high:+.2f})", f"{one.alarms:.0%}", f"{one.untold:.0%}",
        )  # fmt: skip
    Console(width=160).print(table)


@click.command(help=__doc__)
@click.option("--runs", default=40, show_default=True, type=click.IntRange(min=1), help="Runs of each case.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Draws the runs.")
@click.option("--form", default="first", show_default=True, type=click.Choice(list(FORMS)), help="What is simulated.")
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), help="Only this way; repeatable.")
@click.option("--honest", is_flag=True, help="Only coaches without a preference.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for all figures.")
def main(runs: int, seed: int, form: str, ways: tuple[str, ...], honest: bool, out: Path | None) -> None:
    chosen = [one for one in cases() if one.way in (ways or WAYS) and not (honest and one.bonus)]
    found = [simulate(case, runs, seed, form=form) for case in chosen]
    show(found)
    for words in alarm_rates(found):
        click.echo(words)
    write_simulation(out, "preferences", form=form, runs=runs, seed=seed, results=[*map(asdict, found)])


def alarm_rates(found: Sequence[Result]) -> Iterator[str]:
    """By what is liked and how it is told: honest runs with an alarm, with Wilson's interval."""
    for way in WAYS:
        own = [one for one in found if one.case.way == way and not one.case.bonus]
        if runs := sum(len(one.removed) for one in own):
            alarms = sum(round(one.alarms * len(one.removed)) for one in own)
            shown = format_share(wilson_interval(alarms / runs, runs))
            yield f"honest, {way}: an alarm in {alarms} of {runs} runs, {shown}"


if __name__ == "__main__":
    main()
