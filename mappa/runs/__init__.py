"""The public reader of runs: `runs.open("runs/x")` reads what a run has recorded, while it writes or years later.

A run's records are tables: `trajectories`, `steps`, `verdicts`, `iterations` and `evaluations` of a `RunReader` are
iterables of typed rows, and data frames by `to_pandas()` and `to_arrow()`. See docs/runs.md.
"""

from mappa.evaluation.heldout import Evaluation as Evaluation
from mappa.evaluation.heldout import build_evaluation as build_evaluation
from mappa.runs.reader import RunReader as RunReader
from mappa.runs.reader import open as open  # noqa: A004
from mappa.runs.rows import EvaluationRow as EvaluationRow
from mappa.runs.rows import RaisedWarning as RaisedWarning
from mappa.runs.rows import StepRow as StepRow
from mappa.runs.rows import TrajectoryRow as TrajectoryRow
from mappa.runs.rows import VerdictRow as VerdictRow
from mappa.runs.table import RolloutTable as RolloutTable
from mappa.runs.table import Table as Table
from mappa.store.agent_columns import AGENT_COLUMNS as AGENT_COLUMNS
from mappa.store.agent_columns import AgentColumn as AgentColumn
from mappa.store.agent_columns import AgentSummary as AgentSummary
from mappa.store.agent_columns import summarize_agents as summarize_agents
from mappa.store.checkpoint_ref import ResolvedCheckpoint as ResolvedCheckpoint
from mappa.store.checkpoint_ref import resolve_checkpoint as resolve_checkpoint
from mappa.store.folder import CONFIG as CONFIG
from mappa.store.folder import RunFolder as RunFolder
from mappa.store.folder import is_run_folder as is_run_folder
from mappa.store.folder import list_run_folders as list_run_folders
from mappa.store.folder import new_run_name as new_run_name
from mappa.store.iteration_report import CoachFigures as CoachFigures
from mappa.store.iteration_report import IterationReport as IterationReport
from mappa.store.iteration_report import VerdictCount as VerdictCount
from mappa.store.search_index import MAX_ENDINGS as MAX_ENDINGS
from mappa.store.summary import EvalSummary as EvalSummary
from mappa.store.summary import FigureSummary as FigureSummary
from mappa.store.summary import StratumSummary as StratumSummary
from mappa.store.summary import Summary as Summary
from mappa.store.summary import write_summary as write_summary
from mappa.store.writer import PROMPT_ROUND_EVENT as PROMPT_ROUND_EVENT
from mappa.training.iteration_figures import count_verdicts as count_verdicts
from mappa_core.codec import from_json as from_json
from mappa_core.codec import to_json as to_json
from mappa_core.credit.counterfactual import Credit as Credit
from mappa_core.credit.counterfactual import counterfactual_credit as counterfactual_credit
from mappa_core.files import read_versioned as read_versioned
from mappa_core.files import storage_errors as storage_errors
from mappa_core.files import write_atomic as write_atomic
from mappa_core.protocols import ALARM_KINDS as ALARM_KINDS
from mappa_core.protocols import Alarm as Alarm
from mappa_core.protocols import AlarmKind as AlarmKind
from mappa_core.protocols import Correlation as Correlation
from mappa_core.protocols import DriftReport as DriftReport
from mappa_core.protocols import Gap as Gap
from mappa_core.records import Label as Label
from mappa_core.records import Phase as Phase
