"""Storage of a run: folder, records, checkpoints and summary."""

from mappa_core.store.agent_columns import AgentSummary
from mappa_core.store.checkpoint import Checkpoint, Checkpoints, Manifest
from mappa_core.store.codec import from_json, to_json
from mappa_core.store.folder import RunFolder, list_run_folders
from mappa_core.store.queries import Event
from mappa_core.store.summary import (
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
from mappa_core.store.writer import RecordedTrajectory, Store

__all__ = [
    "AgentSummary",
    "Checkpoint",
    "Checkpoints",
    "CoachSummary",
    "EvalSummary",
    "Event",
    "FigureSummary",
    "Interval",
    "Manifest",
    "RecordedTrajectory",
    "RunFolder",
    "Seconds",
    "SelectionSummary",
    "Store",
    "StratumSummary",
    "Summary",
    "from_json",
    "list_run_folders",
    "read_summary",
    "to_json",
    "write_summary",
]
