"""What a jury is worth on questions that it was not fitted on, and how many labelled runs that takes.

Questions are dealt to folds; for each fold everything is done anew on the others: members chosen, the anchor weighed,
the ridge chosen, the regression fitted. So every action is judged by a jury that saw no label of its question. The
figures are means over strata, as AgentProcessBench publishes them, and the best member is the best of all by all
labels, which nobody knows beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mappa.judging import Estimate, LabelledRun, Statistic, estimate, paired_difference, ratio
from mappa.statistics import share_interval
from mappa_calibration.actions import Bool, Float64, Int64
from mappa_calibration.jury.anchors import Anchors
from mappa_calibration.jury.fitting import fit_jury
from mappa_core import ConfigError

FOLDS = 5
SIZES = (20, 50, 100)
"""Numbers of labelled runs that the curve is drawn at."""
_NO_ERROR = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A share of the jury and of its best member, 0-1, and the paired difference with its interval over questions."""

    jury: Estimate
    best: str
    best_share: Estimate
    gain: Estimate

    @property
    def better(self) -> bool:
        return self.gain.low is not None and self.gain.low > 0

    @property
    def worse(self) -> bool:
        return self.gain.high is not None and self.gain.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Gains of a jury that was fitted on `runs` labelled runs (None: on all of the other folds), and its `agreement`:
    the share of pairs of runs of one question, one free of errors and one not, of which it scores the first higher."""

    runs: int | None
    steps: Gain
    first_error: Gain
    agreement: Estimate | None


def check_labels(runs: Sequence[LabelledRun], share: float = 1.0) -> None:
    """Check that a jury can be learned from a `share` of the questions of labelled runs, and validated on all, before
    members are asked.

    Raises:
        ConfigError: there are fewer questions than folds, or no two kinds of labels, also without one of the folds or
            among the share.
    """
    kinds: dict[str, set[float]] = {}
    for run in runs:
        kinds.setdefault(run.task.question_hash, set()).update(run.qualities.values())
    # In the order by which questions are numbered, and thereby dealt to folds.
    by_question = [kinds[name] for name in sorted(kinds)]
    if len(by_question) < FOLDS:
        raise ConfigError(f"{len(by_question)} labelled questions: {FOLDS} are needed to hold a jury against some")
    if len(set().union(*by_question)) < 2:
        raise ConfigError("a calibration is learned from actions that are labelled right and wrong: here is one kind")
    for fold in range(FOLDS):
        others = (own for place, own in enumerate(by_question) if place % FOLDS != fold)
        if len(set().union(*others)) < 2:
            raise ConfigError(
                "a jury is validated on a fifth of the questions that it was not fitted on, and without one of these "
                "fifths all actions are labelled alike: label more questions in which some are right and some wrong"
            )
    used = by_question[: count_used(len(by_question), share)]
    if len(set().union(*used)) < 2:
        raise ConfigError(
            f"--share {share:g}: all actions of these {len(used)} questions are labelled alike; take a larger share"
        )


def count_used(questions: int, share: float) -> int:
    """The number of questions that a jury is fitted on: the first ones by hash, which are as good as drawn."""
    return max(1, round(share * questions))


def validate_jury(anchors: Anchors, *, runs: int | None = None, draw: int = 0, keep: int | None = None) -> Validation:
    """Fit a jury on all folds but one, in turn, and hold it against the labels of that one.

    Args:
        runs: fit on so many runs of the other folds, sampled by `draw`.
        keep: use only so many of the members, those with the most right labels in the other folds.
    """
    random = np.random.default_rng([draw, runs or 0])
    said, points = np.full((2, len(anchors.labels)), np.nan)
    for fold in range(FOLDS):
        held_out = anchors.question % FOLDS == fold
        training = ~held_out if runs is None else _sample_runs(anchors, ~held_out, runs, random)
        chosen = anchors if keep is None else anchors.select_members(best_members(anchors, training, keep))
        fit = fit_jury(chosen, training)
        chances = fit.probabilities(chosen, held_out)
        said[held_out], points[held_out] = fit.labels[chances.argmax(axis=1)], chances @ fit.labels
    return Validation(
        runs=runs,
        steps=_gain(_StepShares(anchors), said, anchors),
        first_error=_gain(_FirstErrorShares(anchors), said, anchors),
        agreement=agree_with_labels(anchors, points),
    )


def agree_with_labels(anchors: Anchors, points: Float64) -> Estimate | None:
    """The share of pairs of runs of one question, one without an action that is labelled wrong and one with, of which
    the first has the higher mean of `points` (n,), a tie counting half. None without such a pair."""
    runs = np.split(np.flatnonzero(anchors.labelled), np.flatnonzero(np.diff(anchors.run[anchors.labelled])) + 1)
    by_question: dict[int, list[tuple[bool, float]]] = {}
    for rows in runs:
        right = bool((anchors.labels[rows] >= 0).all())
        by_question.setdefault(int(anchors.question[rows[0]]), []).append((right, float(points[rows].mean())))
    ordered = []
    for played in by_question.values():
        gaps = [better - worse for ok, better in played if ok for bad, worse in played if not bad]
        if gaps:
            ordered.append(float(np.mean((np.sign(gaps) + 1) / 2)))
    if not ordered:
        return None
    found = share_interval(ordered)  # Where all pairs are in order, draws of them would leave no doubt.
    return Estimate(value=found.mean, low=found.low, high=found.high)


def learning_curve(anchors: Anchors, *, draws: int, keep: int | None = None) -> list[list[Validation]]:
    """Validations by number of labelled runs, `draws` of each."""
    fold = anchors.question % FOLDS
    most = min(len(np.unique(anchors.run[anchors.labelled & (fold != held_out)])) for held_out in range(FOLDS))
    return [
        [validate_jury(anchors, runs=size, draw=draw, keep=keep) for draw in range(draws)]
        for size in SIZES
        if size <= most
    ]


def best_members(anchors: Anchors, rows: Bool, count: int) -> list[int]:
    """The places of the `count` members with the most right labels among `rows` (n,), in their order."""
    right = (anchors.votes[rows & anchors.labelled] == anchors.labels[rows & anchors.labelled, None]).mean(axis=0)
    return sorted(int(place) for place in np.argsort(-right, kind="stable")[:count])


def _sample_runs(anchors: Anchors, rows: Bool, count: int, random: np.random.Generator) -> Bool:
    """Sample runs, again until two labels are among theirs."""
    runs = np.unique(anchors.run[rows & anchors.labelled])
    while True:
        sampled: Bool = np.isin(anchors.run, random.choice(runs, count, replace=False))
        if len(np.unique(anchors.labels[sampled & anchors.labelled])) > 1:
            return sampled


class _StepShares:
    """Labelled actions whose label was said; a missing one was not."""

    def __init__(self, anchors: Anchors) -> None:
        self._labels, self._rows = anchors.labels[anchors.labelled], anchors.labelled
        self.question, self.stratum = anchors.question[self._rows], anchors.stratum[self._rows]

    def right(self, said: Float64) -> Bool:
        right: Bool = said[self._rows] == self._labels
        return right


class _FirstErrorShares:
    """Runs whose first error was found, or that have none where none was found."""

    def __init__(self, anchors: Anchors) -> None:
        rows = np.flatnonzero(anchors.labelled)
        self._runs = np.split(rows, np.flatnonzero(np.diff(anchors.run[rows])) + 1)
        first = np.array([rows[0] for rows in self._runs])
        self.question, self.stratum = anchors.question[first], anchors.stratum[first]
        self._errors = self._find(anchors.labels)

    def right(self, said: Float64) -> Bool:
        right: Bool = self._find(said) == self._errors
        return right

    def _find(self, labels: Float64) -> Int64:
        return np.array([next((row for row in rows if labels[row] < 0), _NO_ERROR) for rows in self._runs])


def _gain(shares: _StepShares | _FirstErrorShares, said: Float64, anchors: Anchors) -> Gain:
    members = [shares.right(votes) for votes in anchors.votes.T]
    alone = [_mean_of_strata(right, shares.stratum) for right in members]
    best = int(np.argmax([float(mean(np.ones((1, len(shares.question))))[0]) for mean in alone]))
    jury = _mean_of_strata(shares.right(said), shares.stratum)
    return Gain(
        jury=_estimate(jury, shares.question),
        best=anchors.members[best],
        best_share=_estimate(alone[best], shares.question),
        gain=_estimate(paired_difference(jury, alone[best]), shares.question),
    )


def _mean_of_strata(right: Bool, stratum: Int64) -> Statistic:
    parts = [ratio(right & (stratum == name), stratum == name) for name in np.unique(stratum)]
    return lambda weight: np.mean([part(weight) for part in parts], axis=0)


def _estimate(statistic: Statistic, question: Int64) -> Estimate:
    found = estimate(statistic, question)
    assert found is not None
    return found


def runs_needed(curve: Sequence[Sequence[Validation]]) -> int | None:
    """The smallest number of labelled runs at which every draw is better than the best member; None if none is."""
    enough = [row[0].runs for row in curve if all(measured.steps.better for measured in row)]
    return enough[0] if enough else None
