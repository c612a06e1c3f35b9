"""The most telling trajectories of a run: where judgement and outcome part, and what went worst and best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from mappa_core.records import Phase, Trajectory
from mappa_core.store.finding import Wanted
from mappa_core.store.judgements import Judgement
from mappa_core.store.reader import Reader

MOST = 5
LOOKED_AT = 50_000
"""Verdicts of the newest trajectories of a split that are looked at."""
AT_ODDS = 2.0
"""Points between members of a verdict from which they are at odds."""
_PHASES: Sequence[Phase] = ("again", "after", "live")
HOW = (
    f"Of the newest {LOOKED_AT:,} verdicts of training rollouts (where there are none, of held-out ones), each rule "
    "takes the trajectory that it fits best, and none is taken twice."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """A trajectory, and the rule that chose it, in words."""

    why: str
    trajectory: Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A trajectory by the scores of its actions (points, 0-10), live ones before those in hindsight and those asked for
    again: their mean and the lowest. `succeeded`: its metric is at its full 1; None where it has none."""

    id: str
    mean: float
    lowest: float
    succeeded: bool | None


def telling(reader: Reader, metric: str) -> tuple[Telling, ...]:
    """At most `MOST` trajectories; fewer where the run has fewer, or nobody judged it."""
    judged = _judged(reader, metric)
    found: dict[str, str] = {}
    for why, names in _rules(reader, judged):
        name = next((name for name in names if name not in found), None)
        if name is not None and len(found) < MOST:
            found[name] = why
    return tuple(Telling(why=why, trajectory=reader.trajectory(name)) for name, why in found.items())


def _rules(reader: Reader, judged: Sequence[_Judged]) -> Iterator[tuple[str, list[str]]]:
    """Every rule in words, with the trajectories that it fits, the best first."""
    failed = [one for one in judged if one.succeeded is False]
    solved = [one for one in judged if one.succeeded]
    yield (
        "praised, and failed: the highest mean score of those that did not succeed",
        _by(failed, lambda one: -one.mean),
    )
    yield "blamed, and solved: the lowest mean score of those that succeeded", _by(solved, lambda one: one.mean)
    yield f"members at odds: the widest gap within one verdict, {AT_ODDS:g} points or more", _at_odds(reader)
    yield "the action with the lowest score", _by(judged, lambda one: one.lowest)
    yield "broken off: the latest that could not be finished", _broken_off(reader)
    yield "solved, and the highest mean score", _by(solved, lambda one: -one.mean)
    yield "failed, and the lowest mean score", _by(failed, lambda one: one.mean)


def _judged(reader: Reader, metric: str) -> list[_Judged]:
    """Trajectories whose actions were scored, the newest first."""
    verdicts: Sequence[Judgement] = ()
    for split in ("train", "eval"):
        verdicts = verdicts or reader.judgements(split, limit=LOOKED_AT)
    scores: dict[str, dict[str, float]] = {}
    marks: dict[str, bool | None] = {}
    for one in sorted(verdicts, key=lambda one: _PHASES.index(one.phase)):
        if one.score is not None:
            scores.setdefault(one.trajectory, {})[one.step] = one.score
            marks[one.trajectory] = one.outcome[metric] >= 1.0 if metric in one.outcome else None
    return [
        _Judged(id=name, mean=fmean(own.values()), lowest=min(own.values()), succeeded=marks[name])
        for name, own in scores.items()
    ]


def _by(judged: Sequence[_Judged], key: Callable[[_Judged], float]) -> list[str]:
    return [one.id for one in sorted(judged, key=lambda one: (key(one), one.id))[:MOST]]


def _at_odds(reader: Reader) -> list[str]:
    """Runs that are not indexed know no members apart."""
    if not reader.is_indexed:
        return []
    rows = reader.find(Wanted(disagreement=AT_ODDS), limit=200)
    return [one.row.id for one in sorted(rows, key=lambda one: (-(one.marks.disagreement or 0.0), one.row.id))]


def _broken_off(reader: Reader) -> list[str]:
    if not reader.is_indexed:
        return []
    kinds = reader.choices().failure
    rows = [row for kind in kinds for row in reader.find(Wanted(failure=kind), limit=1)]
    return [one.row.id for one in sorted(rows, key=lambda one: -one.number)]
