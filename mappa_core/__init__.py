"""Public API for plugins and notebooks. Names are imported from their modules on first use, so that `import mappa_core`
is fast."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mappa_core.calls.errors import Secret as Secret
    from mappa_core.calls.errors import fault_of_status as fault_of_status
    from mappa_core.calls.errors import one_line as one_line
    from mappa_core.calls.errors import retry_after as retry_after
    from mappa_core.calls.loop_bound import LoopBound as LoopBound
    from mappa_core.calls.loop_bound import environment_without as environment_without
    from mappa_core.calls.parse import decode_answer as decode_answer
    from mappa_core.calls.parse import error_in as error_in
    from mappa_core.calls.parse import stop_of as stop_of
    from mappa_core.calls.parse import token_count as token_count
    from mappa_core.calls.parse import token_sum as token_sum
    from mappa_core.config.schema import Use as Use
    from mappa_core.defaults.row_files import Rows as Rows
    from mappa_core.defaults.row_files import read_rows as read_rows
    from mappa_core.defaults.task_sources import HuggingFaceOptions as HuggingFaceOptions
    from mappa_core.defaults.task_sources import dataset_rows as dataset_rows
    from mappa_core.engine.tiny.supervised_trainer import Encoded as Encoded
    from mappa_core.engine.tiny.supervised_trainer import Imitator as Imitator
    from mappa_core.engine.tiny.supervised_trainer import byte_pairs as byte_pairs
    from mappa_core.errors import CallError as CallError
    from mappa_core.errors import CallFault as CallFault
    from mappa_core.errors import CoachError as CoachError
    from mappa_core.errors import ConfigError as ConfigError
    from mappa_core.errors import EngineError as EngineError
    from mappa_core.errors import GuardStop as GuardStop
    from mappa_core.errors import InputError as InputError
    from mappa_core.errors import MappaError as MappaError
    from mappa_core.errors import ModelError as ModelError
    from mappa_core.errors import PluginError as PluginError
    from mappa_core.errors import PromptTooLong as PromptTooLong
    from mappa_core.errors import ReplayError as ReplayError
    from mappa_core.errors import RolloutError as RolloutError
    from mappa_core.errors import RunError as RunError
    from mappa_core.errors import TaskError as TaskError
    from mappa_core.errors import ToolError as ToolError
    from mappa_core.errors import WorkflowError as WorkflowError
    from mappa_core.experience import Advantages as Advantages
    from mappa_core.experience import Experience as Experience
    from mappa_core.experience import Receipt as Receipt
    from mappa_core.hookspecs import NoOptions as NoOptions
    from mappa_core.hookspecs import Offer as Offer
    from mappa_core.hookspecs import hookimpl as hookimpl
    from mappa_core.protocols import Bench as Bench
    from mappa_core.protocols import Cassette as Cassette
    from mappa_core.protocols import Coach as Coach
    from mappa_core.protocols import Ending as Ending
    from mappa_core.protocols import Engine as Engine
    from mappa_core.protocols import Estimator as Estimator
    from mappa_core.protocols import Loss as Loss
    from mappa_core.protocols import LossRows as LossRows
    from mappa_core.protocols import PolicySpec as PolicySpec
    from mappa_core.protocols import ProgramRun as ProgramRun
    from mappa_core.protocols import Provider as Provider
    from mappa_core.protocols import Reply as Reply
    from mappa_core.protocols import Request as Request
    from mappa_core.protocols import Rewards as Rewards
    from mappa_core.protocols import Sampler as Sampler
    from mappa_core.protocols import Sandboxed as Sandboxed
    from mappa_core.protocols import Shaper as Shaper
    from mappa_core.protocols import Split as Split
    from mappa_core.protocols import Stage as Stage
    from mappa_core.protocols import TaskSource as TaskSource
    from mappa_core.protocols import Tool as Tool
    from mappa_core.protocols import Toolbox as Toolbox
    from mappa_core.protocols import TrackedRun as TrackedRun
    from mappa_core.protocols import Tracker as Tracker
    from mappa_core.protocols import Transport as Transport
    from mappa_core.protocols import Workflow as Workflow
    from mappa_core.protocols import Workspace as Workspace
    from mappa_core.records import MAX_SCORE as MAX_SCORE
    from mappa_core.records import NOBODY as NOBODY
    from mappa_core.records import Breach as Breach
    from mappa_core.records import Completion as Completion
    from mappa_core.records import Failure as Failure
    from mappa_core.records import FileChange as FileChange
    from mappa_core.records import Inspection as Inspection
    from mappa_core.records import Message as Message
    from mappa_core.records import Role as Role
    from mappa_core.records import Sampling as Sampling
    from mappa_core.records import Sandbox as Sandbox
    from mappa_core.records import Scene as Scene
    from mappa_core.records import Step as Step
    from mappa_core.records import Task as Task
    from mappa_core.records import ToolCall as ToolCall
    from mappa_core.records import ToolLimits as ToolLimits
    from mappa_core.records import ToolResult as ToolResult
    from mappa_core.records import ToolSpec as ToolSpec
    from mappa_core.records import Trajectory as Trajectory
    from mappa_core.records import Usage as Usage
    from mappa_core.records import Verdict as Verdict
    from mappa_core.records import VersionSpan as VersionSpan
    from mappa_core.store.reader import Reader as Reader
    from mappa_core.store.reader import TrajectoryRow as TrajectoryRow
    from mappa_core.tools.parse_calls import PYTHON as PYTHON
    from mappa_core.tools.python.messages import PROGRAM_ENVIRONMENT as PROGRAM_ENVIRONMENT
    from mappa_core.tools.python.messages import PYTHON_SPEC as PYTHON_SPEC
    from mappa_core.tools.python.messages import program_job as program_job
    from mappa_core.tools.python.messages import program_result as program_result
    from mappa_core.tools.python.messages import program_runner as program_runner
    from mappa_core.tools.truncate import SMALLEST_LIMIT as SMALLEST_LIMIT
    from mappa_core.tools.truncate import cut_middle as cut_middle
    from mappa_core.training.run import Run as Run

    __version__: str

_ROOMS = {
    "calls.loop_bound": """
        LoopBound environment_without""",
    "calls.errors": """
        Secret fault_of_status one_line retry_after""",
    "calls.parse": """
        decode_answer error_in stop_of token_count token_sum""",
    "config.schema": """
        Use""",
    "engine.tiny.supervised_trainer": """
        Encoded Imitator byte_pairs""",
    "errors": """
        MappaError InputError ConfigError PluginError TaskError ModelError RunError
        RolloutError PromptTooLong ToolError CoachError CallError CallFault WorkflowError ReplayError EngineError
        GuardStop""",
    "experience": """
        Advantages Experience Receipt""",
    "hookspecs": """
        NoOptions Offer hookimpl""",
    "protocols": """
        Bench Cassette Coach Ending Engine Estimator Loss LossRows PolicySpec Provider ProgramRun Reply Request Rewards
        Sampler Sandboxed Shaper Split Stage TaskSource Tool Toolbox TrackedRun Tracker Transport Workflow Workspace""",
    "records": """
        MAX_SCORE NOBODY Breach Completion Failure FileChange Inspection Message Role Sampling Sandbox Scene Step Task
        ToolCall ToolLimits ToolResult ToolSpec Trajectory Usage Verdict VersionSpan""",
    "defaults.row_files": """
        Rows read_rows""",
    "defaults.task_sources": """
        HuggingFaceOptions dataset_rows""",
    "store.reader": """
        Reader TrajectoryRow""",
    "tools.parse_calls": """
        PYTHON""",
    "tools.truncate": """
        SMALLEST_LIMIT cut_middle""",
    "tools.python.messages": """
        PROGRAM_ENVIRONMENT PYTHON_SPEC program_job program_result program_runner""",
    "training.run": """
        Run""",
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = sorted(_ROOM_OF)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("mappa-core")
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
