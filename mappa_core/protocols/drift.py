"""What a coach reports of itself after an iteration: score gaps between strata, alarms, notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mappa_core.records import Interval, Phase

AlarmKind = Literal["level", "widening"]  # `level`: a gap is too large; `widening`: it grows.


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Raw score (points) of an agent's actions in one stratum minus that in the others, beyond merit, over the run.

    `points` is its average and `now` its current value by linear extrapolation of `growth` (points per iteration).
    Intervals are 95 %, each on its own; None if there is too little data. `against` is the other stratum if there are
    only two; `basis` says how merit was separated. `actions` counts those in the stratum and in the others. `raised`
    lists the alarms that the gap has raised so far.
    """

    phase: Phase
    agent: str
    stratifier: str
    stratum: str
    against: str
    basis: str = "beyond merit"
    actions: tuple[int, int]
    points: Interval | None = None
    growth: Interval | None = None
    now: float | None = None
    acknowledged: bool = False
    raised: tuple[AlarmKind, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A gap that exists (`level`) or grows (`widening`). Each is raised once."""

    kind: AlarmKind
    gap: Gap

    def __str__(self) -> str:
        gap, shown = self.gap, self.gap.points
        assert shown is not None  # no alarm without an estimate
        text = (
            f"the coach gives {gap.agent} {shown.mean:+.2f} points where {gap.stratifier} is {gap.stratum}, against "
            f"{gap.against}, {gap.basis} [{shown.low:+.2f}, {shown.high:+.2f}]"
        )
        if self.kind == "level":
            return text
        assert gap.growth is not None and gap.now is not None
        return f"{text}, growing by {gap.growth.mean:+.3f} an iteration to {gap.now:+.2f} now"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReport:
    """Results of one iteration. `lengths` are gaps of each decile of an agent's actions by sampled tokens (`1`: the
    shortest of their iteration) against the rest; they raise no alarms. `alarms` are the new ones. `notes` are new
    sentences for people, each shown and recorded once. `pause`: why the run stops, with a checkpoint; None: it goes on.
    """

    gaps: tuple[Gap, ...] = ()
    lengths: tuple[Gap, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    notes: tuple[str, ...] = ()
    pause: str | None = None

    @classmethod
    def merge(cls, reports: Iterable[DriftReport | None]) -> DriftReport:
        """Merge the reports of several coaches; None is that of a coach that reports nothing."""
        given = [report for report in reports if report is not None]
        pauses = [report.pause for report in given if report.pause is not None]
        return cls(
            gaps=tuple(gap for report in given for gap in report.gaps),
            lengths=tuple(gap for report in given for gap in report.lengths),
            alarms=tuple(alarm for report in given for alarm in report.alarms),
            notes=tuple(note for report in given for note in report.notes),
            pause="\n".join(pauses) or None,
        )
