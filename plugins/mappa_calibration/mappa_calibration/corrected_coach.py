"""Bias correction: subtracts a coach's preferences among strata at equal outcome from its scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mappa_calibration.contrasts import ActionColumns, Float64, projection_basis, residual, scored_action_columns
from mappa_calibration.drift import DriftMonitor
from mappa_calibration.options import BiasOptions
from mappa_core import MAX_SCORE, Coach, DelegatingCoach, Scene, Trajectory, Verdict
from mappa_core.runs import AlarmKind, DriftReport, Phase

StratumName = tuple[str, str]  # (stratifier, stratum)
_SUMS = ("products", "moments", "actions")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OffsetModel:
    """Regression of one agent's raw scores on S strata, of all stratifiers together, as sufficient statistics. The
    model: `score = mean of the iteration + slope * outcome + offset of each stratum of the action + noise`. In every
    iteration scores and membership are residualized on the iteration and the outcome; sums of their products decay."""

    names: tuple[StratumName, ...] = ()
    products: Float64 = field(default_factory=lambda: np.zeros((0, 0)))  # (S, S) membership by membership
    moments: Float64 = field(default_factory=lambda: np.zeros(0))  # (S,) membership by score
    actions: Float64 = field(default_factory=lambda: np.zeros(0))  # (S,) how many there were

    def with_decay(self, decay: float) -> OffsetModel:
        """Return the model with its statistics multiplied by `decay`."""
        return replace(self, **{key: decay * getattr(self, key) for key in _SUMS})

    def with_actions(self, actions: ActionColumns) -> OffsetModel:
        """Return the model after the `actions` of another iteration. Those with unknown outcome are left out: without
        it a hard stratum cannot be distinguished from one that the coach scores too low. An action without a stratum of
        a stratifier has no effect on that stratifier."""
        known = actions.select(np.isfinite(actions.outcome))
        found = {
            (name, str(stratum)) for name, strata in known.strata.items() for stratum in strata if stratum is not None
        }
        if not found:
            return self
        names = (*self.names, *sorted(found - set(self.names)))
        more = (0, len(names) - len(self.names))
        membership = np.column_stack([known.strata[one] == stratum for one, stratum in names]).astype(np.float64)
        basis = projection_basis(known.outcome, *(known.missing_stratum(stratifier) for stratifier in known.strata))
        rest = residual(membership, basis)
        return OffsetModel(
            names=names,
            products=np.pad(self.products, (more, more)) + rest.T @ rest,
            moments=np.pad(self.moments, more) + rest.T @ residual(known.points, basis),
            actions=np.pad(self.actions, more) + membership.sum(axis=0),
        )

    def fit(self, shrink: float) -> dict[StratumName, float]:
        """Fit the points by which the scores of every stratum are too high; weighted by actions, the offsets of a
        stratifier average to zero. The fit is joint, so that strata that often occur together are not corrected twice.
        `shrink` is the ridge strength in pseudo-actions: the fit is Henderson's best linear unbiased prediction of
        random offsets if the noise has `shrink` times their variance."""
        ridge = shrink * np.eye(len(self.names))
        offsets, *_ = np.linalg.lstsq(self.products + ridge, self.moments, rcond=None)
        fit = dict(zip(self.names, offsets.tolist(), strict=True))
        weight = dict(zip(self.names, self.actions.tolist(), strict=True))
        means = {}
        for stratifier in {name[0] for name in self.names}:
            own = [name for name in self.names if name[0] == stratifier]
            means[stratifier] = sum(weight[one] * fit[one] for one in own) / sum(weight[one] for one in own)
        return {name: fit[name] - means[name[0]] for name in self.names}

    def state_dict(self) -> dict[str, Any]:
        return {"names": [list(name) for name in self.names], **{key: getattr(self, key).tolist() for key in _SUMS}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> OffsetModel:
        names = tuple((stratifier, stratum) for stratifier, stratum in state["names"])
        sums = {key: np.array(state[key], dtype=np.float64) for key in _SUMS}
        return cls(names=names, **{**sums, "products": sums["products"].reshape(len(names), len(names))})


class BiasCorrectedCoach(DelegatingCoach):
    """Wraps a coach and, while `active`, subtracts its preferences among strata from its scores. The preferences are
    learned from the raw scores once an iteration, active or not, for every agent, phase and stratifier of the options.
    Only score differences that the outcome does not explain count, so that right actions keep their scores and hard
    tasks stay hard. A score moves by at most `options.max_points`; `raw_score` keeps the coach's own."""

    def __init__(self, coach: Coach, options: BiasOptions) -> None:
        super().__init__({"coach": coach})
        self._coach = coach
        self._options = options
        self._active = options.correct
        self._monitor = DriftMonitor(options.alarms, options.strata, metric=options.metric)
        self._offsets: dict[tuple[Phase, str], OffsetModel] = {}
        self._fitted: Mapping[tuple[Phase, str], Mapping[StratumName, float]] = {}

    async def score(self, scene: Scene) -> Verdict:
        return self._correct(scene, await self._coach.score(scene))

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        verdicts = await self._coach.review(scenes)
        return [self._correct(scene, verdict) for scene, verdict in zip(scenes, verdicts, strict=True)]

    def _correct(self, scene: Scene, verdict: Verdict) -> Verdict:
        phase: Phase = "live" if scene.later is None else "after"
        bias = self.bias(phase, scene.step.agent, scene.step.strata)
        if not self._active or verdict.score is None or bias == 0:
            return verdict
        raw = verdict.score if verdict.raw_score is None else verdict.raw_score
        return replace(verdict, score=min(max(raw - bias, 0.0), MAX_SCORE), raw_score=raw)

    def bias(self, phase: Phase, agent: str, strata: Mapping[str, str]) -> float:
        """Return the points by which a score of such an action is too high: the sum of its strata's offsets, 0 for an
        unknown stratum, clipped to `options.max_points`."""
        fit = self._fitted.get((phase, agent), {})
        total = sum(fit[name] for name in strata.items() if name in fit)
        return min(max(total, -self._options.max_points), self._options.max_points)

    def learn(self, trajectories: Sequence[Trajectory]) -> DriftReport:
        inner = super().learn(trajectories)
        columns = scored_action_columns(trajectories, strata=self._options.strata, metric=self._options.metric)
        old = {key: offsets.with_decay(self._options.decay) for key, offsets in self._offsets.items()}
        new = {key: old.get(key, OffsetModel()).with_actions(actions) for key, actions in columns.items()}
        self._offsets = old | new
        self._fit()
        found = self._monitor.observe(trajectories)
        kinds = {alarm.kind for alarm in found.alarms}
        self._correct_if_configured(kinds)
        return DriftReport.merge([inner, replace(found, pause=self._pause(found, kinds))])

    def _correct_if_configured(self, kinds: Collection[AlarmKind]) -> None:
        self._active = self._active or "correct" in self._responses(kinds)

    def _responses(self, kinds: Collection[AlarmKind]) -> set[str]:
        return {getattr(self._options.alarms, kind) for kind in kinds}

    def _pause(self, found: DriftReport, kinds: Collection[AlarmKind]) -> str | None:
        if "pause" not in self._responses(kinds):
            return None
        alarms = "\n".join(f"  {alarm}" for alarm in found.alarms)
        return (
            f"the coach drifts:\n{alarms}\nAcknowledge what is wanted (options.alarms.acknowledged of the coach "
            "bias_corrected) or correct it (options.alarms.level=correct), and go on."
        )

    def _fit(self) -> None:
        self._fitted = {key: offsets.fit(self._options.shrink) for key, offsets in self._offsets.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "active": self._active,
            "offsets": [[*key, offsets.state_dict()] for key, offsets in self._offsets.items()],
            "monitor": self._monitor.state_dict(),
            **super().state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._active = self._active or state["active"]
        self._offsets = {(phase, agent): OffsetModel.from_state(found) for phase, agent, found in state["offsets"]}
        self._fit()
        self._monitor.load_state_dict(state["monitor"])
        self._correct_if_configured(self._monitor.raised_kinds)
