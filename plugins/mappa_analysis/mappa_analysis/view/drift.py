"""Reads the drift of a run's coach: gaps between strata over the iterations, and the alarms they raised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from mappa_core.coaching.drift import Alarm, AlarmKind
from mappa_core.store.reader import Reader
from mappa_core.store.summary import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class GapHistory:
    """The gap of an agent's raw scores, in verdicts of one `phase`, between a stratum and the others at equal outcome.

    `points` holds (iteration, gap estimated from all iterations up to it); `growth` is in points per iteration, None if
    there is too little data. `alarms` are those that the gap raised, with their iterations.
    """

    phase: str
    agent: str
    stratifier: str
    stratum: str
    points: tuple[tuple[int, Interval], ...]
    growth: float | None
    alarms: tuple[tuple[int, AlarmKind], ...]

    @property
    def last(self) -> Interval:
        """The gap over the whole run."""
        return self.points[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedAlarm:
    """An alarm of the coach's drift, raised after `iteration`, as text."""

    iteration: int
    kind: AlarmKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftHistory:
    """All monitored gaps and all alarms."""

    gaps: tuple[GapHistory, ...]
    alarms: tuple[RaisedAlarm, ...]


def read_drift(reader: Reader) -> DriftHistory:
    """Read the drift that the run of `reader` has recorded so far."""
    alarms = [
        (event.body["iteration"], alarm)
        for event in reader.events("drift")
        for alarm in msgspec.convert(event.body["alarms"], tuple[Alarm, ...])
    ]
    return DriftHistory(
        gaps=_gaps(reader.iterations(), alarms),
        alarms=tuple(RaisedAlarm(iteration=at, kind=alarm.kind, text=str(alarm)) for at, alarm in alarms),
    )


def _gaps(
    iterations: Sequence[tuple[int, Mapping[str, float]]], alarms: Sequence[tuple[int, Alarm]]
) -> tuple[GapHistory, ...]:
    found: dict[str, list[tuple[int, Interval]]] = {}
    growth: dict[str, float] = {}
    for number, metrics in iterations:
        for name, value in metrics.items():
            gap, _, figure = name.rpartition("/")
            if name.startswith("drift/") and figure == "gap":
                low, high = metrics.get(f"{gap}/gap_low"), metrics.get(f"{gap}/gap_high")
                found.setdefault(gap, []).append((number, Interval(mean=value, low=low, high=high)))
            elif name.startswith("drift/") and figure == "growth":
                growth[gap] = value
    return tuple(_history(gap, points, growth.get(gap), alarms) for gap, points in found.items())


def _history(
    name: str, points: Sequence[tuple[int, Interval]], growth: float | None, alarms: Sequence[tuple[int, Alarm]]
) -> GapHistory:
    _, phase, agent, stratifier, stratum = name.split("/", 4)
    own = (phase, agent, stratifier, stratum)
    return GapHistory(
        phase=phase,
        agent=agent,
        stratifier=stratifier,
        stratum=stratum,
        points=tuple(points),
        growth=growth,
        alarms=tuple(
            (at, alarm.kind)
            for at, alarm in alarms
            if (alarm.gap.phase, alarm.gap.agent, alarm.gap.stratifier, alarm.gap.stratum) == own
        ),
    )
