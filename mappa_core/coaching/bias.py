"""Correction of a coach's preferences: what it gives some strata more of at equal outcome is taken off again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mappa_core.coaching.gaps import Actions, beyond, explained_by, judged_actions
from mappa_core.config.schema import BiasSection
from mappa_core.protocols import Bench, Cassette, Coach, Provider
from mappa_core.records import MAX_SCORE, Float64, Phase, Scene, Trajectory, Verdict

Name = tuple[str, str]
"""A stratifier and one of its strata."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offsets:
    """What raw scores of one agent's actions say of S strata, of all stratifiers together.

    The model is additive: `score = mean of the iteration + slope * outcome + offset of each stratum of the action +
    noise`. In every iteration what it and the outcome explain is taken out of scores and of membership; the sums of
    their products decay from one iteration to the next.
    """

    names: tuple[Name, ...] = ()
    products: Float64 = field(default_factory=lambda: np.zeros((0, 0)))  # (S, S) membership by membership
    moments: Float64 = field(default_factory=lambda: np.zeros(0))  # (S,) membership by score
    actions: Float64 = field(default_factory=lambda: np.zeros(0))  # (S,) how many there were

    def decayed(self, decay: float) -> Offsets:
        """The same, counting less."""
        return replace(self, products=decay * self.products, moments=decay * self.moments, actions=decay * self.actions)

    def with_actions(self, actions: Actions) -> Offsets:
        """The offsets after `actions` of one iteration.

        Actions whose outcome is not known are left out: among them a hard stratum cannot be told from one that the
        coach dislikes. One that has no stratum of a stratifier tells nothing of that stratifier.
        """
        known = actions.where(np.isfinite(actions.outcome))
        found = {
            (stratifier, str(stratum))
            for stratifier, strata in known.strata.items()
            for stratum in strata
            if stratum is not None
        }
        if not found:
            return self
        wider = self._with_names(sorted(found - set(self.names)))
        member = np.column_stack([known.strata[one] == stratum for one, stratum in wider.names]).astype(np.float64)
        basis = explained_by(known.outcome, *(known.lack(stratifier) for stratifier in known.strata))
        rest = beyond(member, basis)
        return replace(
            wider,
            products=wider.products + rest.T @ rest,
            moments=wider.moments + rest.T @ beyond(known.points, basis),
            actions=wider.actions + member.sum(axis=0),
        )

    def _with_names(self, names: Sequence[Name]) -> Offsets:
        more = (0, len(names))
        return Offsets(
            names=(*self.names, *names),
            products=np.pad(self.products, (more, more)),
            moments=np.pad(self.moments, more),
            actions=np.pad(self.actions, more),
        )

    def fitted(self, shrink: float) -> dict[Name, float]:
        """Points by which scores of a stratum are too high, by name; weighted by actions, those of a stratifier average
        to zero.

        All stratifiers are fitted at once, each stratum for what the others leave, so that strata that often occur
        together are not corrected twice for the same points. `shrink` is the ridge: the fit is that of offsets that
        vary at random (Henderson's best linear unbiased prediction) where noise has `shrink` times their variance.
        """
        ridge = shrink * np.eye(len(self.names))
        offsets, *_ = np.linalg.lstsq(self.products + ridge, self.moments, rcond=None)
        fitted = dict(zip(self.names, offsets.tolist(), strict=True))
        weight = dict(zip(self.names, self.actions.tolist(), strict=True))
        means = {}
        for stratifier in {name[0] for name in self.names}:
            own = [name for name in self.names if name[0] == stratifier]
            means[stratifier] = sum(weight[one] * fitted[one] for one in own) / sum(weight[one] for one in own)
        return {name: fitted[name] - means[name[0]] for name in self.names}

    def state_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "names": [list(name) for name in self.names],
            "products": self.products.tolist(),
            "moments": self.moments.tolist(),
            "actions": self.actions.tolist(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Offsets:
        """What `state_dict` gave."""
        names = tuple((stratifier, stratum) for stratifier, stratum in state["names"])
        return cls(
            names=names,
            products=np.array(state["products"], dtype=np.float64).reshape(len(names), len(names)),
            moments=np.array(state["moments"], dtype=np.float64),
            actions=np.array(state["actions"], dtype=np.float64),
        )


class Debiased(Coach):
    """A coach whose preferences among strata are taken off its scores, while it is `active`.

    What it prefers is learned from its raw scores once an iteration, active or not, for every agent and every
    stratifier of `strata`, live verdicts and those in hindsight apart. Only what the outcome (`metric`) does not
    explain counts as preference, so that right actions keep what they earn and hard tasks stay hard. A score moves by
    at most `options.most` points and stays within 0 and 10; `raw_score` keeps what the coach gave.
    """

    def __init__(self, coach: Coach, options: BiasSection, *, strata: Sequence[str], metric: str, active: bool) -> None:
        self._coach = coach
        self._options = options
        self._strata = tuple(strata)
        self._metric = metric
        self._active = active
        self._offsets: dict[tuple[Phase, str], Offsets] = {}
        self._fitted: Mapping[tuple[Phase, str], Mapping[Name, float]] = {}

    def activate(self) -> None:
        """Correct from now on."""
        self._active = True

    async def score(self, scene: Scene) -> Verdict:
        return self._corrected(scene, await self._coach.score(scene))

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        verdicts = await self._coach.review(scenes)
        return [self._corrected(scene, verdict) for scene, verdict in zip(scenes, verdicts, strict=True)]

    def _corrected(self, scene: Scene, verdict: Verdict) -> Verdict:
        phase: Phase = "live" if scene.later is None else "after"
        bias = self.bias(phase, scene.step.agent, scene.step.strata)
        if not self._active or verdict.score is None or bias == 0:
            return verdict
        raw = verdict.score if verdict.raw_score is None else verdict.raw_score
        return replace(verdict, score=min(max(raw - bias, 0.0), MAX_SCORE), raw_score=raw)

    def bias(self, phase: Phase, agent: str, strata: Mapping[str, str]) -> float:
        """Points by which a score of such an action is too high, as far as is known: the sum over its strata. A stratum
        that was not met yet counts as no preference."""
        fitted = self._fitted.get((phase, agent), {})
        total = sum(fitted[name] for name in strata.items() if name in fitted)
        return min(max(total, -self._options.most), self._options.most)

    @property
    def by_trajectory(self) -> bool:
        return self._coach.by_trajectory

    @property
    def providers(self) -> tuple[Provider, ...]:
        return self._coach.providers

    def keep_on(self, cassette: Cassette) -> None:
        self._coach.keep_on(cassette)

    def equip(self, bench: Bench) -> None:
        self._coach.equip(bench)

    def learn(self, trajectories: Sequence[Trajectory]) -> None:
        self._coach.learn(trajectories)
        columns = judged_actions(trajectories, strata=self._strata, metric=self._metric)
        decayed = {key: offsets.decayed(self._options.decay) for key, offsets in self._offsets.items()}
        new = {key: decayed.get(key, Offsets()).with_actions(actions) for key, actions in columns.items()}
        self._offsets = {**decayed, **new}
        self._fit()

    def _fit(self) -> None:
        self._fitted = {key: offsets.fitted(self._options.shrink) for key, offsets in self._offsets.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "active": self._active,
            "offsets": [[*key, offsets.state_dict()] for key, offsets in self._offsets.items()],
            "coach": self._coach.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._coach.load_state_dict(state["coach"])
        self._active = self._active or state["active"]
        self._offsets = {(phase, agent): Offsets.from_state(found) for phase, agent, found in state["offsets"]}
        self._fit()

    async def close(self) -> None:
        await self._coach.close()
