"""Test tools for plugin authors: run a workflow without a model, a local fake provider, and a contract to subclass for
every kind of offer. Modules are imported on first use of a name.

    from mappa_core import Task
    from mappa_core.testing import WorkflowContract, play

    async def test_solver_acts_first():
        trajectory = await play(MyTeam(Options()), Task(id="1", prompt="2+2?"), replies=["4", "\\\\boxed{4}"])
        assert trajectory.steps[0].agent == "solver"

The contracts need `pip install "mappa-core[test]"`, and `asyncio_mode = "auto"` in the settings of pytest."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mappa_core.testing.conformance.batches import expected_gradient as expected_gradient
    from mappa_core.testing.conformance.batches import possible_batches as possible_batches
    from mappa_core.testing.conformance.decision_process import Action as Action
    from mappa_core.testing.conformance.decision_process import Decision as Decision
    from mappa_core.testing.conformance.decision_process import DecisionProcess as DecisionProcess
    from mappa_core.testing.conformance.estimator_contract import EstimatorContract as EstimatorContract
    from mappa_core.testing.conformance.exact_gradient import policy_gradient as policy_gradient
    from mappa_core.testing.contracts import CoachContract as CoachContract
    from mappa_core.testing.contracts import WorkflowContract as WorkflowContract
    from mappa_core.testing.engines import EngineContract as EngineContract
    from mappa_core.testing.fakes import FixedCoach as FixedCoach
    from mappa_core.testing.fakes import MemoryRecorder as MemoryRecorder
    from mappa_core.testing.fakes import ScriptedEngine as ScriptedEngine
    from mappa_core.testing.fakes import ScriptedSampler as ScriptedSampler
    from mappa_core.testing.packages import PackageContract as PackageContract
    from mappa_core.testing.play import play as play
    from mappa_core.testing.play import scenes_of as scenes_of
    from mappa_core.testing.shapers import ShaperContract as ShaperContract
    from mappa_core.testing.tasks import TaskSourceContract as TaskSourceContract
    from mappa_core.testing.tools import ExecutorContract as ExecutorContract
    from mappa_core.testing.tools import ToolContract as ToolContract
    from mappa_core.testing.trackers import TrackerContract as TrackerContract
    from mappa_core.testing.transports import TransportContract as TransportContract
    from mappa_core.testing.wire_server import WireAnswer as WireAnswer
    from mappa_core.testing.wire_server import WireRequest as WireRequest
    from mappa_core.testing.wire_server import WireServer as WireServer
    from mappa_core.testing.wire_server import answer_from_capture as answer_from_capture
    from mappa_core.testing.wire_server import json_answer as json_answer

_MODULES = {
    "conformance.batches": "expected_gradient possible_batches",
    "conformance.estimator_contract": "EstimatorContract",
    "conformance.exact_gradient": "policy_gradient",
    "conformance.decision_process": "Action Decision DecisionProcess",
    "contracts": "CoachContract WorkflowContract",
    "engines": "EngineContract",
    "fakes": "FixedCoach MemoryRecorder ScriptedEngine ScriptedSampler",
    "packages": "PackageContract",
    "play": "play scenes_of",
    "shapers": "ShaperContract",
    "tasks": "TaskSourceContract",
    "tools": "ExecutorContract ToolContract",
    "trackers": "TrackerContract",
    "transports": "TransportContract",
    "wire_server": "WireAnswer WireRequest WireServer answer_from_capture json_answer",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
