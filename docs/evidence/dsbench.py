"""Do the three agents of DSBench learn, and from what? The recipe dsbench/tiny as it is, and with other rewards.

`verdicts`: the recipe. `outcome`: every action gets what its team's submission was worth, between a constant guess and
the reference model. `permuted`: the rule coach's rewards, permuted over all actions of an iteration. `constant`: 5
points for every action.

Printed are held-out success and fair score before and after, with intervals by data set; then what was wrong with the
first actions of each agent before and after, and how many distinct programs there were; and with --greedy the success
of the untrained team when it decodes greedily.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import control_offers
import numpy as np
from arms import evidence_options, seconds, table, train
from stored import TrainedRun, write_runs

from mappa.cli.formats import format_share
from mappa.evaluation.heldout import Evaluation
from mappa.evaluation.standalone import evaluate_standalone
from mappa.evaluation.statistics import paired_gain, share_interval
from mappa.training.run import Run, TrainResult
from mappa_core.plugins import Registry, load_plugins
from mappa_core.records import Float64, Interval
from mappa_dsbench.reports.fault_comparison import FaultComparison, compare_faults

RECIPE = "dsbench/tiny"
ARMS: Mapping[str, Callable[[int], tuple[str, ...]]] = {
    "verdicts": lambda seed: (),
    "outcome": lambda seed: ("shapers=[{use: outcome, options: {metric: skill}}]",),
    "permuted": lambda seed: ("estimator.use=permuted", f"estimator.options.seed={seed}"),
    "constant": lambda seed: ("coach.use=constant",),
}
"""Name of an arm and, by seed, what it changes."""
HEADER = ("rewards", "seed", "measure", "before", "after", "gain", "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measure of one run, or with seed None of all runs of an arm. `seconds` is wall time."""

    arm: str
    seed: int | None
    measure: str
    before: Interval
    after: Interval
    gain: Interval
    seconds: float

    @property
    def cells(self) -> tuple[str, ...]:
        seed = "all" if self.seed is None else str(self.seed)
        shares = format_share(self.before), format_share(self.after), format_share(self.gain, sign=True)
        return self.arm, seed, self.measure, *shares, f"{self.seconds:.0f}"


@click.command(help=__doc__)
@click.option("--arms", default="verdicts", show_default=True, help=f"Of {', '.join(ARMS)}.")
@click.option("--greedy", is_flag=True, help="Also evaluate the untrained team at temperature 0.")
@evidence_options
def main(arms: str, greedy: bool, seeds: tuple[int, ...], out: Path | None, settings: tuple[str, ...]) -> None:
    registry = load_plugins(modules={"controls": control_offers})
    rows: list[Row] = []
    trained: list[TrainedRun] = []
    habits: dict[str, dict[int, FaultComparison]] = {}
    for arm in _chosen(arms):
        runs = [train(arm, seed, (*ARMS[arm](seed), *settings), registry, RECIPE) for seed in seeds]
        for seed, run in zip(seeds, runs, strict=True):
            rows += rows_of(arm, seed, [run])
            trained.append(TrainedRun(arm=arm, seed=seed, words=ARMS[arm](seed), folder=run.folder))
        if len(runs) > 1:
            rows += rows_of(arm, None, runs)
        habits[arm] = {seed: compare_faults(run.folder) for seed, run in zip(seeds, runs, strict=True)}
    click.echo(table(HEADER, [row.cells for row in rows]))
    for arm, by_seed in habits.items():
        click.echo()
        click.echo(table((arm, "before", "after"), stopped(list(by_seed.values()))))
    untrained = greedy_success(registry, settings) if greedy else None
    if greedy:
        click.echo(f"\ngreedy success before training: {format_share(untrained)}")
    write_runs(out, "dsbench", trained, recipe=RECIPE, settings=settings, rows=rows, unlearned=habits, greedy=untrained)


def _chosen(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in ARMS]:
        raise click.BadParameter(f"there is no arm {unknown[0]!r}; there are {', '.join(ARMS)}")
    return names


def rows_of(arm: str, seed: int | None, runs: Sequence[TrainResult]) -> Iterator[Row]:
    """The rows of one run, or of all runs of an arm together: success over all and by stratum, fair scores."""
    taken = sum(map(seconds, runs))
    first, last = ([run.evaluations[place] for run in runs] for place in (0, -1))
    for measure in first[0].measures:
        then, now = ([one.with_metric(measure) for one in side] for side in (first, last))
        for name in ("", *then[0].by_stratum()):
            before, after = ([one.for_stratum(name) if name else one for one in side] for side in (then, now))
            yield Row(
                arm=arm,
                seed=seed,
                measure=f"{measure}, {name}" if name else measure,
                before=share_of(before),
                after=share_of(after),
                gain=gain_of(before, after),
                seconds=taken,
            )


def share_of(evaluations: Sequence[Evaluation]) -> Interval:
    """The mean over problems and runs; runs share the problems, and problems of one data set are one cluster."""
    values, clusters = over_runs(evaluations)
    known = np.isfinite(values)
    return share_interval(values[known], clusters=clusters[known].tolist())


def gain_of(before: Sequence[Evaluation], after: Sequence[Evaluation]) -> Interval:
    """Paired on the same problems of the same run."""
    (then, clusters), (now, _) = over_runs(before), over_runs(after)
    known = np.isfinite(then) & np.isfinite(now)
    return paired_gain(then[known], now[known], clusters=clusters[known].tolist())


def over_runs(evaluations: Sequence[Evaluation]) -> tuple[Float64, np.ndarray]:
    """The values of all problems of all runs in a row, and the clusters that they are of."""
    values = np.concatenate([one.by_problem for one in evaluations])
    return values, np.concatenate([one.clusters or one.problems for one in evaluations])


def stopped(found: Sequence[FaultComparison]) -> Iterator[tuple[str, ...]]:
    """Rows of faults, over all runs of an arm."""
    for place, agent in enumerate(found[0].agents):
        own = [one.agents[place] for one in found]
        before, after = sum(one.before for one in own), sum(one.after for one in own)
        yield f"**{agent.agent}**", f"of {before}", f"of {after}"
        counts: dict[str, list[int]] = {}
        for one in own:
            for fault in one.faults:
                total = counts.setdefault(fault.code, [0, 0])
                total[0] += fault.before
                total[1] += fault.after
        for code, (then, now) in counts.items():
            yield code, f"{then / before:.0%}", f"{now / after:.0%}"
        distinct = [", ".join(str(getattr(one, f"programs_{when}")) for one in own) for when in ("before", "after")]
        yield "distinct programs, by seed", *distinct


def greedy_success(registry: Registry, settings: Sequence[str]) -> Interval | None:
    """The success of the untrained team at temperature 0."""
    composed = Run.from_recipe(RECIPE, *settings, "eval.temperature=0", "eval.samples=1", registry=registry).composed
    return asyncio.run(evaluate_standalone(composed, registry)).evaluation.interval


if __name__ == "__main__":
    main()
