"""Drift monitor of a coach: score gaps between strata beyond merit, and their growth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from mappa_calibration.actions import LENGTH
from mappa_calibration.comparison import DOUBLING, Comparison, log_tokens
from mappa_calibration.gap_estimate import Contrast
from mappa_calibration.options import AlarmOptions
from mappa_calibration.sequential_test import SequentialTest
from mappa_calibration.slope_estimate import SlopeEstimate
from mappa_core.coach import Alarm, AlarmKind, DriftReport, Gap, Interval, Phase

ALARM_KINDS: tuple[AlarmKind, ...] = ("level", "widening")
FALSE_ALARM_RATES = {"level": 0.03, "widening": 0.02}
"""Chance that a run without gaps (`level`), or with constant gaps (`widening`), ever raises an alarm of that kind."""
TUNED_EFFECTS = {"level": 1.0, "widening": 1 / 250}  # points, points per iteration
LATE_SHARE = 0.05
"""Share of these chances that is reserved for strata and agents that appear after the first analysis."""
MIN_CLUSTERS = 20  # Effective clusters of tasks, about ten tasks in each stratum; with fewer nothing is tested.
REST = "the rest"
HALF = "half as long"

Subject = tuple[Phase, str, str]  # phase, agent, stratifier
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
    """Monitors raw scores, before any correction, for gaps between strata beyond merit. Every stratum of a stratifier
    is compared with the rest, for every agent and phase of verdicts; a stratifier with two strata has one gap, and of
    `length` the gap is the points per doubling. Evidence accumulates over all iterations with tasks as clusters.

    In a run without gaps the chance of any alarm is 5 % in total: over both kinds, all iterations, agents and strata.
    In a run with constant gaps the chance of a widening alarm is 2 %.
    """

    def __init__(self, options: AlarmOptions) -> None:
        self._options = options
        self._strata: dict[Subject, set[str]] = {}
        self._states: dict[GapKey, GapState] = {}
        self._started = False
        self._late = 0
        self._last: int | None = None  # Iteration that was observed last.

    def observe(self, found: Mapping[Subject, Comparison], iteration: int, basis: Mapping[str, str]) -> DriftReport:
        """Update the gaps of one iteration's comparisons. `basis` says, by stratifier, how its gaps are identified."""
        self._last = iteration
        for subject, comparison in found.items():
            self._add(subject, comparison, iteration)
        estimates = {key: GapEstimate.of(state, iteration) for key, state in self._states.items()}
        self._assign_alpha(estimates)
        seen = [key for key in estimates if key[:3] in found]
        raised = [pair for pair in product(seen, ALARM_KINDS) if self._update_test(*pair, estimates[pair[0]])]
        gaps = {key: self._gap(key, estimate, basis[key[2]]) for key, estimate in estimates.items()}
        return DriftReport(
            gaps=tuple(gaps.values()), alarms=tuple(Alarm(kind=kind, gap=gaps[key]) for key, kind in raised)
        )

    def is_shown(self, subject: Subject) -> bool:
        """Whether the monitor is sure of a gap of the subject, and nobody has acknowledged it."""
        tests = [state.tests.get("level") for key, state in self._states.items() if key[:3] == subject]
        shown = any(test is not None and test.significant for test in tests)
        return shown and not self._is_acknowledged(subject)

    def is_undecided(self, subject: Subject, patience: int) -> bool:
        """Whether a gap of the subject, or one that may still appear, is neither shown nor known to within `min_gap`
        points, and has been looked for in fewer than `patience` iterations."""
        if self._last is None:
            return True
        states = [state for key, state in self._states.items() if key[:3] == subject]
        if not states:
            return self._last + 1 < patience
        return any(self._last + 1 - state.since < patience and not self._is_decided(state) for state in states)

    def _is_decided(self, state: GapState) -> bool:
        if (test := state.tests.get("level")) is not None and test.significant:
            return True
        found = GapEstimate.of(state, state.since).testable("level")
        return found is not None and found.half_width <= self._options.min_gap

    def contrasts(self, subject: Subject) -> list[Contrast]:
        """The contrasts of a subject's strata."""
        return [state.contrast for key, state in self._states.items() if key[:3] == subject]

    def _add(self, subject: Subject, comparison: Comparison, iteration: int) -> None:
        actions = comparison.actions
        if subject[2] == LENGTH:
            names, logs = {DOUBLING}, log_tokens(actions)
            self._strata[subject] = {DOUBLING, HALF}
        else:
            column = actions.column(subject[2])
            known = self._strata.setdefault(subject, set())
            known.update(stratum for stratum in column if stratum is not None)
            # Two strata have one gap: the gap of the second is the same with opposite sign.
            names = set(sorted(known)[: 1 if len(known) == 2 else None]) if len(known) > 1 else set()
        for stratum in sorted(names):
            self._states.setdefault((*subject, stratum), GapState(since=iteration, contrast=Contrast()))
        for key, state in self._states.items():
            if key[:3] == subject:
                membership = logs if subject[2] == LENGTH else (column == key[3]).astype(np.float64)
                contrast = state.contrast.with_comparison(comparison, membership, iteration - state.since)
                self._states[key] = replace(state, contrast=contrast)

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
        if not state.tests:
            return False
        if estimate is None:
            untold = replace(state.tests[kind], significant=False)
            self._states[key] = replace(state, tests={**state.tests, kind: untold})
            return False
        test = state.tests[kind].update(estimate)
        settled = kind in state.raised or (kind == "level" and self._is_acknowledged(key[:3]))
        raises = test.significant and not settled and found.is_relevant(kind, self._options.min_gap)
        raised = (*state.raised, kind) if raises else state.raised
        self._states[key] = replace(state, tests={**state.tests, kind: test}, raised=raised)
        return raises

    def _is_acknowledged(self, subject: Subject) -> bool:
        return f"{subject[1]}/{subject[2]}" in self._options.acknowledged

    def _gap(self, key: GapKey, found: GapEstimate, basis: str) -> Gap:
        phase, agent, stratifier, stratum = key
        state, others = self._states[key], self._strata[key[:3]] - {stratum}
        return Gap(
            phase=phase,
            agent=agent,
            stratifier=stratifier,
            stratum=stratum,
            against=others.pop() if len(others) == 1 else REST,
            basis=basis,
            actions=(state.contrast.inside, state.contrast.outside),
            points=_interval(found.gap),
            growth=_interval(found.growth),
            now=found.now,
            acknowledged=self._is_acknowledged(key[:3]),
            raised=state.raised,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "started": self._started,
            "late": self._late,
            "last": self._last,
            "strata": [[*subject, sorted(names)] for subject, names in self._strata.items()],
            "gaps": [
                {
                    "key": list(key),
                    "since": state.since,
                    "contrast": state.contrast.state_dict(),
                    "tests": {kind: test.state_dict() for kind, test in state.tests.items()},
                    "raised": list(state.raised),
                }
                for key, state in self._states.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._started, self._late, self._last = state["started"], state["late"], state["last"]
        self._strata = {(phase, agent, name): set(strata) for phase, agent, name, strata in state["strata"]}
        self._states = {
            tuple(gap["key"]): GapState(
                since=gap["since"],
                contrast=Contrast.from_state(gap["contrast"]),
                tests={kind: SequentialTest.from_state(test) for kind, test in gap["tests"].items()},
                raised=tuple(gap["raised"]),
            )
            for gap in state["gaps"]
        }


def _interval(estimate: SlopeEstimate | None) -> Interval | None:
    if estimate is None:
        return None
    value, half = estimate.value, estimate.half_width
    return Interval(mean=value, low=value - half, high=value + half)
