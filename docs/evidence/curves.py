"""Held-out accuracy over rollouts: curves of several seeds, and the rollouts at which they come to an accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mappa.evaluation.heldout import Evaluation, build_evaluation
from mappa.runs import RunReader
from mappa.session.eval_split import in_selection_split
from mappa.store.summary import read_summary
from mappa_core.records import Float64, Int64, Interval

CHOOSING = 0.5
"""Share of the held-out tasks, by hash, that a learning rate is chosen on: the default of `eval.selection`."""
RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """Held-out results of one arm at one learning rate: `values` (seeds, evaluations, problems) after so many
    `rollouts` (evaluations,); NaN where a problem was lost to the machinery of a tool."""

    rate: float
    rollouts: Int64
    values: Float64
    seconds: float

    @classmethod
    def of(cls, rate: float, runs: Sequence[Path], rollouts_per_iteration: int, *, choosing: bool) -> Curve:
        """The curve of run folders, one a seed, on the tasks that choose a rate or on those that are reported."""
        found = [tuple(evaluations(run, choosing=choosing)) for run in runs]
        iterations = np.array([one.iteration for one in found[0]], dtype=np.int64)
        return cls(
            rate=rate,
            rollouts=iterations * rollouts_per_iteration,
            values=np.array([[one.by_problem for one in own] for own in found]),
            seconds=sum(_seconds(run) for run in runs),
        )

    @property
    def accuracy(self) -> Float64:
        """(evaluations,), over all seeds and problems."""
        return np.asarray(np.nanmean(self.values, axis=(0, 2)))

    @property
    def told(self) -> dict[str, object]:
        """The curve as JSON values."""
        return {
            "rate": self.rate,
            "rollouts": self.rollouts.tolist(),
            "accuracy_by_seed": [self.of_seed(index).accuracy.tolist() for index in range(len(self.values))],
            "seconds": self.seconds,
        }

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


def compare_curves(mix: str, target: float, curves: Mapping[str, Curve]) -> Comparison:
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


def evaluations(run: Path, *, choosing: bool) -> Iterator[Evaluation]:
    """The evaluations of a run in order, on the tasks that choose or on the others."""
    with RunReader(run) as reader:
        # A run that was gone on with tells those that it had once more.
        metrics = {one.iteration: one.metric for one in reader.evaluations}
        for iteration, metric in sorted(metrics.items()):
            played = [one for one in reader.outcomes(iteration) if in_selection_split(one.task, CHOOSING) == choosing]
            yield build_evaluation(played, metric=metric, iteration=iteration)


def reported_problems(run: Path) -> frozenset[str]:
    """The held-out tasks of a run that choose nothing."""
    (first, *_) = evaluations(run, choosing=False)
    return frozenset(first.problems)


def accuracy_over_run(runs: Sequence[Path]) -> float:
    """Accuracy on the tasks that choose, over all evaluations of the runs: what a rate is chosen by."""
    found = [one.by_problem for run in runs for one in evaluations(run, choosing=True)]
    return float(np.nanmean(np.concatenate(found)))


def _seconds(run: Path) -> float:
    wall = read_summary(run).seconds.wall
    assert wall is not None  # a run that ended was timed
    return wall


def curve_cells(mix: str, arm: str, curve: Curve) -> tuple[str, ...]:
    """A line of a table: mix, arm, rate, and accuracy in per cent at each evaluation."""
    accuracy = (f"{100 * share:.1f}" for share in curve.accuracy)
    return mix, arm, f"{curve.rate:g}", *accuracy, f"{curve.seconds:.0f}"


def comparison_cells(found: Comparison) -> tuple[str, ...]:
    """A line of a table: both arms' rollouts to a target, and their ratio."""

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
