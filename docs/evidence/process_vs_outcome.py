"""How many rollouts to a held-out accuracy: a verdict for every action, against the outcome for every action.

Both arms run the same code on the same tasks; only the rewards differ. Each arm runs at its best learning rate: the one
with the highest held-out accuracy, averaged over all evaluations of the run and all seeds.

--quick trains the first seed alone, at the learning rates that did best before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
from arms import RECIPE, evidence_options, seconds, table, train, write

from mappa_core.plugins import Registry, load
from mappa_core.records import Float64, Int64
from mappa_core.store.summary import Interval
from mappa_core.training.run import Run, Trained

EVERY = 10
"""Iterations between evaluations."""
ARMS: Mapping[str, tuple[str, ...]] = {"process": (), "outcome": ("shapers=[{use: outcome}]",)}
UNGUARDED = "coach.max_missing=1"
"""A team that breaks down leaves the coach little to judge. Here that is a result, and no reason to stop."""
RATES = (5e-4, 1e-3, 2e-3)
RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Tasks to learn, the accuracies to reach on them, and for --quick the learning rate of each arm."""

    settings: tuple[str, ...]
    targets: tuple[float, ...]
    rates: Mapping[str, float]


MIXES: Mapping[str, Mix] = {
    "ordinary": Mix(settings=(), targets=(0.6,), rates={"process": 5e-4, "outcome": 5e-4}),
    "hard": Mix(
        settings=("tasks.options.mix=scale", "tasks.options.steps=[3]"),
        targets=(0.4, 0.6),
        rates={"process": 5e-4, "outcome": 5e-4},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """Held-out results of one arm at one learning rate: `values` (seeds, evaluations, problems) after so many
    `rollouts` (evaluations,); NaN where a problem was lost to the machinery of a tool."""

    rate: float
    rollouts: Int64
    values: Float64
    seconds: float

    @classmethod
    def of(cls, rate: float, runs: Sequence[Trained], rollouts_per_iteration: int) -> Curve:
        iterations = np.array([evaluation.iteration for evaluation in runs[0].evaluations], dtype=np.int64)
        return cls(
            rate=rate,
            rollouts=iterations * rollouts_per_iteration,
            values=np.array([[evaluation.by_problem for evaluation in run.evaluations] for run in runs]),
            seconds=sum(map(seconds, runs)),
        )

    @property
    def accuracy(self) -> Float64:
        """(evaluations,), over all seeds and problems."""
        return np.asarray(np.nanmean(self.values, axis=(0, 2)))

    def of_seed(self, index: int) -> Curve:
        return replace(self, values=self.values[[index]])

    def resampled(self, seeds: Int64, problems: Int64) -> Curve:
        return replace(self, values=self.values[seeds][:, :, problems])

    def rollouts_to(self, target: float) -> float:
        """Rollouts at which the accuracy first comes to `target`, on straight lines between evaluations; infinite
        where it never does."""
        accuracy = self.accuracy
        reached = np.flatnonzero(accuracy >= target)
        if not len(reached):
            return math.inf
        at = reached[0]
        if at == 0:
            return float(self.rollouts[0])
        share = (target - accuracy[at - 1]) / (accuracy[at] - accuracy[at - 1])
        return float(self.rollouts[at - 1] + share * (self.rollouts[at] - self.rollouts[at - 1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both arms of one mix at one target: rollouts with 95 % intervals and by seed, and how many times the process
    arm's the outcome arm needs. Infinite is never."""

    mix: str
    target: float
    rates: Mapping[str, float]
    rollouts: Mapping[str, Interval]
    by_seed: Mapping[str, tuple[float, ...]]
    ratio: Interval | None


def compare(mix: str, target: float, curves: Mapping[str, Curve]) -> Comparison:
    """Compare the arms at one target.

    Intervals are percentiles of a bootstrap over seeds and problems, the same draws for both arms. The choice of the
    learning rate is not drawn again. Draws that have no ratio are left out of its interval.
    """
    draws: dict[str, list[float]] = {arm: [] for arm in curves}
    rng = np.random.default_rng(0)
    runs, _, problems = curves["process"].values.shape
    for _ in range(RESAMPLES):
        seeds = rng.integers(runs, size=(runs,))
        drawn = rng.integers(problems, size=(problems,))
        for arm, curve in curves.items():
            draws[arm].append(curve.resampled(seeds, drawn).rollouts_to(target))
    found = {arm: curve.rollouts_to(target) for arm, curve in curves.items()}
    return Comparison(
        mix=mix,
        target=target,
        rates={arm: curve.rate for arm, curve in curves.items()},
        rollouts={arm: _interval(found[arm], draws[arm]) for arm in curves},
        by_seed={
            arm: tuple(curve.of_seed(index).rollouts_to(target) for index in range(runs))
            for arm, curve in curves.items()
        },
        ratio=_ratio(found, draws),
    )


def _ratio(found: Mapping[str, float], draws: Mapping[str, Sequence[float]]) -> Interval | None:
    """Outcome over process: infinite where only the outcome arm never arrives, 0 where only the process arm does not,
    None where neither arrives or none has to learn."""
    pairs = [(found["outcome"], found["process"]), *zip(draws["outcome"], draws["process"], strict=True)]
    ratios = [outcome / process if 0 < min(outcome, process) < math.inf else None for outcome, process in pairs]
    if ratios[0] is None:
        return None
    return _interval(ratios[0], [ratio for ratio in ratios[1:] if ratio is not None])


def _interval(mean: float, draws: Sequence[float]) -> Interval:
    # An order statistic and no mixture of two: what lies between a number and never is not a number.
    low, high = np.quantile(draws, (0.025, 0.975), method="inverted_cdf")
    return Interval(mean=mean, low=float(low), high=float(high))


def measure(
    mix: str, arm: str, rate: float, seeds: Sequence[int], settings: Sequence[str], registry: Registry
) -> Curve:
    """Train one arm of one mix at one learning rate, once a seed."""
    arm_words = (UNGUARDED, *MIXES[mix].settings, *ARMS[arm])
    words = (*arm_words, f"train.learning_rate={rate}", f"eval.every={EVERY}", *settings)
    asked = Run.from_recipe(RECIPE, *words, registry=registry).composed.config.train
    runs = [train(f"{mix}, {arm}, {rate:g}", seed, words, registry) for seed in seeds]
    return Curve.of(rate, runs, asked.prompts * asked.samples)


def best(curves: Sequence[Curve]) -> Curve:
    """The curve with the highest accuracy, averaged over all evaluations."""
    return max(curves, key=lambda curve: float(curve.accuracy.mean()))


def curve_cells(mix: str, arm: str, curve: Curve) -> tuple[str, ...]:
    accuracy = (f"{100 * share:.1f}" for share in curve.accuracy)
    return mix, arm, f"{curve.rate:g}", *accuracy, f"{curve.seconds:.0f}"


def comparison_cells(found: Comparison) -> tuple[str, ...]:
    def arm(name: str) -> str:
        by_seed = ", ".join(map(_rollouts, found.by_seed[name]))
        return f"{_text(found.rollouts[name], _rollouts)} ({by_seed})"

    ratio = "-" if found.ratio is None else _text(found.ratio, _times)
    return found.mix, f"{found.target:.0%}", arm("process"), arm("outcome"), ratio


def _rollouts(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "never"


def _times(value: float) -> str:
    return {0.0: "process never", math.inf: "outcome never"}.get(value, f"{value:.2f}")


def _text(value: Interval, word: Callable[[float], str]) -> str:
    assert value.low is not None and value.high is not None  # a bootstrap has both
    return f"{word(value.mean)} [{word(value.low)}, {word(value.high)}]"


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="The first seed alone, at learning rates that are known.")
@evidence_options
def main(quick: bool, seeds: tuple[int, ...], out: Path | None, settings: tuple[str, ...]) -> None:
    registry = load()
    seeds = seeds[:1] if quick else seeds
    tried: list[tuple[str, str, Curve]] = []
    found: list[Comparison] = []
    for mix, chosen in MIXES.items():
        curves = {}
        for arm in ARMS:
            rates = (chosen.rates[arm],) if quick else RATES
            all_rates = [measure(mix, arm, rate, seeds, settings, registry) for rate in rates]
            tried += [(mix, arm, curve) for curve in all_rates]
            curves[arm] = best(all_rates)
        found += [compare(mix, target, curves) for target in chosen.targets]
        write(out, document(seeds, settings, tried, found))
    after = tuple(str(rollouts) for rollouts in tried[0][2].rollouts)
    click.echo("Held-out accuracy in per cent after so many rollouts:\n")
    click.echo(table(("mix", "arm", "rate", *after, "s"), [curve_cells(*one) for one in tried]))
    click.echo("\nRollouts to a held-out accuracy, each arm at its best rate, with 95 % intervals (and by seed):\n")
    header = ("mix", "to", "process", "outcome", "outcome / process")
    click.echo(table(header, [comparison_cells(one) for one in found]))


def document(
    seeds: Sequence[int],
    settings: Sequence[str],
    tried: Sequence[tuple[str, str, Curve]],
    found: Sequence[Comparison],
) -> dict[str, object]:
    """All figures as JSON values; rollouts that are null are never."""
    curves = [
        {
            "mix": mix,
            "arm": arm,
            "rate": curve.rate,
            "rollouts": curve.rollouts.tolist(),
            "accuracy_by_seed": [curve.of_seed(index).accuracy.tolist() for index in range(len(seeds))],
            "seconds": curve.seconds,
        }
        for mix, arm, curve in tried
    ]
    return {"seeds": seeds, "settings": settings, "curves": curves, "comparisons": found}


if __name__ == "__main__":
    main()
