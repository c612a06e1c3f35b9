"""Watch over a coach: gaps between strata that the outcome does not justify, and whether they grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from mappa_core.coaching.gaps import Actions, Contrast, Estimate, judged_actions
from mappa_core.coaching.looks import Looks
from mappa_core.config.schema import DriftSection
from mappa_core.errors import ConfigError
from mappa_core.records import Phase, Trajectory
from mappa_core.store.summary import Interval

FALSE_ALARMS = {"level": 0.03, "widening": 0.02}
"""Chance that a run without gaps, or with gaps that stay as they are, ever raises an alarm of that kind."""
SCALE = {"level": 1.0, "widening": 1 / 250}
"""What the tests are tuned to: a gap of a point, and one that grows by a point in 250 iterations."""
LATE = 0.05
"""Share of these chances that is kept for strata and agents that turn up after the first look."""
FEWEST = 20
"""Effective clusters of tasks below which a gap, or its growth, is not tested: about ten tasks in each stratum."""
LENGTH = "length"
REST = "the rest"

Kind = Literal["level", "widening"]
KINDS: tuple[Kind, ...] = ("level", "widening")
Key = tuple[Phase, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Raw score (points) of an agent's actions in one stratum less that of the others', at equal outcome, over the run.

    `points` is its average and `now` what it has come to by the line of its `growth` (points per iteration). Intervals
    are at 95 %, each by itself; None where there is too little to tell. `against` is the other stratum where there are
    but two. `raised` names the alarms that it has raised so far.
    """

    phase: Phase
    agent: str
    stratifier: str
    stratum: str
    against: str
    actions: tuple[int, int]
    points: Interval | None = None
    growth: Interval | None = None
    now: float | None = None
    acknowledged: bool = False
    raised: tuple[Kind, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Pearson's correlation of raw score and outcome over the `actions` of this iteration whose outcome is known; `r`
    is None where one of the two does not vary."""

    phase: Phase
    agent: str
    actions: int
    r: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A gap that is there (`level`) or grows (`widening`). It is raised once."""

    kind: Kind
    gap: Gap

    def __str__(self) -> str:
        gap, shown = self.gap, self.gap.points
        assert shown is not None  # no alarm without an estimate
        said = (
            f"the coach gives {gap.agent} {shown.mean:+.2f} points where {gap.stratifier} is {gap.stratum}, against "
            f"{gap.against}, at equal outcome [{shown.low:+.2f}, {shown.high:+.2f}]"
        )
        if self.kind == "level":
            return said
        assert gap.growth is not None and gap.now is not None
        return f"{said}, growing by {gap.growth.mean:+.3f} an iteration to {gap.now:+.2f} now"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReport:
    """What an iteration showed. `lengths` are gaps of each tenth of an agent's actions by sampled tokens (`1` the
    shortest of their iteration) against the rest; they raise no alarms. `alarms` are those raised now."""

    gaps: tuple[Gap, ...] = ()
    lengths: tuple[Gap, ...] = ()
    correlations: tuple[Correlation, ...] = ()
    alarms: tuple[Alarm, ...] = ()

    def metrics(self) -> dict[str, float | None]:
        """Gaps and correlations under flat names; None where one is not known."""
        flat: dict[str, float | None] = {"drift/alarms": len(self.alarms)}
        for gap in self.gaps:
            name = f"drift/{gap.phase}/{gap.agent}/{gap.stratifier}/{gap.stratum}"
            if gap.points is not None:
                flat[f"{name}/gap"] = gap.points.mean
                flat[f"{name}/gap_low"], flat[f"{name}/gap_high"] = gap.points.low, gap.points.high
            flat[f"{name}/growth"] = None if gap.growth is None else gap.growth.mean
        for one in self.correlations:
            flat[f"drift/{one.phase}/{one.agent}/correlation"] = one.r
        return flat


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Watched:
    """A gap under watch since iteration `since`: what is known of it, its tests, the alarms that it has raised."""

    since: int
    contrast: Contrast
    tests: Mapping[Kind, Looks] = field(default_factory=dict)
    raised: tuple[Kind, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A gap as it stands: its average over the run, its growth per iteration, and by the line of that growth what it
    has come to `now` and what it has `grown` by."""

    gap: Estimate
    growth: Estimate | None
    now: float | None
    grown: float | None

    @classmethod
    def of(cls, watched: Watched, iteration: int) -> Standing | None:
        """None where there is nothing to tell the gap from."""
        gap, growth = watched.contrast.gap, watched.contrast.growth
        if gap is None:
            return None
        if growth is None:
            return cls(gap=gap, growth=None, now=None, grown=None)
        age = iteration - watched.since
        now = gap.value + growth.value * (age - watched.contrast.clock)
        return cls(gap=gap, growth=growth, now=now, grown=growth.value * age)

    def tested(self, kind: Kind) -> Estimate | None:
        """What a test of `kind` is about; None where there are too few tasks for one."""
        found = self.gap if kind == "level" else self.growth
        return found if found is not None and found.freedom + 1 >= FEWEST else None

    def matters(self, kind: Kind, least: float) -> bool:
        """Whether what a test of `kind` has found is worth an alarm: `least` points and, where a gap grows, away from
        zero."""
        if kind == "level":
            return abs(self.gap.value) >= least
        assert self.now is not None and self.grown is not None  # growth was tested
        return self.now * self.grown > 0 and abs(self.grown) >= least


class DriftMonitor:
    """Watches raw scores, corrected or not.

    Every stratum of every stratifier in `strata` is held against the rest, for every agent and phase of verdicts; where
    a stratifier has two strata that is one gap. Where the outcome `metric` of a trajectory is known, actions are
    compared at equal outcome, else with each other. Evidence is gathered over all iterations with tasks as clusters, so
    a task that comes back is no new evidence of what it is like.

    In a run without gaps the chance of any alarm is 5 % in all: over both kinds, all iterations, agents and strata. In
    one whose gaps stay as they are, that of a widening alarm is 2 %. What difficulty the outcome does not show, a coach
    may rightly see; such a gap is a level alarm too, and it is for people to acknowledge it or not.
    """

    def __init__(self, options: DriftSection, strata: Sequence[str], *, metric: str) -> None:
        for name in options.acknowledged:
            if name.rpartition("/")[2] not in strata:
                raise ConfigError(
                    f"coach.drift.acknowledged: {name!r} is not AGENT/STRATIFIER with a stratifier of coach.strata, "
                    f"which has {', '.join(strata)}"
                )
        self._options = options
        self._strata = tuple(strata)
        self._metric = metric
        self._known: dict[tuple[Phase, str, str], set[str]] = {}
        self._watched: dict[Key, Watched] = {}
        self._lengths: dict[Key, Contrast] = {}
        self._begun = False
        self._late = 0

    def observe(self, trajectories: Sequence[Trajectory]) -> DriftReport:
        """Take in the trajectories of one iteration, with their verdicts."""
        if not trajectories:
            return DriftReport()
        columns = judged_actions(trajectories, strata=self._strata, metric=self._metric)
        return self.observe_actions(columns, trajectories[0].iteration)

    def observe_actions(self, columns: Mapping[tuple[Phase, str], Actions], iteration: int) -> DriftReport:
        """The same for actions as columns, by phase and agent."""
        for (phase, agent), actions in columns.items():
            for stratifier in self._strata:
                self._add((phase, agent, stratifier), actions.where(~actions.lack(stratifier)), iteration)
            self._add_lengths(phase, agent, actions)
        standing = {key: Standing.of(watched, iteration) for key, watched in self._watched.items()}
        self._deal_out(standing)
        seen = [key for key in standing if key[:2] in columns]
        raised = [(key, kind) for key, kind in product(seen, KINDS) if self._is_raised(key, kind, standing[key])]
        gaps = {key: self._gap(key, found) for key, found in standing.items()}
        return DriftReport(
            gaps=tuple(gaps.values()),
            lengths=tuple(_length_gap(key, contrast) for key, contrast in self._lengths.items()),
            correlations=tuple(_correlation(*key, actions) for key, actions in columns.items()),
            alarms=tuple(Alarm(kind=kind, gap=gaps[key]) for key, kind in raised),
        )

    @property
    def raised(self) -> frozenset[Kind]:
        """Kinds of alarms that were raised so far."""
        return frozenset(kind for watched in self._watched.values() for kind in watched.raised)

    def _add(self, group: tuple[Phase, str, str], actions: Actions, iteration: int) -> None:
        names = actions.strata[group[2]]
        known = self._known.setdefault(group, set())
        known.update(names)
        # Two strata have one gap: that of the second is the same with its sign turned.
        new = sorted(known)[: 1 if len(known) == 2 else None] if len(known) > 1 else []
        for stratum in new:
            self._watched.setdefault((*group, stratum), Watched(since=iteration, contrast=Contrast()))
        for key, watched in self._watched.items():
            if key[:3] == group:
                contrast = watched.contrast.with_actions(actions, names == key[3], iteration - watched.since)
                self._watched[key] = replace(watched, contrast=contrast)

    def _add_lengths(self, phase: Phase, agent: str, actions: Actions) -> None:
        known = actions.where(np.isfinite(actions.tokens))
        if not len(known.tokens):
            return
        bounds = np.quantile(known.tokens, np.arange(1, 10) / 10)
        tenth = np.searchsorted(bounds, known.tokens)
        for number in range(10):
            key = (phase, agent, LENGTH, str(number + 1))
            before = self._lengths.get(key, Contrast())
            self._lengths[key] = before.with_actions(known, tenth == number, 0.0)

    def _deal_out(self, standing: Mapping[Key, Standing | None]) -> None:
        """Give every gap its share of the false alarms, once: at the first look equal ones to all that are watched, and
        to the j-th that comes later 1 / (j (j + 1)) of what was kept for it."""
        if not self._begun and not any(found is not None and found.tested("level") for found in standing.values()):
            return
        new = [key for key, watched in self._watched.items() if not watched.tests]
        for key in new:
            if self._begun:
                self._late += 1
                share = LATE / (self._late * (self._late + 1))
            else:
                share = (1 - LATE) / len(new)
            tests = {kind: Looks(alpha=FALSE_ALARMS[kind] * share, scale=SCALE[kind]) for kind in KINDS}
            self._watched[key] = replace(self._watched[key], tests=tests)
        self._begun = True

    def _is_raised(self, key: Key, kind: Kind, standing: Standing | None) -> bool:
        """Take a look, if it is time for one; whether it raises an alarm."""
        watched = self._watched[key]
        estimate = None if standing is None else standing.tested(kind)
        if standing is None or estimate is None or not watched.tests:
            return False
        looked = watched.tests[kind].after(estimate)
        settled = kind in watched.raised or (kind == "level" and self._is_acknowledged(key))
        raises = looked.passed and not settled and standing.matters(kind, self._options.least)
        raised = (*watched.raised, kind) if raises else watched.raised
        self._watched[key] = replace(watched, tests={**watched.tests, kind: looked}, raised=raised)
        return raises

    def _is_acknowledged(self, key: Key) -> bool:
        return f"{key[1]}/{key[2]}" in self._options.acknowledged

    def _gap(self, key: Key, standing: Standing | None) -> Gap:
        phase, agent, stratifier, stratum = key
        watched, others = self._watched[key], self._known[phase, agent, stratifier] - {stratum}
        return Gap(
            phase=phase,
            agent=agent,
            stratifier=stratifier,
            stratum=stratum,
            against=others.pop() if len(others) == 1 else REST,
            actions=(watched.contrast.inside, watched.contrast.outside),
            points=_interval(None if standing is None else standing.gap),
            growth=_interval(None if standing is None else standing.growth),
            now=None if standing is None else standing.now,
            acknowledged=self._is_acknowledged(key),
            raised=watched.raised,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that is known, as JSON values."""
        return {
            "begun": self._begun,
            "late": self._late,
            "known": [[*group, sorted(names)] for group, names in self._known.items()],
            "watched": [
                {
                    "key": list(key),
                    "since": watched.since,
                    "contrast": watched.contrast.state_dict(),
                    "tests": {kind: asdict(looks) for kind, looks in watched.tests.items()},
                    "raised": list(watched.raised),
                }
                for key, watched in self._watched.items()
            ],
            "lengths": [[*key, contrast.state_dict()] for key, contrast in self._lengths.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._begun, self._late = state["begun"], state["late"]
        self._known = {tuple(group): set(names) for *group, names in state["known"]}
        self._watched = {
            tuple(one["key"]): Watched(
                since=one["since"],
                contrast=Contrast.from_state(one["contrast"]),
                tests={kind: Looks(**looks) for kind, looks in one["tests"].items()},
                raised=tuple(one["raised"]),
            )
            for one in state["watched"]
        }
        self._lengths = {tuple(key): Contrast.from_state(contrast) for *key, contrast in state["lengths"]}


def _interval(estimate: Estimate | None) -> Interval | None:
    if estimate is None:
        return None
    return Interval(mean=estimate.value, low=estimate.value - estimate.reach, high=estimate.value + estimate.reach)


def _length_gap(key: Key, contrast: Contrast) -> Gap:
    phase, agent, stratifier, tenth = key
    return Gap(
        phase=phase,
        agent=agent,
        stratifier=stratifier,
        stratum=tenth,
        against=REST,
        actions=(contrast.inside, contrast.outside),
        points=_interval(contrast.gap),
    )


def _correlation(phase: Phase, agent: str, actions: Actions) -> Correlation:
    known = actions.where(np.isfinite(actions.outcome))
    pair = np.stack([known.points, known.outcome])
    varied = len(known.points) > 1 and bool((np.ptp(pair, axis=1) > 0).all())
    return Correlation(
        phase=phase,
        agent=agent,
        actions=len(known.points),
        r=float(np.corrcoef(pair)[0, 1]) if varied else None,
    )
