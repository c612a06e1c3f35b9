"""Everything that a run keeps: its folder, its records, its checkpoints, its summary."""

from mappa_core.store.checkpoint import Checkpoint, Checkpoints, Manifest
from mappa_core.store.codec import from_json, to_json
from mappa_core.store.database import Recorded, Store
from mappa_core.store.finding import Choices, Marks, Wanted
from mappa_core.store.folder import RunFolder, run_folders
from mappa_core.store.judgements import Judgement
from mappa_core.store.reader import Event, FoundRow, Reader, TrajectoryRow, VerdictRow
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

__all__ = [
    "AgentSummary",
    "Checkpoint",
    "Checkpoints",
    "Choices",
    "CoachSummary",
    "EvalSummary",
    "Event",
    "FigureSummary",
    "FoundRow",
    "Interval",
    "Judgement",
    "Manifest",
    "Marks",
    "Reader",
    "Recorded",
    "RunFolder",
    "Seconds",
    "SelectionSummary",
    "Store",
    "StratumSummary",
    "Summary",
    "TrajectoryRow",
    "VerdictRow",
    "Wanted",
    "from_json",
    "read_summary",
    "run_folders",
    "to_json",
    "write_summary",
]
