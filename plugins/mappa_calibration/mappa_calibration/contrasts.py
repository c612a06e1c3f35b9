"""Score differences between strata at equal outcome, with tasks as clusters: the statistics of bias and drift. Shapes:
n scored actions of one agent in one iteration, C = CLUSTER_COUNT. Gaps are points."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from mappa_core import Step, Trajectory
from mappa_core.runs import Phase

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

CLUSTER_COUNT = 256  # Tasks are hashed into clusters, which bounds the size of the sums however long a run is.
_CONFIDENCE_LEVEL = 0.95
_TINY = 1e-9  # Smaller values are rounding errors.


def task_cluster(task: str) -> int:
    """The same in every process."""
    return int.from_bytes(hashlib.blake2b(task.encode(), digest_size=8).digest()) % CLUSTER_COUNT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActionColumns:
    """The scored actions of one agent in one iteration, as columns."""

    points: Float64  # (n,) raw score
    outcome: Float64  # (n,) of the trajectory, NaN if unknown
    cluster: Int64  # (n,)
    tokens: Float64  # (n,) sampled, NaN if the provider does not report them
    strata: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)  # stratifier -> (n,), None without one

    def select(self, mask: Bool) -> ActionColumns:
        """Return the actions of a `mask` (n,)."""
        columns = {name: getattr(self, name)[mask] for name in ("points", "outcome", "cluster", "tokens")}
        return ActionColumns(**columns, strata={name: strata[mask] for name, strata in self.strata.items()})

    def missing_stratum(self, stratifier: str) -> Bool:
        """Return the mask (n,) of the actions without a stratum of `stratifier`."""
        return np.array([stratum is None for stratum in self.strata[stratifier]], dtype=np.bool_)


def scored_action_columns(
    trajectories: Sequence[Trajectory], *, strata: Sequence[str], metric: str
) -> dict[tuple[Phase, str], ActionColumns]:
    """Collect the scored actions by phase of their verdicts and agent, with scores before any correction. Of several
    verdicts of one phase the last one counts, as in the reward. `metric` names the outcome."""
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


def _columns(rows: Sequence[tuple[Step, Trajectory, float]], strata: Sequence[str], metric: str) -> ActionColumns:
    return ActionColumns(
        points=np.array([points for _, _, points in rows]),
        outcome=np.array([trajectory.outcome.get(metric, math.nan) for _, trajectory, _ in rows]),
        cluster=np.array([task_cluster(trajectory.task.id) for _, trajectory, _ in rows], dtype=np.int64),
        tokens=np.array([_tokens(step) for step, _, _ in rows]),
        strata={name: np.array([step.strata.get(name) for step, _, _ in rows], dtype=object) for name in strata},
    )


def _tokens(step: Step) -> float:
    completion = step.completion
    if completion.tokens is not None:
        return float(len(completion.tokens))
    count = None if completion.usage is None else completion.usage.completion_tokens
    return math.nan if count is None else float(count)


def projection_basis(outcome: Float64, *others: NDArray[Any]) -> Float64:
    """Return orthonormal columns (n, r) that span the nuisance regressors: an intercept and a slope on the outcome for
    actions with a known outcome, an intercept for the other actions, and `others` (n,)."""
    known = np.isfinite(outcome)
    slope = np.zeros(len(outcome))
    if known.any():
        slope[known] = outcome[known] - outcome[known].mean()
        slope /= max(np.abs(slope).max(), np.finfo(np.float64).tiny)
    columns = np.column_stack([known, slope, ~known, *others]).astype(np.float64)
    left, singular, _ = np.linalg.svd(columns, full_matrices=False)
    basis: Float64 = left[:, singular > _TINY * math.sqrt(len(outcome))]
    return basis


def residual(values: Float64, basis: Float64) -> Float64:
    """Return the residuals of `values`, (n,) or (n, k), after projection on `basis`."""
    rest: Float64 = values - basis @ (basis.T @ values)
    return rest


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeEstimate:
    """An estimate with its standard error and the degrees of freedom of that error."""

    value: float
    standard_error: float
    degrees_of_freedom: float

    @property
    def information(self) -> float:
        return self.standard_error**-2

    @property
    def z(self) -> float:
        """The normal deviate as probable as value / standard error under Student's distribution."""
        from scipy.special import ndtri, stdtr

        return float(-ndtri(stdtr(self.degrees_of_freedom, -abs(self.value) / self.standard_error)))

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval."""
        from scipy.special import stdtrit

        return float(stdtrit(self.degrees_of_freedom, (1 + _CONFIDENCE_LEVEL) / 2)) * self.standard_error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contrast:
    """The gap between one stratum and the rest over all iterations so far, and its growth, as sums by cluster.

    The model is `points = mean of the iteration given the outcome + gap * inside + growth * inside * clock + task +
    noise`. In every iteration points and membership are residualized on the iteration and the outcome, which leaves a
    regression of the one residual on the other (Frisch and Waugh 1933); the standard errors are cluster-robust, by
    task. A cluster's part in an iteration is divided by `sqrt(1 - leverage)`, as in HC2, to correct for the variance
    that residualizing removes. The columns of `sums` are x y, x y c, x x, x x c, x x c c for membership x, points y and
    clock c.
    """

    sums: Float64 = field(default_factory=lambda: np.zeros((CLUSTER_COUNT, 5)))  # (C, 5)
    inside: int = 0
    outside: int = 0

    def with_actions(self, actions: ActionColumns, inside: Bool, clock: float) -> Contrast:
        """Return the contrast after another iteration; `inside` (n,) is the mask of the actions in the stratum."""
        basis = projection_basis(actions.outcome)
        x = residual(inside.astype(np.float64), basis)
        y = residual(actions.points, basis)
        squares = np.bincount(actions.cluster, x * x, CLUSTER_COUNT)
        explained = sum(np.bincount(actions.cluster, x * column, CLUSTER_COUNT) ** 2 for column in basis.T)
        leverage = np.divide(explained, squares, out=np.zeros(CLUSTER_COUNT), where=squares > 0)
        weight = 1 / np.sqrt(np.maximum(1 - leverage, _TINY))
        xy, xx = weight * np.bincount(actions.cluster, x * y, CLUSTER_COUNT), weight * squares
        new = np.column_stack([xy, xy * clock, xx, xx * clock, xx * clock**2])
        members = int(inside.sum())
        outside = self.outside + len(inside) - members
        return replace(self, sums=self.sums + new, inside=self.inside + members, outside=outside)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of non-empty clusters as JSON values."""
        found = np.flatnonzero(self.sums.any(axis=1))
        sums = {str(cluster): self.sums[cluster].tolist() for cluster in found}
        return {"sums": sums, "inside": self.inside, "outside": self.outside}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Contrast:
        sums = np.zeros((CLUSTER_COUNT, 5))
        for cluster, row in state["sums"].items():
            sums[int(cluster)] = row
        return cls(sums=sums, inside=state["inside"], outside=state["outside"])

    @property
    def clock(self) -> float:
        """The weighted mean time of the evidence on the gap."""
        _, _, xx, xxc, _ = self.sums.sum(axis=0)
        return float(xxc / xx)

    @property
    def gap(self) -> SlopeEstimate | None:
        """The gap, averaged over iterations; None if there is too little data."""
        xy, _, xx, _, _ = self.sums.T
        return _estimate(xy, xx)

    @property
    def growth(self) -> SlopeEstimate | None:
        """Growth of the gap in points per tick of the clock; None if there is too little data."""
        gap = self.gap
        if gap is None:
            return None
        xy, xyc, xx, xxc, xxcc = self.sums.T
        middle = self.clock
        return _estimate(xyc - middle * xy - gap.value * (xxc - middle * xx), xxcc - 2 * middle * xxc + middle**2 * xx)


def _estimate(products: Float64, squares: Float64) -> SlopeEstimate | None:
    """Estimate a slope from sums by cluster, (C,): sum of `products` over sum of `squares`. None if there is only one
    cluster. The variance is the sum over clusters of their squared residual products, each divided by one minus its
    share of the squares (HC2). The degrees of freedom are the effective number of clusters (Carter, Schnepel and
    Steigerwald 2017, for homoskedastic errors), minus one."""
    total = float(squares.sum())
    if total < _TINY:
        return None
    value, share = float(products.sum()) / total, squares / total
    effective = 1 / float(share @ share)
    if effective < 1 + _TINY:
        return None
    residual = products - value * squares
    standard_error = math.sqrt((residual**2 / (1 - share)).sum()) / total
    return SlopeEstimate(value=value, standard_error=max(standard_error, _TINY), degrees_of_freedom=effective - 1)
