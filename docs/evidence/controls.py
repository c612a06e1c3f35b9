"""Is it the verdicts that teach? The tiny recipe with verdicts that say nothing of the actions they are given to.

`permuted`: the rule coach's rewards, permuted over all actions of the iteration. `constant`: 5 points for every action.
All else is the recipe. Held if the gain over all seeds is below 5 points and the upper end of its interval below 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import control_offers
from arms import RECIPE, Figures, evidence_options, figures, seconds, table, train
from stored import TrainedRun, write_runs

from mappa.cli.formats import format_share
from mappa_core.plugins import load_plugins

ARMS: Mapping[str, Callable[[int], tuple[str, ...]]] = {
    "permuted": lambda seed: ("estimator.use=permuted", f"estimator.options.seed={seed}"),
    "constant": lambda seed: ("coach.use=constant",),
}
"""Name of a control and, by seed, what it changes."""
MOST_GAIN, MOST_HIGH = 0.05, 0.10
HEADER = ("verdicts", "seed", "before", "after", "gain", "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table: one run, or with seed None all runs of an arm. `seconds` is wall time."""

    arm: str
    seed: int | None
    figures: Figures
    seconds: float

    @property
    def cells(self) -> tuple[str, ...]:
        shown = self.figures
        seed = "all" if self.seed is None else str(self.seed)
        gain = format_share(shown.gain, sign=True)
        return self.arm, seed, format_share(shown.before), format_share(shown.after), gain, f"{self.seconds:.0f}"


@click.command(help=__doc__)
@evidence_options
def main(seeds: tuple[int, ...], out: Path | None, settings: tuple[str, ...]) -> None:
    registry = load_plugins(modules={"controls": control_offers})
    rows: list[Row] = []
    trained: list[TrainedRun] = []
    for arm, changes in ARMS.items():
        runs = [train(arm, seed, (*changes(seed), *settings), registry) for seed in seeds]
        for seed, run in zip(seeds, runs, strict=True):
            rows.append(Row(arm=arm, seed=seed, figures=figures([run]), seconds=seconds(run)))
            trained.append(TrainedRun(arm=arm, seed=seed, words=changes(seed), folder=run.folder))
        rows.append(Row(arm=arm, seed=None, figures=figures(runs), seconds=sum(map(seconds, runs))))
    click.echo(table(HEADER, [row.cells for row in rows]))
    for row in rows:
        if row.seed is None:
            click.echo(f"{row.arm}: {'held' if teaches_nothing(row.figures) else 'NOT held'}")
    write_runs(out, "controls", trained, recipe=RECIPE, settings=settings, rows=rows)


def teaches_nothing(shown: Figures) -> bool:
    """Whether a control gains as little as it should."""
    high = shown.gain.high
    return shown.gain.mean < MOST_GAIN and high is not None and high < MOST_HIGH


if __name__ == "__main__":
    main()
