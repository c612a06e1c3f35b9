"""How often the 95 % intervals of `mappa eval`, `mappa compare` and `mappa sweep` hold the truth.

Simulated runs: problems in clusters of 2 to about 30, as data sets have them, whose shares of right answers differ by
cluster (Beta, intra-cluster correlation 0.15); four samples of every problem; training runs of several seeds that come
out differently (0.3 on the logit scale). *eval* is the mean of one run, *compare* the difference of two arms on the
same problems, *sweep* the mean of an arm. With several seeds the truth is that of other seeds and other problems.

An interval holds what it promises where it covers the truth in 93 to 99 of 100 simulations.

--quick makes 200 simulations a cell, which is good to about 3 points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import click
import numpy as np
from arms import table
from scipy.special import expit, logit
from scipy.stats import beta, norm
from stored import write_simulation

from mappa.evaluation.statistics import share_interval
from mappa.look.across_seeds import difference_interval, mean_over_seeds
from mappa_core.records import Float64, Int64, Interval

SIMULATIONS, QUICK = 2000, 200
CLUSTERS = (4, 8, 30, 256)
CORRELATION = 0.15
"""Of two problems of one cluster."""
SAMPLES = 4
SEEDS_DIFFER = 0.3
"""Standard deviation of what a seed adds, on the logit scale."""
GAINS_DIFFER = 0.3
"""The same of what a cluster gains beyond the mean gain."""
NODES = 200
BAND = (0.93, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is simulated: `share` of right answers, `gain` of the other arm on the logit scale (None: one arm alone),
    `seeds` of each arm."""

    what: str
    share: float
    gain: float | None = None
    seeds: int = 1


CASES = (
    Case(what="eval", share=0.5),
    Case(what="eval", share=0.9),
    Case(what="eval", share=0.97),
    Case(what="compare", share=0.5, gain=0.0),
    Case(what="compare", share=0.5, gain=1.0),
    Case(what="compare", share=0.1, gain=1.0),
    Case(what="compare", share=0.02, gain=1.0),
    Case(what="compare", share=0.5, gain=0.0, seeds=3),
    Case(what="compare", share=0.5, gain=1.0, seeds=3),
    Case(what="compare", share=0.1, gain=1.0, seeds=5),
    Case(what="sweep", share=0.5, seeds=3),
    Case(what="sweep", share=0.9, seeds=3),
    Case(what="sweep", share=0.9, seeds=5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One case with so many clusters: the share of intervals that held the truth, of those that lay `below` it and
    `above` it, how wide they were, and how many had no bounds, which count in none of these."""

    case: Case
    clusters: int
    covered: float
    below: float
    above: float
    width: float
    unbounded: int
    seconds: float

    @property
    def holds(self) -> bool:
        return BAND[0] <= self.covered <= BAND[1]


def cell(case: Case, clusters: int, simulations: int) -> Cell:
    """Simulate one cell. Its randomness is its own, so that any of them can be made again alone."""
    name = f"{case.what}/{case.share}/{case.gain}/{case.seeds}/{clusters}"
    random = np.random.default_rng(list(name.encode()))
    truth = truth_of(case)
    started = perf_counter()
    found = [simulated(case, random, clusters) for _ in range(simulations)]
    bounds = np.array([(one.low, one.high) for one in found if one.low is not None], dtype=np.float64)
    low, high = bounds.T
    return Cell(
        case=case,
        clusters=clusters,
        covered=float(np.mean((low <= truth) & (truth <= high))),
        below=float(np.mean(high < truth)),
        above=float(np.mean(low > truth)),
        width=float(np.mean(high - low)),
        unbounded=simulations - len(bounds),
        seconds=perf_counter() - started,
    )


def simulated(case: Case, random: np.random.Generator, clusters: int) -> Interval:
    """The interval of one simulated experiment, made as the commands make it."""
    sizes = 1 + random.geometric(1 / 6, clusters)
    numbers = np.repeat(np.arange(clusters), sizes)
    spread = (1 - CORRELATION) / CORRELATION
    base = logit(np.clip(random.beta(case.share * spread, (1 - case.share) * spread, clusters), 1e-12, 1 - 1e-12))
    names = numbers.tolist()
    if case.seeds == 1 and case.gain is None:
        return share_interval(answers(random, base, numbers), names)
    one = runs(random, base, numbers, case.seeds)
    if case.gain is None:
        return mean_over_seeds(one, names)
    gained = base + case.gain + GAINS_DIFFER * random.normal(size=clusters)
    return difference_interval(runs(random, gained, numbers, case.seeds), one, names)


def runs(random: np.random.Generator, base: Float64, numbers: Int64, seeds: int) -> Float64:
    """Runs of a setting (seeds, problems). A single one is as it is: its interval speaks of this run."""
    offsets = SEEDS_DIFFER * random.normal(size=seeds) if seeds > 1 else np.zeros(1)
    return np.array([answers(random, base + offset, numbers) for offset in offsets])


def answers(random: np.random.Generator, base: Float64, numbers: Int64) -> Float64:
    """The share of right samples of every problem (n,), given the logits of its cluster."""
    return np.asarray(random.binomial(SAMPLES, expit(base)[numbers]) / SAMPLES)


def truth_of(case: Case) -> float:
    """What the mean or the difference is over all clusters and, of several seeds, over all seeds; by quadrature."""
    spread = (1 - CORRELATION) / CORRELATION
    middle = (np.arange(NODES) + 0.5) / NODES
    fine = (np.arange(100 * NODES) + 0.5) / (100 * NODES)
    shares = beta.ppf(fine, case.share * spread, (1 - case.share) * spread)
    base = logit(np.clip(shares, 1e-12, 1 - 1e-12))
    normal = norm.ppf(middle)

    def mean(shift: float, deviation: float) -> float:
        return float(np.mean([expit(base + shift + deviation * z).mean() for z in normal]))

    seeds = SEEDS_DIFFER if case.seeds > 1 else 0.0
    if case.gain is None:
        return mean(0.0, seeds) if seeds else case.share
    return mean(case.gain, float(np.hypot(seeds, GAINS_DIFFER))) - mean(0.0, seeds)


def cells(simulations: int, what: str | None = None, clusters: Sequence[int] = CLUSTERS) -> Iterator[Cell]:
    for case in CASES:
        if what in (None, case.what):
            yield from (cell(case, count, simulations) for count in clusters)


def row(found: Cell) -> tuple[str, ...]:
    case = found.case
    gain = "" if case.gain is None else f"{case.gain:g}"
    mark = "" if found.holds else "outside"
    figures = (f"{100 * value:.1f}" for value in (found.covered, found.below, found.above, found.width))
    simulated = (case.what, f"{case.share:g}", gain, str(case.seeds), str(found.clusters))
    return (*simulated, *figures, str(found.unbounded), mark)


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help=f"{QUICK} simulations a cell in place of {SIMULATIONS}.")
@click.option("--only", type=click.Choice(["eval", "compare", "sweep"]), help="Intervals of this command alone.")
@click.option("--clusters", multiple=True, type=click.Choice(CLUSTERS), help="So many alone; repeatable.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for all figures.")
def main(quick: bool, only: str | None, clusters: tuple[int, ...], out: Path | None) -> None:
    found = list(cells(QUICK if quick else SIMULATIONS, only, clusters or CLUSTERS))
    header = ("of", "share", "gain", "seeds", "clusters", "covered %", "below %", "above %", "width", "no bounds", "")
    click.echo(table(header, map(row, found)))
    click.echo(f"\n{sum(one.holds for one in found)} of {len(found)} cells within 93 to 99 %")
    write_simulation(out, "interval_coverage", simulations=QUICK if quick else SIMULATIONS, cells=found)


if __name__ == "__main__":
    main()
