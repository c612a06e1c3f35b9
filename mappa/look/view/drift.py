"""Reads what a run's coach reported of itself: gaps between strata over the iterations, alarms and notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from mappa.runs import RunReader
from mappa.store.iteration_report import IterationReport
from mappa_core import RunError
from mappa_core.protocols import Alarm, AlarmKind, Gap
from mappa_core.records import Interval

GapKey = tuple[str, str, str, str]
"""Phase, agent, stratifier and stratum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapHistory:
    """The gap of an agent's raw scores, in verdicts of one `phase`, between a stratum and the others, beyond merit.

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
class CoachNote:
    """What a coach said of itself, first after `iteration`, such as that nothing tells its preference from merit."""

    iteration: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftHistory:
    """All monitored gaps, all alarms, and the coach's notes, each once."""

    gaps: tuple[GapHistory, ...]
    alarms: tuple[RaisedAlarm, ...]
    notes: tuple[CoachNote, ...]


def read_drift(reader: RunReader) -> DriftHistory:
    """Read the drift that the run of `reader` has recorded so far."""
    try:
        alarms = [
            (event.body["iteration"], alarm)
            for event in reader.events("drift")
            for alarm in msgspec.convert(event.body["alarms"], tuple[Alarm, ...])
        ]
    except msgspec.ValidationError as error:
        raise RunError(f"{reader.folder}: it is damaged: an alarm: {error}") from error
    return DriftHistory(
        gaps=_gaps(list(reader.iterations), alarms),
        alarms=tuple(RaisedAlarm(iteration=at, kind=alarm.kind, text=str(alarm)) for at, alarm in alarms),
        notes=_read_notes(reader),
    )


def _read_notes(reader: RunReader) -> tuple[CoachNote, ...]:
    said: dict[str, int] = {}
    try:
        for event in (msgspec.convert(event.body, _NotesEvent) for event in reader.events("coach")):
            said |= {note: event.iteration for note in event.notes if note not in said}
    except msgspec.ValidationError as error:
        raise RunError(f"{reader.folder}: it is damaged: a note of the coach: {error}") from error
    return tuple(CoachNote(iteration=at, text=note) for note, at in said.items())


class _NotesEvent(msgspec.Struct):
    """The body of an event `coach`."""

    iteration: int
    notes: tuple[str, ...]


def _gaps(iterations: Iterable[IterationReport], alarms: Sequence[tuple[int, Alarm]]) -> tuple[GapHistory, ...]:
    found: dict[GapKey, list[tuple[int, Interval]]] = {}
    growth: dict[GapKey, float] = {}
    for report in iterations:
        for gap in report.drift.gaps:
            if gap.points is not None:
                found.setdefault(_key(gap), []).append((report.iteration, gap.points))
            if gap.growth is not None:
                growth[_key(gap)] = gap.growth.mean
    return tuple(_history(key, points, growth.get(key), alarms) for key, points in found.items())


def _key(gap: Gap) -> GapKey:
    return gap.phase, gap.agent, gap.stratifier, gap.stratum


def _history(
    key: GapKey, points: Sequence[tuple[int, Interval]], growth: float | None, alarms: Sequence[tuple[int, Alarm]]
) -> GapHistory:
    phase, agent, stratifier, stratum = key
    return GapHistory(
        phase=phase,
        agent=agent,
        stratifier=stratifier,
        stratum=stratum,
        points=tuple(points),
        growth=growth,
        alarms=tuple((at, alarm.kind) for at, alarm in alarms if _key(alarm.gap) == key),
    )
