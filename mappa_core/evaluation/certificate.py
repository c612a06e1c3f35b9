"""What the scores of coaches are worth, from their verdicts on actions whose truth is known.

A missing verdict is left out wherever it would be needed, and counted; it is never made a number. Every interval is of
95 %, from draws of whole trajectories.
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

from mappa_core.evaluation.agreement import (
    Estimate,
    Statistic,
    auc,
    difference,
    estimate,
    ratio,
    slope,
    spearman,
    tenths,
)
from mappa_core.evaluation.labelled import Labelled
from mappa_core.protocols import Provider
from mappa_core.records import Bool, Float64, Int64, Verdict

RIGHT = 0.5
"""An action whose label is above this counts as right."""
SAME = 0.5
"""Points that two scores may differ by and still say the same."""

Names = NDArray[np.str_]
Finding = Literal["better", "worse", "no significant difference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How scores go with the truth, over `verdicts` scored ones on actions of `trajectories` trajectories. `auc` is the
    chance that a right action scores above a wrong one, `spearman` the correlation of ranks of score and label; None
    where all labels, or all scores, are the same."""

    verdicts: int
    trajectories: int
    auc: Estimate | None
    spearman: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What a coach says of the same action when it is asked again: the standard deviation within an action (points) and
    the share of pairs of verdicts that are within SAME points of each other."""

    sd: Estimate | None
    same: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Points by which a score differs between actions of one agent that are equally good, by what should not matter:
    per doubling of the sampled text (in `unit`), per place later in the trajectory, and in a stratum against all others
    of its stratifier. None where nothing varies."""

    unit: Literal["tokens", "characters"]
    length: Estimate | None
    order: Estimate | None
    strata: Mapping[str, Mapping[str, Estimate | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Verdicts by status, those looked up on a cassette (`replayed`), and why scores are missing, most frequent first;
    numbers in the reasons are masked by `#`."""

    verdicts: int
    scored: int
    abstained: int
    failed: int
    replayed: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Seconds until a verdict, and US dollars per 1,000 actions. `usd_per_1000` is None where the price is unknown or
    nobody is asked; `unpriced` verdicts, of calls that did not say what they took, are left out of it."""

    providers: tuple[Provider, ...]
    median_s: float
    p95_s: float
    usd_per_1000: float | None
    unpriced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachCertificate:
    """All that is said of one coach. `noise` is None where every action was judged once."""

    name: str
    overall: Agreement
    by_agent: Mapping[str, Agreement]
    noise: Noise | None
    effects: Effects
    counts: Counts
    effort: Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleCertificate:
    """The mean of all coaches, where all of them scored; `left_out` verdicts of it are missing because some did not.
    `gain` is its AUC less that of its `best` member over the same verdicts, which were also what chose that member."""

    agreement: Agreement
    left_out: int
    best: str | None
    best_auc: Estimate | None
    gain: Estimate | None

    @property
    def finding(self) -> Finding | None:
        """Whether the ensemble beats its best member; None where that cannot be told."""
        if self.gain is None or self.gain.low is None or self.gain.high is None:
            return None
        return "better" if self.gain.low > 0 else "worse" if self.gain.high < 0 else "no significant difference"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Actions:
    """Labelled actions as columns, (n,) each. Actions of one `cell` are of one agent and equally good."""

    trajectory: Names
    agent: Names
    label: Float64
    right: Bool
    cell: Names
    length: Float64
    unit: Literal["tokens", "characters"]
    position: Float64
    strata: Mapping[str, Names]
    """By stratifier; empty text where an action has none."""

    @classmethod
    def of(cls, actions: Sequence[Labelled]) -> Actions:
        """The columns of one or more actions."""
        steps = [action.scene.step for action in actions]
        label = np.array([action.label for action in actions], dtype=np.float64)
        tokens = [step.completion.tokens for step in steps]
        counted = [len(one) for one in tokens if one is not None]
        in_tokens = len(counted) == len(steps)
        strata = [action.scene.step.strata or {"task": action.scene.task.stratum} for action in actions]
        return cls(
            trajectory=np.array([action.trajectory for action in actions]),
            agent=np.array([step.agent for step in steps]),
            label=label,
            right=label > RIGHT,
            cell=np.array([f"{step.agent}/{level}" for step, level in zip(steps, tenths(label), strict=True)]),
            length=np.array(counted if in_tokens else [len(step.completion.text) for step in steps], dtype=np.float64),
            unit="tokens" if in_tokens else "characters",
            position=np.array([step.position for step in steps], dtype=np.float64),
            strata={
                name: np.array([one.get(name, "") for one in strata])
                for name in sorted({name for one in strata for name in one})
            },
        )


def certificate_of(
    name: str, actions: Actions, verdicts: Sequence[Sequence[Verdict]], providers: Sequence[Provider]
) -> CoachCertificate:
    """The certificate of one coach: `verdicts` holds each repeat's verdicts in the order of `actions`."""
    scores = scores_of(verdicts)
    rows = _Rows.of(scores, actions)
    return CoachCertificate(
        name=name,
        overall=rows.agreement(),
        by_agent={str(agent): rows.only(actions.agent == agent).agreement() for agent in dict.fromkeys(actions.agent)},
        noise=_noise(scores, actions) if len(scores) > 1 else None,
        effects=rows.effects(),
        counts=counts_of([verdict for repeat in verdicts for verdict in repeat]),
        effort=_effort([verdict for repeat in verdicts for verdict in repeat], providers),
    )


def ensemble_of(scores: Mapping[str, Float64], actions: Actions) -> EnsembleCertificate:
    """The certificate of the mean of several coaches, each with its scores (repeats, n)."""
    together = np.mean(list(scores.values()), axis=0)
    rows = _Rows.of(together, actions)
    members = {name: _Rows.of(np.where(np.isfinite(together), own, np.nan), actions) for name, own in scores.items()}
    alone = {name: one.estimate(one.auc) for name, one in members.items()}
    known = {name: one for name, one in alone.items() if one is not None}
    best = max(known, key=lambda name: known[name].value, default=None)
    return EnsembleCertificate(
        agreement=rows.agreement(),
        left_out=int(np.any([np.isfinite(own) for own in scores.values()], axis=0).sum()) - len(rows.points),
        best=best,
        best_auc=known[best] if best else None,
        gain=rows.estimate(difference(rows.auc, members[best].auc)) if best else None,
    )


def scores_of(verdicts: Sequence[Sequence[Verdict]]) -> Float64:
    """The scores of each repeat in points, (repeats, n), NaN where one is missing."""
    return np.array([[math.nan if one.score is None else one.score for one in repeat] for repeat in verdicts])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """The m verdicts of a coach that have a score: `points` (m,) on the action number `action` (m,)."""

    points: Float64
    action: Int64
    actions: Actions

    @classmethod
    def of(cls, scores: Float64, actions: Actions) -> _Rows:
        repeat, action = np.nonzero(np.isfinite(scores))
        return cls(points=scores[repeat, action], action=action, actions=actions)

    def only(self, which: Bool) -> _Rows:
        """The rows of some actions; `which` is (n,)."""
        kept = which[self.action]
        return _Rows(points=self.points[kept], action=self.action[kept], actions=self.actions)

    def estimate(self, statistic: Statistic) -> Estimate | None:
        return estimate(statistic, self.actions.trajectory[self.action])

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

    def effects(self) -> Effects:
        return Effects(
            unit=self.actions.unit,
            length=self._effect(np.log2(np.maximum(self.actions.length, 1.0))),
            order=self._effect(self.actions.position),
            strata={name: self._gaps(strata) for name, strata in self.actions.strata.items()},
        )

    def _gaps(self, strata: Names) -> dict[str, Estimate | None]:
        inside = self.only(strata != "")
        return {str(one): inside._effect(strata == one) for one in np.unique(strata[strata != ""])}

    def _effect(self, x: Any) -> Estimate | None:
        """Points per unit of `x` (n,) among actions of one agent that are equally good."""
        return self.estimate(slope(self.points, x[self.action], self.actions.cell[self.action]))


def _noise(scores: Float64, actions: Actions) -> Noise:
    """From scores (repeats, n); an action that was scored once says nothing."""
    times = np.isfinite(scores).sum(axis=0)
    centred = scores - np.nansum(scores, axis=0) / np.maximum(times, 1)
    squares = np.nansum(centred**2, axis=0)
    apart = np.abs(scores[:, None] - scores[None, :])[np.triu_indices(len(scores), k=1)]
    variance = ratio(squares, np.maximum(times - 1, 0))
    return Noise(
        sd=estimate(lambda weight: np.sqrt(variance(weight)), actions.trajectory),
        same=estimate(ratio((apart <= SAME).sum(axis=0), np.isfinite(apart).sum(axis=0)), actions.trajectory),
    )


def counts_of(verdicts: Sequence[Verdict]) -> Counts:
    """Count verdicts by status and reason."""
    status = Counter(verdict.status for verdict in verdicts)
    reasons = Counter(_reason(verdict) for verdict in verdicts if verdict.score is None)
    return Counts(
        verdicts=len(verdicts),
        scored=status["scored"],
        abstained=status["abstained"],
        failed=status["failed"],
        replayed=sum(verdict.replayed for verdict in verdicts),
        reasons=dict(reasons.most_common()),
    )


def _reason(verdict: Verdict) -> str:
    said = (verdict.error or verdict.reasoning).strip().partition("\n")[0]
    return f"{verdict.status}: {re.sub(r'[0-9][0-9.,]*', '#', said)}"


def _effort(verdicts: Sequence[Verdict], providers: Sequence[Provider]) -> Effort:
    seconds = [verdict.seconds for verdict in verdicts]
    priced = [verdict.usage.usd for verdict in verdicts if verdict.usage is not None and verdict.usage.usd is not None]
    known = bool(priced) and all(provider.priced for provider in providers)
    return Effort(
        providers=tuple(providers),
        median_s=float(np.median(seconds)),
        p95_s=float(np.quantile(seconds, 0.95)),
        usd_per_1000=1000 * sum(priced) / len(priced) if known else None,
        unpriced=len(verdicts) - len(priced) if known else 0,
    )
