"""`import mappa_core`: what it holds, and that it costs nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import mappa_core


def imports_for_type_checkers() -> set[tuple[str, str]]:
    """(name, module) of what the front imports for type checkers."""
    tree = ast.parse(Path(mappa_core.__file__).read_text())
    froms = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {(alias.name, str(node.module)) for node in froms for alias in node.names if node.module.startswith("mappa")}


def test_type_checkers_and_programs_see_the_same_names_from_the_same_rooms():
    rooms = {(name, f"mappa_core.{room}") for name, room in mappa_core._ROOM_OF.items()}
    assert imports_for_type_checkers() == rooms


@pytest.mark.parametrize("name", sorted(mappa_core.__all__))
def test_every_name_is_there(name):
    assert getattr(mappa_core, name) is not None
    assert name in dir(mappa_core)


PROMISED = """
    Task Message Step Scene Verdict Trajectory Role ToolResult ToolSpec ToolCall ToolLimits Completion Experience
    Advantages FileChange Breach Usage Sampling Failure Receipt VersionSpan MAX_SCORE NOBODY
    Workflow Coach Tool Toolbox Sandboxed Sandbox Stage TaskSource Workspace Shaper Estimator Loss LossRows Transport
    Reply Tracker TrackedRun Ending Engine Sampler PolicySpec Rewards Split Bench ProgramRun Inspection Reader
    TrajectoryRow
    Offer NoOptions hookimpl Run
    PYTHON PYTHON_SPEC PROGRAM_ENVIRONMENT program_job program_result program_runner
    SMALLEST_LIMIT cut_middle
    MappaError InputError ConfigError PluginError TaskError ModelError RunError RolloutError PromptTooLong ToolError
    CoachError CallError CallFault WorkflowError ReplayError EngineError GuardStop
    Use Cassette Provider Request Secret fault_of_status retry_after one_line
    LoopBound environment_without decode_answer error_in stop_of token_count token_sum
    Imitator Encoded byte_pairs
"""


def test_the_names_that_a_plugin_is_promised():
    assert sorted(mappa_core.__all__) == sorted(PROMISED.split())


def test_the_version_is_that_of_the_distribution():
    assert mappa_core.__version__ == version("mappa-core")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'mappa_core' has no attribute 'Taks'"):
        mappa_core.Taks  # noqa: B018


def test_importing_the_front_imports_no_room():
    program = "import sys, mappa_core; print([name for name in sys.modules if name.startswith('mappa_core.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
