"""Selects highlights of a run: trajectories where score and outcome disagree, and the worst and best ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from mappa.look.view.trajectory_search import TrajectoryFilter, TrajectorySearch
from mappa.runs import RunReader
from mappa.runs.rows import VerdictRow
from mappa_core import Trajectory

MAX_HIGHLIGHTS = 5
MAX_VERDICTS = 50_000
"""Verdicts that are considered, those of the newest trajectories of a split."""
MIN_DISAGREEMENT = 2.0
"""Points between members of a verdict from which they count as disagreeing."""
_PHASES = ("again", "after", "live")
SELECTION_NOTE = (
    f"Of the newest {MAX_VERDICTS:,} verdicts of training rollouts (where there are none, of held-out ones), each rule "
    "takes the trajectory that it fits best, and none is taken twice."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Highlight:
    """A trajectory and the rule that selected it, as text."""

    why: str
    trajectory: Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredTrajectory:
    """Mean and lowest score of a trajectory's actions (points, 0-10). Live scores take precedence over those in
    hindsight, and these over later ones of `mappa judge`. `succeeded`: its metric is 1; None if it has none."""

    id: str
    mean: float
    lowest: float
    succeeded: bool | None


def select_highlights(reader: RunReader, metric: str) -> tuple[Highlight, ...]:
    """Select at most `MAX_HIGHLIGHTS` trajectories; fewer if the run has fewer or was not judged."""
    judged = _score_trajectories(reader, metric)
    found: dict[str, str] = {}
    for why, names in _rules(reader, judged):
        name = next((name for name in names if name not in found), None)
        if name is not None and len(found) < MAX_HIGHLIGHTS:
            found[name] = why
    return tuple(Highlight(why=why, trajectory=reader.trajectory(name)) for name, why in found.items())


def _rules(reader: RunReader, judged: Sequence[_ScoredTrajectory]) -> Iterator[tuple[str, list[str]]]:
    """Yield every rule as text with the ids of matching trajectories, the best match first."""
    failed = [one for one in judged if one.succeeded is False]
    solved = [one for one in judged if one.succeeded]
    yield (
        "praised, and failed: the highest mean score of those that did not succeed",
        _rank_by(failed, lambda one: -one.mean),
    )
    yield "blamed, and solved: the lowest mean score of those that succeeded", _rank_by(solved, lambda one: one.mean)
    yield (
        f"members at odds: the widest gap within one verdict, {MIN_DISAGREEMENT:g} points or more",
        _disagreeing(reader),
    )
    yield "the action with the lowest score", _rank_by(judged, lambda one: one.lowest)
    yield "broken off: the latest that could not be finished", _unfinished(reader)
    yield "solved, and the highest mean score", _rank_by(solved, lambda one: -one.mean)
    yield "failed, and the lowest mean score", _rank_by(failed, lambda one: one.mean)


def _score_trajectories(reader: RunReader, metric: str) -> list[_ScoredTrajectory]:
    """Score the trajectories that have scored actions, the newest first."""
    verdicts: Sequence[VerdictRow] = ()
    for split in ("train", "eval"):
        verdicts = verdicts or reader.latest_verdicts(split, limit=MAX_VERDICTS)
    scores: dict[str, dict[str, float]] = {}
    succeeded: dict[str, bool | None] = {}
    for one in sorted(verdicts, key=lambda one: _PHASES.index(one.verdict.phase)):
        if one.verdict.score is not None:
            scores.setdefault(one.trajectory, {})[one.verdict.step] = one.verdict.score
            succeeded[one.trajectory] = one.outcome[metric] >= 1.0 if metric in one.outcome else None
    return [
        _ScoredTrajectory(id=name, mean=fmean(own.values()), lowest=min(own.values()), succeeded=succeeded[name])
        for name, own in scores.items()
    ]


def _rank_by(judged: Sequence[_ScoredTrajectory], key: Callable[[_ScoredTrajectory], float]) -> list[str]:
    return [one.id for one in sorted(judged, key=lambda one: (key(one), one.id))[:MAX_HIGHLIGHTS]]


def _disagreeing(reader: RunReader) -> list[str]:
    """Trajectories whose verdicts have disagreeing members."""
    search = TrajectorySearch(reader)
    rows = search.find(TrajectoryFilter(disagreement=MIN_DISAGREEMENT), limit=200)
    return [one.row.id for one in sorted(rows, key=lambda one: (-(one.facets.disagreement or 0.0), one.row.id))]


def _unfinished(reader: RunReader) -> list[str]:
    search = TrajectorySearch(reader)
    kinds = search.load_choices().failure
    rows = [row for kind in kinds for row in search.find(TrajectoryFilter(failure=kind), limit=1)]
    return [one.row.id for one in sorted(rows, key=lambda one: -one.number)]
