"""What the plays of a run came to that trained nothing: one that was imported, evaluated or observed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mappa.evaluation.heldout import build_evaluation
from mappa.look.coach_eval.shown_scenes import is_imported
from mappa.look.counted_verdicts import BlameCounts, count_blame, is_short, select_counted_rows
from mappa.look.importing.offers import IMPORT_RECIPE
from mappa.runs import RunReader
from mappa_core import ConfigError, RunError, Trajectory
from mappa_core.records import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaysSummary:
    """The plays that `mappa observe RUN` looks at, and what it prints of them.

    `shares` are the mean of the metric, then of the further figures, with their intervals (0-1), None if unknown: over
    `problems`, of which `known` have a value, in `clusters` if some depend on each other. `unsuccessful` of the `count`
    plays have a metric below 1 or ended early; `failures` counts the latter by kind. `judged` verdicts count.
    """

    split: str
    imported: bool
    metric: str
    count: int
    shares: Mapping[str, Interval | None]
    problems: int
    known: int
    clusters: int | None
    unsuccessful: int
    failures: Mapping[str, int]
    judged: int
    blame: BlameCounts

    @property
    def has_outcome(self) -> bool:
        """Whether the outcome of any play is known."""
        return self.blame.has_outcome


def summarize_plays(reader: RunReader) -> PlaysSummary | None:
    """Summarize the plays of a run that trained nothing; None for a training, or if no play has ended."""
    summary = reader.summary
    imported = summary is not None and summary.recipe == IMPORT_RECIPE and is_imported(reader)
    if summary is not None and not imported:
        return None
    split = "train" if reader.counts("train") else "eval"
    ended = [row.iteration for row in reader.trajectories.where(split=split) if row.status != "open"]
    if not ended:
        return None
    plays = reader.outcomes(max(ended), split=split)
    return _summarize(reader, split, plays, imported=imported)


def summarize_stored_plays(folder: Path) -> PlaysSummary | None:
    """As `summarize_plays`; None also of a run whose record of its team or outcomes is missing or damaged: a list and
    its pages show what else it holds."""
    with suppress(RunError, ConfigError), RunReader(folder) as reader:
        return summarize_plays(reader)
    return None


def _summarize(reader: RunReader, split: str, plays: list[Trajectory], *, imported: bool) -> PlaysSummary:
    team, names = reader.team, {play.id for play in plays}
    evaluation = build_evaluation(
        plays, metric=team.metric, figures=team.figures, iteration=plays[0].iteration, require_metric=False
    )
    unsuccessful = {play.id for play in plays if play.error is not None or is_short(play.outcome, team.metric)}
    has_outcome = bool(unsuccessful) or any(team.metric in play.outcome for play in plays)
    # All of them: a play whose verdicts were left out would count as one in which nobody is blamed.
    verdicts = [row for row in reader.latest_verdicts(split, limit=None) if row.trajectory in names]
    counted = select_counted_rows(verdicts)
    return PlaysSummary(
        split=split,
        imported=imported,
        metric=team.metric,
        count=len(plays),
        shares={name: evaluation.with_metric(name).interval for name in evaluation.measures},
        problems=len(evaluation.problems),
        known=evaluation.known,
        clusters=evaluation.cluster_count,
        unsuccessful=len(unsuccessful),
        failures=Counter(play.error.kind for play in plays if play.error is not None),
        judged=len(counted),
        blame=count_blame(counted, unsuccessful if has_outcome else names, has_outcome=has_outcome),
    )
