"""What scores differ by between strata at equal outcome: the statistics of bias and drift, with tasks as clusters.

Shapes: n scored actions of one agent in one iteration, C = CLUSTERS. Gaps are points.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from mappa_core.records import Bool, Float64, Int64, Phase, Step, Trajectory

Strings = NDArray[np.object_]

CLUSTERS = 256
"""A cluster is a task or, beyond some dozens of tasks, a few: however long a run, its sums stay this short."""
CONFIDENCE = 0.95
TINY = 1e-9
"""What is smaller is rounding."""


def cluster_of(task: str) -> int:
    """The cluster of a task, by its id, the same in every process."""
    return int.from_bytes(hashlib.blake2b(task.encode(), digest_size=8).digest()) % CLUSTERS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Actions:
    """The scored actions of one agent in one iteration, as columns."""

    points: Float64  # (n,) raw score
    outcome: Float64  # (n,) of the trajectory, NaN where it is not known
    cluster: Int64  # (n,)
    tokens: Float64  # (n,) sampled, NaN where a provider does not say
    strata: Mapping[str, Strings] = field(default_factory=dict)  # stratifier -> (n,), None where an action has none

    def where(self, chosen: Bool) -> Actions:
        """The actions that are `chosen` (n,)."""
        return Actions(
            points=self.points[chosen],
            outcome=self.outcome[chosen],
            cluster=self.cluster[chosen],
            tokens=self.tokens[chosen],
            strata={stratifier: names[chosen] for stratifier, names in self.strata.items()},
        )

    def lack(self, stratifier: str) -> Bool:
        """Which actions (n,) have no stratum of `stratifier`."""
        return np.array([stratum is None for stratum in self.strata[stratifier]], dtype=np.bool_)


def judged_actions(
    trajectories: Sequence[Trajectory], *, strata: Sequence[str], metric: str
) -> dict[tuple[Phase, str], Actions]:
    """The scored actions of every agent by phase of their verdicts, with their scores before any correction.

    Of several verdicts of one phase the one added last counts, as in the reward. `metric` names the outcome.
    """
    rows: dict[tuple[Phase, str], list[tuple[Step, Trajectory, float]]] = {}
    for trajectory in trajectories:
        last = {(verdict.step, verdict.phase): verdict for verdict in trajectory.verdicts}
        for step in trajectory.steps:
            for phase in get_args(Phase):
                verdict = last.get((step.id, phase))
                if verdict is not None and verdict.score is not None:
                    raw = verdict.score if verdict.raw_score is None else verdict.raw_score
                    rows.setdefault((phase, step.agent), []).append((step, trajectory, raw))
    return {key: _columns(found, strata, metric) for key, found in rows.items()}


def _columns(rows: Sequence[tuple[Step, Trajectory, float]], strata: Sequence[str], metric: str) -> Actions:
    return Actions(
        points=np.array([points for _, _, points in rows]),
        outcome=np.array([trajectory.outcome.get(metric, math.nan) for _, trajectory, _ in rows]),
        cluster=np.array([cluster_of(trajectory.task.id) for _, trajectory, _ in rows], dtype=np.int64),
        tokens=np.array([_tokens(step) for step, _, _ in rows]),
        strata={name: np.array([step.strata.get(name) for step, _, _ in rows], dtype=object) for name in strata},
    )


def _tokens(step: Step) -> float:
    completion = step.completion
    if completion.tokens is not None:
        return float(len(completion.tokens))
    said = None if completion.usage is None else completion.usage.completion_tokens
    return math.nan if said is None else float(said)


def explained_by(outcome: Float64, *others: NDArray[Any]) -> Float64:
    """Orthonormal columns (n, r) that span what the iteration, the outcome and `others` (n,) explain: a mean of the
    actions whose outcome is known, a slope on it, and a mean of the actions whose outcome is not."""
    known = np.isfinite(outcome)
    slope = np.zeros(len(outcome))
    if known.any():
        slope[known] = outcome[known] - outcome[known].mean()
        slope /= max(np.abs(slope).max(), np.finfo(np.float64).tiny)
    columns = np.column_stack([known, slope, ~known, *others]).astype(np.float64)
    left, singular, _ = np.linalg.svd(columns, full_matrices=False)
    basis: Float64 = left[:, singular > TINY * math.sqrt(len(outcome))]
    return basis


def beyond(values: Float64, basis: Float64) -> Float64:
    """What `basis` leaves unexplained of `values`, (n,) or (n, k)."""
    rest: Float64 = values - basis @ (basis.T @ values)
    return rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its standard error and the degrees of freedom that the error has."""

    value: float
    error: float
    freedom: float

    @property
    def information(self) -> float:
        """The inverse of the squared error."""
        return self.error**-2

    @property
    def z(self) -> float:
        """The normal deviate that is as improbable as value / error is by Student's distribution."""
        from scipy.special import ndtri, stdtr

        return float(-ndtri(stdtr(self.freedom, -abs(self.value) / self.error)))

    @property
    def reach(self) -> float:
        """Half the width of the 95 % interval."""
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, (1 + CONFIDENCE) / 2)) * self.error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contrast:
    """The gap between one stratum and the rest over all iterations so far, and its growth, as sums by cluster.

    The model is `points = mean of the iteration given the outcome + gap * inside + growth * inside * clock + task +
    noise`. In every iteration what it and the outcome explain is taken out of points and of membership, which leaves a
    regression of the one on the other (Frisch and Waugh 1933); the errors are robust to whatever the actions on a task
    have in common, in one iteration and over all. A cluster's part in an iteration is divided by `sqrt(1 - leverage)`,
    as in HC2, for what taking out has taken from its noise.

    `sums` columns are x y, x y c, x x, x x c, x x c c for membership x, points y and clock c.
    """

    sums: Float64 = field(default_factory=lambda: np.zeros((CLUSTERS, 5)))  # (C, 5)
    inside: int = 0
    outside: int = 0

    def with_actions(self, actions: Actions, inside: Bool, clock: float) -> Contrast:
        """The contrast after an iteration: `inside` (n,) tells which actions are in the stratum."""
        basis = explained_by(actions.outcome)
        x = beyond(inside.astype(np.float64), basis)
        y = beyond(actions.points, basis)
        squares = np.bincount(actions.cluster, x * x, CLUSTERS)
        explained = sum(np.bincount(actions.cluster, x * column, CLUSTERS) ** 2 for column in basis.T)
        leverage = np.divide(explained, squares, out=np.zeros(CLUSTERS), where=squares > 0)
        weight = 1 / np.sqrt(np.maximum(1 - leverage, TINY))
        xy, xx = weight * np.bincount(actions.cluster, x * y, CLUSTERS), weight * squares
        new = np.column_stack([xy, xy * clock, xx, xx * clock, xx * clock**2])
        members = int(inside.sum())
        return replace(
            self,
            sums=self.sums + new,
            inside=self.inside + members,
            outside=self.outside + len(inside) - members,
        )

    def state_dict(self) -> dict[str, Any]:
        """The sums as JSON values, of the clusters that have any."""
        found = np.flatnonzero(self.sums.any(axis=1))
        sums = {str(cluster): self.sums[cluster].tolist() for cluster in found}
        return {"sums": sums, "inside": self.inside, "outside": self.outside}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Contrast:
        """What `state_dict` gave."""
        sums = np.zeros((CLUSTERS, 5))
        for cluster, row in state["sums"].items():
            sums[int(cluster)] = row
        return cls(sums=sums, inside=state["inside"], outside=state["outside"])

    @property
    def clock(self) -> float:
        """When, on average, what is known of the gap was learned."""
        _, _, xx, xxc, _ = self.sums.sum(axis=0)
        return float(xxc / xx)

    @property
    def gap(self) -> Estimate | None:
        """The gap, averaged over iterations; None where there is nothing to tell it from."""
        xy, _, xx, _, _ = self.sums.T
        return _estimate(xy, xx)

    @property
    def growth(self) -> Estimate | None:
        """Points by which the gap grows in one tick of the clock; None where there is nothing to tell it from."""
        gap = self.gap
        if gap is None:
            return None
        xy, xyc, xx, xxc, xxcc = self.sums.T
        middle = self.clock
        return _estimate(xyc - middle * xy - gap.value * (xxc - middle * xx), xxcc - 2 * middle * xxc + middle**2 * xx)


def _estimate(products: Float64, squares: Float64) -> Estimate | None:
    """A slope from its sums by cluster, (C,): sum of `products` over sum of `squares`. None where there is but one
    cluster to tell it from.

    The variance is the sum over clusters of their squared residual products, each divided by one less its share of the
    squares (HC2). The degrees of freedom are the effective number of clusters (Carter, Schnepel and Steigerwald 2017,
    for errors that are alike), less one. For two groups of like clusters both are close to Welch's.
    """
    total = float(squares.sum())
    if total < TINY:
        return None
    value, share = float(products.sum()) / total, squares / total
    effective = 1 / float(share @ share)
    if effective < 1 + TINY:
        return None
    residual = products - value * squares
    error = math.sqrt((residual**2 / (1 - share)).sum()) / total
    return Estimate(value=value, error=max(error, TINY), freedom=effective - 1)
