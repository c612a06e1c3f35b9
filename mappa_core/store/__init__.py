"""Storage of a run: folder, records, checkpoints and summary."""

from mappa_core.store.checkpoint import Checkpoint, Checkpoints, Manifest
from mappa_core.store.codec import from_json, to_json
from mappa_core.store.folder import RunFolder, list_run_folders
from mappa_core.store.reader import Event, FoundTrajectory, Reader, TrajectoryRow, VerdictStats
from mappa_core.store.search import FilterChoices, TrajectoryFacets, TrajectoryFilter
from mappa_core.store.summary import (
    AgentSummary,
    CoachSummary,
    EvalSummary,
    FigureSummary,
    Interval,
    Seconds,
    SelectionSummary,
    StratumSummary,
    Summary,
    read_summary,
    write_summary,
)
from mappa_core.store.verdict_outcomes import VerdictWithOutcome
from mappa_core.store.writer import RecordedTrajectory, Store

__all__ = [
    "AgentSummary",
    "Checkpoint",
    "Checkpoints",
    "CoachSummary",
    "EvalSummary",
    "Event",
    "FigureSummary",
    "FilterChoices",
    "FoundTrajectory",
    "Interval",
    "Manifest",
    "Reader",
    "RecordedTrajectory",
    "RunFolder",
    "Seconds",
    "SelectionSummary",
    "Store",
    "StratumSummary",
    "Summary",
    "TrajectoryFacets",
    "TrajectoryFilter",
    "TrajectoryRow",
    "VerdictStats",
    "VerdictWithOutcome",
    "from_json",
    "list_run_folders",
    "read_summary",
    "to_json",
    "write_summary",
]
