"""Drift monitor of a coach: score gaps between strata at equal outcome, and their growth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from mappa_calibration.contrasts import ActionColumns, Contrast, SlopeEstimate, scored_action_columns
from mappa_calibration.options import AlarmOptions
from mappa_calibration.sequential_test import SequentialTest
from mappa_core import Trajectory
from mappa_core.runs import ALARM_KINDS, Alarm, AlarmKind, Correlation, DriftReport, Gap, Phase
from mappa_core.statistics import Interval

FALSE_ALARM_RATES = {"level": 0.03, "widening": 0.02}
"""Chance that a run without gaps (`level`), or with constant gaps (`widening`), ever raises an alarm of that kind."""
TUNED_EFFECTS = {"level": 1.0, "widening": 1 / 250}  # points, points per iteration
LATE_SHARE = 0.05
"""Share of these chances that is reserved for strata and agents that appear after the first analysis."""
MIN_CLUSTERS = 20  # Effective clusters of tasks, about ten tasks in each stratum; with fewer nothing is tested.
LENGTH = "length"
REST = "the rest"

GapKey = tuple[Phase, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GapState:
    """State of a gap monitored since iteration `since`: its contrast, its tests, and the alarms it has raised."""

    since: int
    contrast: Contrast
    tests: Mapping[AlarmKind, SequentialTest] = field(default_factory=dict)
    raised: tuple[AlarmKind, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GapEstimate:
    """Current estimate of a gap: its average over the run, its growth per iteration, and, extrapolated linearly, its
    value `now` and its `total_growth`. None if there is too little data."""

    gap: SlopeEstimate | None
    growth: SlopeEstimate | None
    now: float | None = None
    total_growth: float | None = None

    @classmethod
    def of(cls, state: GapState, iteration: int) -> GapEstimate:
        gap, growth = state.contrast.gap, state.contrast.growth
        if gap is None or growth is None:
            return cls(gap=gap, growth=growth)
        age = iteration - state.since
        now = gap.value + growth.value * (age - state.contrast.clock)
        return cls(gap=gap, growth=growth, now=now, total_growth=growth.value * age)

    def testable(self, kind: AlarmKind) -> SlopeEstimate | None:
        """Return the estimate that a test of `kind` is applied to; None if there are too few tasks."""
        found = self.gap if kind == "level" else self.growth
        return found if found is not None and found.degrees_of_freedom + 1 >= MIN_CLUSTERS else None

    def is_relevant(self, kind: AlarmKind, min_gap: float) -> bool:
        """Whether a tested gap is large enough for an alarm: at least `min_gap` and, for growth, away from zero."""
        if kind == "level":
            return self.gap is not None and abs(self.gap.value) >= min_gap
        assert self.now is not None and self.total_growth is not None
        return self.now * self.total_growth > 0 and abs(self.total_growth) >= min_gap


class DriftMonitor:
    """Monitors raw scores, before any correction, for gaps between strata. Every stratum of every stratifier in
    `strata` is compared with the rest, for every agent and phase of verdicts; a stratifier with two strata has one gap.
    Actions with a known outcome `metric` are compared at equal outcome, the others with each other. Evidence
    accumulates over all iterations with tasks as clusters.

    In a run without gaps the chance of any alarm is 5 % in total: over both kinds, all iterations, agents and strata.
    In a run with constant gaps the chance of a widening alarm is 2 %. A coach may rightly see difficulty that the
    outcome does not show; such a gap raises a level alarm too, which a person may acknowledge.
    """

    def __init__(self, options: AlarmOptions, strata: Sequence[str], *, metric: str) -> None:
        self._options = options
        self._strata = tuple(strata)
        self._metric = metric
        self._strata_of_group: dict[tuple[Phase, str, str], set[str]] = {}
        self._states: dict[GapKey, GapState] = {}
        self._lengths: dict[GapKey, Contrast] = {}
        self._started = False
        self._late = 0

    def observe(self, trajectories: Sequence[Trajectory]) -> DriftReport:
        """Update all gaps with the judged trajectories of one iteration."""
        if not trajectories:
            return DriftReport()
        columns = scored_action_columns(trajectories, strata=self._strata, metric=self._metric)
        return self.observe_columns(columns, trajectories[0].iteration)

    def observe_columns(self, columns: Mapping[tuple[Phase, str], ActionColumns], iteration: int) -> DriftReport:
        """Update all gaps with the scored actions of one iteration, by phase and agent."""
        for (phase, agent), actions in columns.items():
            for stratifier in self._strata:
                known = actions.select(~actions.missing_stratum(stratifier))
                self._add_strata((phase, agent, stratifier), known, iteration)
            self._add_lengths(phase, agent, actions)
        estimates = {key: GapEstimate.of(state, iteration) for key, state in self._states.items()}
        self._assign_alpha(estimates)
        seen = [key for key in estimates if key[:2] in columns]
        raised = [pair for pair in product(seen, ALARM_KINDS) if self._update_test(*pair, estimates[pair[0]])]
        gaps = {key: self._gap(key, found) for key, found in estimates.items()}
        return DriftReport(
            gaps=tuple(gaps.values()),
            lengths=tuple(_as_gap(key, contrast, REST) for key, contrast in self._lengths.items()),
            correlations=tuple(_correlation(*key, actions) for key, actions in columns.items()),
            alarms=tuple(Alarm(kind=kind, gap=gaps[key]) for key, kind in raised),
        )

    @property
    def raised_kinds(self) -> frozenset[AlarmKind]:
        return frozenset(kind for state in self._states.values() for kind in state.raised)

    def _add_strata(self, group: tuple[Phase, str, str], actions: ActionColumns, iteration: int) -> None:
        names = actions.strata[group[2]]
        known = self._strata_of_group.setdefault(group, set())
        known.update(names)
        # Two strata have one gap: the gap of the second is the same with opposite sign.
        new = sorted(known)[: 1 if len(known) == 2 else None] if len(known) > 1 else []
        for stratum in new:
            self._states.setdefault((*group, stratum), GapState(since=iteration, contrast=Contrast()))
        for key, state in self._states.items():
            if key[:3] == group:
                contrast = state.contrast.with_actions(actions, names == key[3], iteration - state.since)
                self._states[key] = replace(state, contrast=contrast)

    def _add_lengths(self, phase: Phase, agent: str, actions: ActionColumns) -> None:
        known = actions.select(np.isfinite(actions.tokens))
        if not len(known.tokens):
            return
        bounds = np.quantile(known.tokens, np.arange(1, 10) / 10)
        tenth = np.searchsorted(bounds, known.tokens)
        for number in range(10):
            key = (phase, agent, LENGTH, str(number + 1))
            before = self._lengths.get(key, Contrast())
            self._lengths[key] = before.with_actions(known, tenth == number, 0.0)

    def _assign_alpha(self, estimates: Mapping[GapKey, GapEstimate]) -> None:
        """Assign every gap its share of the false alarm rates, once: at the first analysis equal shares to all gaps,
        and to the j-th later gap 1 / (j (j + 1)) of the reserved share."""
        if not self._started and not any(found.testable("level") for found in estimates.values()):
            return
        new = [key for key, state in self._states.items() if not state.tests]
        for key in new:
            if self._started:
                self._late += 1
                share = LATE_SHARE / (self._late * (self._late + 1))
            else:
                share = (1 - LATE_SHARE) / len(new)
            rates = {kind: share * FALSE_ALARM_RATES[kind] for kind in ALARM_KINDS}
            tests = {kind: SequentialTest(alpha=rates[kind], scale=TUNED_EFFECTS[kind]) for kind in ALARM_KINDS}
            self._states[key] = replace(self._states[key], tests=tests)
        self._started = True

    def _update_test(self, key: GapKey, kind: AlarmKind, found: GapEstimate) -> bool:
        """Update a test if there is enough data; return whether it raises an alarm."""
        state, estimate = self._states[key], found.testable(kind)
        if estimate is None or not state.tests:
            return False
        test = state.tests[kind].update(estimate)
        settled = kind in state.raised or (kind == "level" and self._is_acknowledged(key))
        raises = test.significant and not settled and found.is_relevant(kind, self._options.min_gap)
        raised = (*state.raised, kind) if raises else state.raised
        self._states[key] = replace(state, tests={**state.tests, kind: test}, raised=raised)
        return raises

    def _is_acknowledged(self, key: GapKey) -> bool:
        return f"{key[1]}/{key[2]}" in self._options.acknowledged

    def _gap(self, key: GapKey, found: GapEstimate) -> Gap:
        state, others = self._states[key], self._strata_of_group[key[:3]] - {key[3]}
        return replace(
            _as_gap(key, state.contrast, others.pop() if len(others) == 1 else REST),
            growth=_interval(found.growth),
            now=found.now,
            acknowledged=self._is_acknowledged(key),
            raised=state.raised,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "begun": self._started,
            "late": self._late,
            "known": [[*group, sorted(names)] for group, names in self._strata_of_group.items()],
            "watched": [
                {
                    "key": list(key),
                    "since": state.since,
                    "contrast": state.contrast.state_dict(),
                    "tests": {kind: test.state_dict() for kind, test in state.tests.items()},
                    "raised": list(state.raised),
                }
                for key, state in self._states.items()
            ],
            "lengths": [[*key, contrast.state_dict()] for key, contrast in self._lengths.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._started, self._late = state["begun"], state["late"]
        self._strata_of_group = {tuple(group): set(names) for *group, names in state["known"]}
        self._states = {
            tuple(one["key"]): GapState(
                since=one["since"],
                contrast=Contrast.from_state(one["contrast"]),
                tests={kind: SequentialTest.from_state(test) for kind, test in one["tests"].items()},
                raised=tuple(one["raised"]),
            )
            for one in state["watched"]
        }
        self._lengths = {tuple(key): Contrast.from_state(contrast) for *key, contrast in state["lengths"]}


def _interval(estimate: SlopeEstimate | None) -> Interval | None:
    if estimate is None:
        return None
    value, half = estimate.value, estimate.half_width
    return Interval(mean=value, low=value - half, high=value + half)


def _as_gap(key: GapKey, contrast: Contrast, against: str) -> Gap:
    phase, agent, stratifier, stratum = key
    return Gap(
        phase=phase,
        agent=agent,
        stratifier=stratifier,
        stratum=stratum,
        against=against,
        actions=(contrast.inside, contrast.outside),
        points=_interval(contrast.gap),
    )


def _correlation(phase: Phase, agent: str, actions: ActionColumns) -> Correlation:
    known = actions.select(np.isfinite(actions.outcome))
    pair = np.stack([known.points, known.outcome])
    varied = len(known.points) > 1 and bool((np.ptp(pair, axis=1) > 0).all())
    r = float(np.corrcoef(pair)[0, 1]) if varied else None
    return Correlation(phase=phase, agent=agent, actions=len(known.points), r=r)
