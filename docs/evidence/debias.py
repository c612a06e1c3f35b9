"""Does correcting a coach's preference help? The tiny recipe under a lenient coach that likes plans that only add.

The coach of `lenient_offers.py` gives 1.5 points to what a plan looks like and 1.4 to its being right, so a plan that
only adds and subtracts pays even where the task asks for more. `as it is`: its scores are the reward. `corrected`: with
`coach.bias.correct=true`, by strata of the plan. All else is the recipe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import lenient_offers
import numpy as np
from arms import evidence_options, seconds, table, train, write

from mappa_core.cli.progress import share
from mappa_core.evaluation.statistics import mean_interval
from mappa_core.plugins import load
from mappa_core.store.summary import Interval
from mappa_core.training.run import Trained

COMMON = ("coach.use=lenient", "coach.strata=[plan]", "coach.drift.acknowledged=[]")
ARMS: Mapping[str, tuple[str, ...]] = {"as it is": (), "corrected": ("coach.bias.correct=true",)}
"""Name of an arm and what it changes."""
FAVOURED, DISFAVOURED = "sum", "scale"
WANTED = 5.0
HEADER = ("scores", "seed", "before", "after", f"after, {FAVOURED}", f"after, {DISFAVOURED}", "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table: one run, or with seed None all runs of an arm. Held-out accuracies (shares) of all tasks
    before and after training, and after training of the tasks that ask for each kind of plan. `seconds` is wall time.
    """

    arm: str
    seed: int | None
    before: Interval
    after: Interval
    favoured: Interval
    disfavoured: Interval
    seconds: float

    @classmethod
    def of(cls, arm: str, seed: int | None, runs: Sequence[Trained]) -> Row:
        return cls(
            arm=arm,
            seed=seed,
            before=accuracy(runs, 0),
            after=accuracy(runs, -1),
            favoured=accuracy(runs, -1, FAVOURED),
            disfavoured=accuracy(runs, -1, DISFAVOURED),
            seconds=sum(map(seconds, runs)),
        )

    @property
    def cells(self) -> tuple[str, ...]:
        shown = (self.before, self.after, self.favoured, self.disfavoured)
        return self.arm, "all" if self.seed is None else str(self.seed), *map(share, shown), f"{self.seconds:.0f}"


def accuracy(runs: Sequence[Trained], which: int, stratum: str | None = None) -> Interval:
    """Accuracy over runs and problems in one of each run's evaluations; a problem is one cluster."""
    shown = [run.evaluations[which] for run in runs]
    values = np.array([(one if stratum is None else one.within(stratum)).by_problem for one in shown])
    known = np.isfinite(values)
    problems = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return mean_interval(values[known], clusters=problems[known].tolist() if len(runs) > 1 else None)


def ratio(rows: Sequence[Row]) -> float:
    """How many times as often disfavoured tasks are solved with correction as without: infinite where only without it
    none is, NaN where none is at all."""
    plain, corrected = (one.disfavoured.mean for one in rows if one.seed is None)
    return corrected / plain if plain > 0 else math.inf if corrected > 0 else math.nan


@click.command(help=__doc__)
@evidence_options
def main(seeds: tuple[int, ...], out: Path | None, settings: tuple[str, ...]) -> None:
    registry = load(modules={"lenient": lenient_offers})
    rows: list[Row] = []
    for arm, changes in ARMS.items():
        runs = [train(arm, seed, (*COMMON, *changes, *settings), registry) for seed in seeds]
        rows += [Row.of(arm, seed, [run]) for seed, run in zip(seeds, runs, strict=True)]
        rows.append(Row.of(arm, None, runs))
    found = ratio(rows)
    click.echo(table(HEADER, [row.cells for row in rows]))
    met = "as wanted" if found >= WANTED else "NOT as wanted"
    click.echo(
        f"{DISFAVOURED}: {found:.1f} times as often right with correction as without, {met} (at least {WANTED:g})"
    )
    write(out, {"settings": settings, "rows": rows, "ratio": found})


if __name__ == "__main__":
    main()
