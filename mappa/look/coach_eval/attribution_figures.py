"""Figures of a coach on labelled runs, each beside what answers come to that need no coach.

All intervals are 95 %, with the runs of one question as one cluster. A missing answer is no wrong one: a figure is
given over all labelled entries (a missing one counts as not right, the rule of published figures) and over those that
were answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mappa.evaluation.statistics import mean_interval, paired_gain, share_interval
from mappa.look.arrays import Float64
from mappa.look.coach_eval.attribution import TASKS, Attribution, Grade
from mappa.look.coach_eval.bootstrap import Statistic, estimate, ratio
from mappa.look.coach_eval.labelled_runs import LabelledRun
from mappa_core import MAX_SCORE, Verdict
from mappa_core.records import Interval

ALL, MEAN = "all", "mean of the strata"
"""Names of the figures over all entries and of the mean of those of the strata."""
_BINS = 10
_GRADES: Mapping[str, Callable[[LabelledRun, Grade], Sequence[float | None]]] = {
    "guilty agent": lambda run, one: [one.agent] if run.guilt and run.guilt.agents else [],
    "guilty agent, by all labellers": lambda run, one: [one.agent_by_all] if run.is_labelled_again else [],
    "decisive step": lambda run, one: [one.step] if run.guilt and run.guilt.positions else [],
    "decisive step, by all labellers": lambda run, one: [one.step_by_all] if run.is_labelled_again else [],
    "within one step": lambda run, one: [one.near] if run.guilt and run.guilt.positions else [],
    "first three": lambda run, one: [one.three] if run.guilt and run.guilt.positions else [],
    "accused agent": lambda run, one: [one.accused_agent] if run.guilt and run.guilt.agents else [],
    "accused step": lambda run, one: [one.accused_step] if run.guilt and run.guilt.positions else [],
    "kind of failure": lambda run, one: [one.category] if run.categories else [],
    "step labels": lambda run, one: one.values,
    "first error": lambda run, one: [one.first_error] if run.qualities else [],
}
"""The labelled entries of a run for each task, None where there was no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The share of right answers to one task (0-1) in one stratum. Of the labelled `entries` (runs, or steps)
    `answers` have an answer. `of_all` counts a missing answer as not right; `of_answered` leaves it out, and is None if
    a stratum that counts has no answer. `naive` is `of_all` of answers that need no coach, by name, and `gain` is what
    the coach adds to the `best_naive` of them, paired."""

    task: str
    stratum: str
    entries: int
    answers: int
    of_all: Interval
    of_answered: Interval | None
    naive: Mapping[str, Interval]
    best_naive: str | None
    gain: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Whether confidence is right as often as it says. `brier` is the mean squared error of the confidence, `constant`
    that of the base rate in its place, `error` the mean distance of confidence and share in ten bins (ECE). A bin is
    mean confidence, share that was right, and number."""

    of: str
    entries: int
    brier: Interval
    constant: float
    error: float
    bins: tuple[tuple[float, float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Column:
    """Answers to one task: how right each entry is (NaN if missing), its stratum and its question."""

    values: Float64
    strata: tuple[str, ...]
    clusters: tuple[str, ...]

    @classmethod
    def of(cls, task: str, runs: Sequence[LabelledRun], grades: Sequence[Sequence[Grade]]) -> _Column:
        """The entries of every repeat of `grades`, one after another."""
        rows = [
            (np.nan if value is None else value, run.stratum, run.cluster)
            for repeat in grades
            for run, one in zip(runs, repeat, strict=True)
            for value in _GRADES[task](run, one)
        ]
        values, strata, clusters = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(values=np.array(values, dtype=np.float64), strata=tuple(strata), clusters=tuple(clusters))

    def where(self, stratum: str) -> _Column:
        if stratum == ALL:
            return self
        kept = [place for place, one in enumerate(self.strata) if one == stratum]
        return _Column(
            values=self.values[kept],
            strata=tuple(self.strata[place] for place in kept),
            clusters=tuple(self.clusters[place] for place in kept),
        )

    def of_all(self) -> Float64:
        filled: Float64 = np.nan_to_num(self.values, nan=0.0)
        return filled


def compute_figures(
    runs: Sequence[LabelledRun], grades: Sequence[Sequence[Grade]], naive: Mapping[str, Sequence[Grade]]
) -> tuple[Figure, ...]:
    """Compute all figures of a coach.

    Args:
        grades: of each repeat, in the order of the runs.
        naive: grades of each naive answer, in the order of the runs.
    """
    found: list[Figure] = []
    for task in TASKS:
        own = _Column.of(task, runs, grades)
        if not len(own.values):
            continue
        others = {name: _Column.of(task, runs, [one] * len(grades)) for name, one in naive.items()}
        others = {name: one for name, one in others.items() if np.isfinite(one.values).all()}
        strata = list(dict.fromkeys(own.strata))
        for stratum in (*(strata if len(strata) > 1 else ()), ALL):
            by_name = {name: one.where(stratum) for name, one in others.items()}
            found.append(_figure(task, stratum, own.where(stratum), by_name))
        if len(strata) > 1:
            found.append(_mean_figure(task, own, others))
    return tuple(found)


def compute_calibration(
    runs: Sequence[LabelledRun],
    verdicts: Sequence[Sequence[Verdict]],
    answers: Sequence[Attribution],
) -> tuple[Calibration, ...]:
    """Compute how far confidence can be trusted: the score of an action as the chance that it is right, and the
    distance of the accused (or lowest) one to a perfect score as the chance that it is the decisive one."""
    steps = [
        (verdict.score / MAX_SCORE, float(run.qualities[position] > 0), run.cluster)
        for run, given in zip(runs, verdicts, strict=True)
        for position, verdict in enumerate(given)
        if verdict.score is not None and position in run.qualities
    ]
    picks = [
        (said.confidence, float(picked in run.guilt.positions), run.cluster)
        for run, said in zip(runs, answers, strict=True)
        if said.confidence is not None and run.guilt is not None and run.guilt.positions
        for picked in (said.accused if said.accused is not None else said.position,)
    ]
    named = (("an action is right", steps), ("the picked step is the decisive one", picks))
    return tuple(_calibration(what, rows) for what, rows in named if rows)


def share_same(runs: Sequence[LabelledRun], answers: Sequence[Sequence[Attribution]]) -> Interval | None:
    """The share of pairs of repeats that give the same answer about a run: the picked step, and the value of every
    action. None for one repeat."""
    pairs = [(one, other) for place, one in enumerate(answers) for other in answers[place + 1 :]]
    same = [
        float((one.agent, one.position, dict(one.values)) == (other.agent, other.position, dict(other.values)))
        for left, right in pairs
        for one, other in zip(left, right, strict=True)
    ]
    return _share(np.array(same), [run.cluster for run in runs] * len(pairs)) if pairs else None


def _figure(task: str, stratum: str, own: _Column, naive: Mapping[str, _Column]) -> Figure:
    answered = np.isfinite(own.values)
    of_all, clusters = own.of_all(), own.clusters
    kept = [cluster for cluster, is_kept in zip(clusters, answered, strict=True) if is_kept]
    shares = {name: _share(one.values, one.clusters) for name, one in naive.items()}
    best = max(shares, key=lambda name: shares[name].mean, default=None)
    return Figure(
        task=task,
        stratum=stratum,
        entries=len(of_all),
        answers=int(answered.sum()),
        of_all=_share(of_all, clusters),
        of_answered=_share(own.values[answered], kept) if answered.any() else None,
        naive=shares,
        best_naive=best,
        gain=paired_gain(naive[best].values, of_all, clusters) if best else None,
    )


def _mean_figure(task: str, own: _Column, naive: Mapping[str, _Column]) -> Figure:
    """The mean of the strata: each counts as much as another, however many entries it has."""
    answered = np.isfinite(own.values)
    with_answer = {stratum for stratum, is_there in zip(own.strata, answered, strict=True) if is_there}
    is_known = with_answer == set(own.strata)
    shares = {name: _mean_of_strata(one, one.values, np.ones(len(one.values))) for name, one in naive.items()}
    best = max(shares, key=lambda name: shares[name].mean, default=None)
    ones = np.ones(len(own.values))
    return Figure(
        task=task,
        stratum=MEAN,
        entries=len(own.values),
        answers=int(answered.sum()),
        of_all=_mean_of_strata(own, own.of_all(), ones),
        of_answered=_mean_of_strata(own, own.of_all(), answered.astype(np.float64)) if is_known else None,
        naive=shares,
        best_naive=best,
        gain=_mean_of_strata(own, own.of_all() - naive[best].values, ones) if best else None,
    )


def _mean_of_strata(column: _Column, values: Float64, counted: Float64) -> Interval:
    """The mean over strata of the mean of the `values` that are `counted`, one or more in each, with a bootstrap over
    questions."""
    totals: dict[tuple[str, str], Float64] = {}
    for stratum, cluster, value, one in zip(column.strata, column.clusters, values, counted, strict=True):
        totals.setdefault((stratum, cluster), np.zeros(2))
        totals[stratum, cluster] += (value * one, one)
    sums = np.array(list(totals.values()))
    strata = np.array([stratum for stratum, _ in totals])
    parts = [ratio(sums[:, 0] * (strata == one), sums[:, 1] * (strata == one)) for one in dict.fromkeys(column.strata)]

    def mean(weight: Float64) -> Float64:
        return sum((part(weight) for part in parts[1:]), parts[0](weight)) / len(parts)

    statistic: Statistic = mean
    found = estimate(statistic, [cluster for _, cluster in totals])
    assert found is not None  # every stratum has a mean
    return Interval(mean=found.value, low=found.low, high=found.high)


def _share(values: Float64, clusters: Sequence[str]) -> Interval:
    """The mean of shares with its interval: Wilson's where every entry has a question of its own."""
    return share_interval(values, None if len(set(clusters)) == len(clusters) else clusters)


def _calibration(what: str, rows: Sequence[tuple[float, float, str]]) -> Calibration:
    confidence, right = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    bins = tuple(_bins(confidence, right))
    return Calibration(
        of=what,
        entries=len(rows),
        brier=mean_interval((confidence - right) ** 2, [row[2] for row in rows]),
        constant=float(right.mean() * (1 - right.mean())),
        error=sum(abs(said - share) * count for said, share, count in bins) / len(rows),
        bins=bins,
    )


def _bins(confidence: Float64, right: Float64) -> Iterator[tuple[float, float, int]]:
    """Bins of equal width; each contains its upper bound, and the first 0, too."""
    number = np.clip(np.ceil(confidence * _BINS) - 1, 0, _BINS - 1)
    for one in range(_BINS):
        inside = number == one
        if inside.any():
            yield float(confidence[inside].mean()), float(right[inside].mean()), int(inside.sum())
