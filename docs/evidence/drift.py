"""Do the alarms of drift keep their promises? Simulated coaches, with a preference and without.

64 tasks in two strata (34 and 30), 2 samples of each an epoch, 4 actions per agent and trajectory, 22 epochs; what a
score is beyond a second judgement of the same action is the task's own effect (standard deviation 1, the same in all
epochs and for all agents) and noise (1.5 per action). The published gap is 1.15 points in the first epoch and widens
evenly to 1.67 in the last. Every simulated run goes through the monitor that training uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from arms import table
from stored import write_simulation

from mappa_calibration.actions import ActionColumns, Float64, Int64, task_cluster
from mappa_calibration.comparison import Comparison
from mappa_calibration.drift import ALARM_KINDS, DriftMonitor, Subject
from mappa_calibration.options import AlarmOptions

EPOCHS = 22
STRATA = np.repeat(np.array(["favoured", "other"], dtype=object), (34, 30))
SAMPLES, ACTIONS = 2, 4
TASK, NOISE = 1.0, 1.5
BASIS = {"task": "in a simulation"}
DUE = 3
"""Epochs within which a level alarm is due."""


def none(epoch: int) -> float:
    return 0.0


def constant(epoch: int) -> float:
    return 1.15


def published(epoch: int) -> float:
    return 1.15 + (1.67 - 1.15) * epoch / (EPOCHS - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of run: `gap` is points by epoch that the favoured stratum gets more, from the first `with_gap` agents.

    An epoch is played in so many `iterations`; where its tasks are `fresh`, none was there before. `noise` has a
    standard deviation per stratum.
    All scores `rise` by so many points from the first epoch to the last. `whole` ones are rounded.
    """

    name: str
    gap: Callable[[int], float] = none
    agents: int = 1
    with_gap: int = 3
    acknowledged: bool = False
    iterations: int = 1
    fresh: bool = False
    noise: tuple[float, float] = (NOISE, NOISE)
    rise: float = 0.0
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """Epoch of the first alarm of each kind in every simulated run, (simulations, 2), EPOCHS where there was none."""

    case: Case
    first: Int64

    @property
    def curves(self) -> Float64:
        """Share of runs with an alarm of each kind by the end of every epoch, (2, EPOCHS)."""
        return np.array([[(kind <= epoch).mean() for epoch in range(EPOCHS)] for kind in self.first.T])

    @property
    def any(self) -> float:
        return float((self.first < EPOCHS).any(axis=1).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What is to hold of a case: a share of runs, and the bound it is to keep."""

    case: Case
    words: str
    share: Callable[[Result], float]
    bound: float
    at_least: bool


def promises() -> Iterator[Promise]:
    """The monitor's promises, for one agent and for three that the coach treats alike."""
    for agents in (1, 3):
        also = f"{agents} agent{'s' if agents > 1 else ''}"
        case = Case(name=f"no gap, {also}", agents=agents)
        yield Promise(case=case, words="any alarm", share=lambda found: found.any, bound=0.05, at_least=False)
        case = Case(name=f"published gap, {also}", agents=agents, gap=published)
        yield Promise(case=case, words="level alarm by epoch 2", share=level_due, bound=0.9, at_least=True)
        case = Case(name=f"constant gap, acknowledged, {also}", agents=agents, gap=constant, acknowledged=True)
        yield Promise(case=case, words="widening alarm", share=widening, bound=0.05, at_least=False)
        case = Case(name=f"published gap, acknowledged, {also}", agents=agents, gap=published, acknowledged=True)
        yield Promise(case=case, words="widening alarm", share=widening, bound=0.9, at_least=True)


def level_due(found: Result) -> float:
    return float(found.curves[0, DUE - 1])


def widening(found: Result) -> float:
    return float(found.curves[1, -1])


OTHERS = (
    Case(name="published gap with 1 of 3 agents", agents=3, with_gap=1, gap=published),
    Case(name="no gap, 4 iterations an epoch", iterations=4),
    Case(name="published gap, 4 iterations an epoch", iterations=4, gap=published),
    Case(name="no gap, 4 iterations, tasks never return", iterations=4, fresh=True),
    Case(name="published gap, 4 iterations, tasks never return", iterations=4, fresh=True, gap=published),
    Case(name="no gap, noise 0.5 and 3", noise=(0.5, 3.0)),
    Case(name="no gap, all scores rise by 3", rise=3.0),
    Case(name="no gap, rise by 3, whole scores", rise=3.0, whole=True),
    Case(name="published gap, whole scores", gap=published, whole=True),
    Case(name="gap of 1.5 from epoch 15 on", gap=lambda epoch: 1.5 * (epoch >= 15)),
)
"""Cases without a promise, reported as they come out."""


def simulate(case: Case, simulations: int, seed: int, *, epochs: int = EPOCHS) -> Result:
    """Play the first `epochs` of `case` so many times."""
    rng = np.random.default_rng((seed, *case.name.encode()))
    return Result(case=case, first=np.array([first_alarms(case, rng, epochs) for _ in range(simulations)]))


def first_alarms(case: Case, rng: np.random.Generator, epochs: int) -> tuple[int, ...]:
    """Play one run; the epoch of the first alarm of each kind."""
    agents = [f"agent {number}" for number in range(case.agents)]
    acknowledged = [f"{agent}/task" for agent in agents] if case.acknowledged else []
    monitor = DriftMonitor(AlarmOptions(acknowledged=acknowledged))
    first = dict.fromkeys(ALARM_KINDS, EPOCHS)
    effect, iteration = rng.normal(0, TASK, len(STRATA)), 0
    for epoch in range(epochs):
        effect = rng.normal(0, TASK, len(STRATA)) if case.fresh else effect
        for tasks in np.array_split(rng.permutation(len(STRATA)), case.iterations):
            found = played(case, agents, epoch, tasks, effect, rng)
            for alarm in monitor.observe(found, iteration, BASIS).alarms:
                first[alarm.kind] = min(first[alarm.kind], epoch)
            iteration += 1
    return tuple(first.values())


def played(
    case: Case, agents: Sequence[str], epoch: int, tasks: Int64, effect: Float64, rng: np.random.Generator
) -> dict[Subject, Comparison]:
    """What is compared in one iteration, by agent."""
    task = np.repeat(tasks, SAMPLES * ACTIONS)
    favoured = STRATA[task] == "favoured"
    names = [f"{epoch if case.fresh else 0}/{number}" for number in range(len(STRATA))]
    cluster = np.array([task_cluster(name) for name in names])[task]
    found: dict[Subject, Comparison] = {}
    unknown = np.full(len(task), np.nan)
    for number, agent in enumerate(agents):
        gap = case.gap(epoch) if number < case.with_gap else 0.0
        noise = rng.normal(0, 1, len(task)) * np.where(favoured, *case.noise)
        excess = effect[task] + case.rise * epoch / (EPOCHS - 1) + gap * favoured + noise
        actions = ActionColumns(
            agent=np.full(len(task), agent, dtype=object),
            points=unknown,
            reference=unknown,
            prompt=task,
            cluster=cluster,
            tokens=unknown,
            strata={"task": STRATA[task]},
        )
        found["live", agent, "task"] = Comparison(
            actions=actions,
            excess=np.round(excess) if case.whole else excess,
            group=np.zeros(len(task), dtype=np.int64),
        )
    return found


@click.command(help=__doc__)
@click.option("--simulations", default=1000, show_default=True, type=click.IntRange(min=1), help="Runs of each case.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Draws the runs.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for all figures.")
def main(simulations: int, seed: int, out: Path | None) -> None:
    found: list[Result] = []
    rows: list[tuple[str, ...]] = []
    for promise in promises():
        found.append(simulate(promise.case, simulations, seed))
        share = promise.share(found[-1])
        kept = share >= promise.bound if promise.at_least else share <= promise.bound
        bound = f"{'at least' if promise.at_least else 'at most'} {promise.bound:.0%}"
        rows.append((promise.case.name, promise.words, bound, f"{share:.1%}", "kept" if kept else "NOT kept"))
        click.echo(f"{promise.case.name}: {promise.words} in {share:.1%} of the runs", err=True)
    for case in OTHERS:
        found.append(simulate(case, simulations, seed))
        click.echo(case.name, err=True)
    click.echo(f"Share of {simulations} runs with an alarm:\n")
    click.echo(table(("case", "alarm", "promised", "found", ""), rows))
    click.echo("\nPer cent of the runs with an alarm by the end of an epoch:\n")
    click.echo(table(("case", "alarm", *map(str, range(EPOCHS)), "any kind"), curves(found)))
    write_simulation(out, "drift", simulations=simulations, seed=seed, cases=[document(one) for one in found])


def curves(found: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    """Two rows a case: level and widening."""
    for one in found:
        for kind, curve in zip(ALARM_KINDS, one.curves, strict=True):
            name, both = (one.case.name, f"{100 * one.any:.1f}") if kind == ALARM_KINDS[0] else ("", "")
            yield name, kind, *(f"{100 * share:.1f}" for share in curve), both


def document(one: Result) -> dict[str, object]:
    """The figures of a case as JSON values."""
    return {"case": one.case.name, **dict(zip(ALARM_KINDS, one.curves.tolist(), strict=True)), "any": one.any}


if __name__ == "__main__":
    main()
