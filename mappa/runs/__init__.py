"""The public reader of runs: `runs.open("runs/x")` reads what a run has recorded, while it writes or years later.

A run's records are tables: `trajectories`, `steps`, `verdicts`, `iterations` and `evaluations` of a `RunReader` are
iterables of typed rows, and data frames by `to_pandas()` and `to_arrow()`. See docs/runs.md.
"""

from mappa.evaluation.heldout import Evaluation as Evaluation
from mappa.evaluation.heldout import build_evaluation as build_evaluation
from mappa.runs.reader import RunReader as RunReader
from mappa.runs.reader import open as open  # noqa: A004
from mappa.runs.rows import TrajectoryRow as TrajectoryRow
from mappa.runs.table import Table as Table
from mappa.store.folder import RunFolder as RunFolder
from mappa.store.writer import PROMPT_ROUND_EVENT as PROMPT_ROUND_EVENT
