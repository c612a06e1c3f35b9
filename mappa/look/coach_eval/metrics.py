"""Metrics of coaches from their verdicts on labelled actions.

A missing verdict is excluded and counted, never imputed. All intervals are 95 %, from a bootstrap over tasks (or
clusters of tasks): a coach that errs on a task does so in all its trajectories.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mappa.evaluation.heldout import task_cluster
from mappa.look.arrays import Bool, Float64, Int64
from mappa.look.coach_eval.bootstrap import (
    Estimate,
    Statistic,
    auc,
    deciles,
    estimate,
    paired_difference,
    ratio,
    slope,
    spearman,
)
from mappa.look.coach_eval.labelled_actions import LabelledAction
from mappa_core import Verdict
from mappa_core.transport import Provider

RIGHT_THRESHOLD = 0.5
"""Actions with a label above this are right."""
SAME_SCORE_POINTS = 0.5
"""Maximum difference, in points, of two scores that count as equal."""

Names = NDArray[np.str_]
GainFinding = Literal["better", "worse", "no significant difference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of scores with the truth, over `verdicts` scored verdicts in `trajectories` trajectories. `auc` is the
    chance that a right action scores above a wrong one, `spearman` the rank correlation of score and label; None if all
    labels, or all scores, are equal."""

    verdicts: int
    trajectories: int
    auc: Estimate | None
    spearman: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatNoise:
    """Noise of repeated verdicts on the same action: the standard deviation within an action (points) and the share of
    verdict pairs within SAME_SCORE_POINTS of each other."""

    sd: Estimate | None
    same: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NuisanceEffects:
    """Effects of irrelevant features on the score, in points, among equally good actions of one agent: per doubling of
    the sampled text (in `unit`), per later position in the trajectory, and of a stratum against all others of its
    stratifier. None without variation."""

    unit: Literal["tokens", "characters"]
    length: Estimate | None
    order: Estimate | None
    strata: Mapping[str, Mapping[str, Estimate | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCounts:
    """Verdicts by status, those replayed from a cassette, and the reasons of missing scores, most frequent first;
    reasons that differ by numbers alone count as the first of them."""

    verdicts: int
    scored: int
    abstained: int
    failed: int
    replayed: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingCost:
    """Seconds per verdict, and US dollars per 1,000 actions. `usd_per_1000` is None if the price is unknown or no
    provider is called; it excludes `unpriced` verdicts, of calls without usage."""

    providers: tuple[Provider, ...]
    median_s: float
    p95_s: float
    usd_per_1000: float | None
    unpriced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachMetrics:
    """Metrics of one coach. `noise` is None if every action was judged once."""

    name: str
    overall: Agreement
    by_agent: Mapping[str, Agreement]
    noise: RepeatNoise | None
    effects: NuisanceEffects
    counts: VerdictCounts
    effort: JudgingCost


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleMetrics:
    """Metrics of the mean of all coaches on actions that all of them scored; `left_out` verdicts are missing because
    some did not. `gain` is its AUC minus that of the `best` member, which was selected on the same verdicts."""

    agreement: Agreement
    left_out: int
    best: str | None
    best_auc: Estimate | None
    gain: Estimate | None

    @property
    def finding(self) -> GainFinding | None:
        """Whether the ensemble beats its best member; None if unknown."""
        if self.gain is None or self.gain.low is None or self.gain.high is None:
            return None
        return "better" if self.gain.low > 0 else "worse" if self.gain.high < 0 else "no significant difference"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledColumns:
    """Labelled actions as columns, (n,) each. A `cell` holds equally good actions of one agent."""

    trajectory: Names
    cluster: Names
    """Actions of one task, or of one cluster of tasks, are not independent."""
    agent: Names
    label: Float64
    right: Bool
    cell: Names
    length: Float64
    unit: Literal["tokens", "characters"]
    position: Float64
    strata: Mapping[str, Names]
    """By stratifier; empty for an action without one."""

    @classmethod
    def from_actions(cls, actions: Sequence[LabelledAction]) -> LabelledColumns:
        """Build the columns of one or more actions."""
        steps = [action.scene.step for action in actions]
        label = np.array([action.label for action in actions], dtype=np.float64)
        tokens = [step.completion.tokens for step in steps]
        counted = [len(one) for one in tokens if one is not None]
        in_tokens = len(counted) == len(steps)
        strata = [action.scene.step.strata or {"task": action.scene.task.stratum} for action in actions]
        return cls(
            trajectory=np.array([action.trajectory for action in actions]),
            cluster=np.array([task_cluster(action.scene.task) for action in actions]),
            agent=np.array([step.agent for step in steps]),
            label=label,
            right=label > RIGHT_THRESHOLD,
            cell=np.array([f"{step.agent}/{level}" for step, level in zip(steps, deciles(label), strict=True)]),
            length=np.array(counted if in_tokens else [len(step.completion.text) for step in steps], dtype=np.float64),
            unit="tokens" if in_tokens else "characters",
            position=np.array([step.position for step in steps], dtype=np.float64),
            strata={
                name: np.array([one.get(name, "") for one in strata])
                for name in sorted({name for one in strata for name in one})
            },
        )


def compute_coach_metrics(
    name: str, actions: LabelledColumns, verdicts: Sequence[Sequence[Verdict]], providers: Sequence[Provider]
) -> CoachMetrics:
    """Compute the metrics of one coach: `verdicts` holds each repeat's verdicts in the order of `actions`."""
    scores = score_matrix(verdicts)
    rows = _ScoredRows.from_scores(scores, actions)
    return CoachMetrics(
        name=name,
        overall=rows.agreement(),
        by_agent={
            str(agent): rows.select(actions.agent == agent).agreement() for agent in dict.fromkeys(actions.agent)
        },
        noise=_noise(scores, actions) if len(scores) > 1 else None,
        effects=rows.effects(),
        counts=count_statuses([verdict for repeat in verdicts for verdict in repeat]),
        effort=judging_cost([verdict for repeat in verdicts for verdict in repeat], providers),
    )


def compute_ensemble_metrics(scores: Mapping[str, Float64], actions: LabelledColumns) -> EnsembleMetrics:
    """Compute the metrics of the mean of several coaches, each with its scores (repeats, n)."""
    together = np.mean(list(scores.values()), axis=0)
    rows = _ScoredRows.from_scores(together, actions)
    members = {
        name: _ScoredRows.from_scores(np.where(np.isfinite(together), own, np.nan), actions)
        for name, own in scores.items()
    }
    alone = {name: one.estimate(one.auc) for name, one in members.items()}
    known = {name: one for name, one in alone.items() if one is not None}
    best = max(known, key=lambda name: known[name].value, default=None)
    return EnsembleMetrics(
        agreement=rows.agreement(),
        left_out=int(np.any([np.isfinite(own) for own in scores.values()], axis=0).sum()) - len(rows.points),
        best=best,
        best_auc=known[best] if best else None,
        gain=rows.estimate(paired_difference(rows.auc, members[best].auc)) if best else None,
    )


def score_matrix(verdicts: Sequence[Sequence[Verdict]]) -> Float64:
    """Return the scores of each repeat in points, (repeats, n), NaN if missing."""
    return np.array([[math.nan if one.score is None else one.score for one in repeat] for repeat in verdicts])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ScoredRows:
    """The m scored verdicts of a coach: `points` (m,) on the actions with index `action` (m,)."""

    points: Float64
    action: Int64
    actions: LabelledColumns

    @classmethod
    def from_scores(cls, scores: Float64, actions: LabelledColumns) -> _ScoredRows:
        repeat, action = np.nonzero(np.isfinite(scores))
        return cls(points=scores[repeat, action], action=action, actions=actions)

    def select(self, which: Bool) -> _ScoredRows:
        """Return the rows of the actions of a mask `which` (n,)."""
        kept = which[self.action]
        return _ScoredRows(points=self.points[kept], action=self.action[kept], actions=self.actions)

    def estimate(self, statistic: Statistic) -> Estimate | None:
        return estimate(statistic, self.actions.cluster[self.action])

    @property
    def auc(self) -> Statistic:
        return auc(self.points, self.actions.right[self.action])

    def agreement(self) -> Agreement:
        return Agreement(
            verdicts=len(self.points),
            trajectories=len(np.unique(self.actions.trajectory[self.action])),
            auc=self.estimate(self.auc),
            spearman=self.estimate(spearman(self.points, self.actions.label[self.action])),
        )

    def effects(self) -> NuisanceEffects:
        return NuisanceEffects(
            unit=self.actions.unit,
            length=self._effect(np.log2(np.maximum(self.actions.length, 1.0))),
            order=self._effect(self.actions.position),
            strata={name: self._stratum_effects(strata) for name, strata in self.actions.strata.items()},
        )

    def _stratum_effects(self, strata: Names) -> dict[str, Estimate | None]:
        inside = self.select(strata != "")
        return {str(one): inside._effect(strata == one) for one in np.unique(strata[strata != ""])}

    def _effect(self, x: Any) -> Estimate | None:
        """Estimate points per unit of `x` (n,) among equally good actions of one agent."""
        return self.estimate(slope(self.points, x[self.action], self.actions.cell[self.action]))


def _noise(scores: Float64, actions: LabelledColumns) -> RepeatNoise:
    """Compute the noise of scores (repeats, n); actions with one score are ignored."""
    times = np.isfinite(scores).sum(axis=0)
    centred = scores - np.nansum(scores, axis=0) / np.maximum(times, 1)
    squares = np.nansum(centred**2, axis=0)
    apart = np.abs(scores[:, None] - scores[None, :])[np.triu_indices(len(scores), k=1)]
    variance = ratio(squares, np.maximum(times - 1, 0))
    return RepeatNoise(
        sd=estimate(lambda weight: np.sqrt(variance(weight)), actions.cluster),
        same=estimate(ratio((apart <= SAME_SCORE_POINTS).sum(axis=0), np.isfinite(apart).sum(axis=0)), actions.cluster),
    )


def count_statuses(verdicts: Sequence[Verdict]) -> VerdictCounts:
    """Count verdicts by status and reason."""
    status = Counter(verdict.status for verdict in verdicts)
    missing = [_missing_reason(verdict) for verdict in verdicts if verdict.score is None]
    masked = [re.sub(r"[0-9][0-9.,]*", "#", reason) for reason in missing]
    first = dict(zip(reversed(masked), reversed(missing), strict=True))
    return VerdictCounts(
        verdicts=len(verdicts),
        scored=status["scored"],
        abstained=status["abstained"],
        failed=status["failed"],
        replayed=sum(verdict.replayed and verdict.status != "failed" for verdict in verdicts),
        reasons={first[reason]: count for reason, count in Counter(masked).most_common()},
    )


def _missing_reason(verdict: Verdict) -> str:
    text = (verdict.error or verdict.reasoning).strip().partition("\n")[0]
    return f"{verdict.status}: {text}"


def judging_cost(verdicts: Sequence[Verdict], providers: Sequence[Provider]) -> JudgingCost:
    """Compute the time and cost of verdicts, at least one."""
    seconds = [verdict.seconds for verdict in verdicts]
    priced = [verdict.usage.usd for verdict in verdicts if verdict.usage is not None and verdict.usage.usd is not None]
    known = bool(priced) and all(provider.priced for provider in providers)
    return JudgingCost(
        providers=tuple(providers),
        median_s=float(np.median(seconds)),
        p95_s=float(np.quantile(seconds, 0.95)),
        usd_per_1000=1000 * sum(priced) / len(priced) if known else None,
        unpriced=len(verdicts) - len(priced) if known else 0,
    )
