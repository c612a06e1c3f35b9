"""For authors of plugins: play a workflow without a model, a provider on this machine, and contracts to subclass.
Imports nothing heavy.

from mappa_core import Task
from mappa_core.testing import WorkflowContract, play

async def test_solver_is_asked_first():
    trajectory = await play(MyTeam(Options()), Task(id="1", prompt="2+2?"), replies=["4", "\\\\boxed{4}"])
    assert trajectory.steps[0].agent == "solver"
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mappa_core.testing.contracts import CoachContract, WorkflowContract
from mappa_core.testing.fakes import FixedCoach, MemoryRecorder, ScriptedEngine, ScriptedSampler
from mappa_core.testing.play import play

if TYPE_CHECKING:
    from mappa_core.testing.conformance.batches import expected_gradient, possible_batches
    from mappa_core.testing.conformance.contract import EstimatorContract
    from mappa_core.testing.conformance.exact import policy_gradient
    from mappa_core.testing.conformance.process import Action, Decision, DecisionProcess
    from mappa_core.testing.tools import ExecutorContract, ToolContract
    from mappa_core.testing.transports import TransportContract
    from mappa_core.testing.wire import WireAnswer, WireRequest, WireServer, answering, captured

_HEAVY = {
    "Action": "conformance.process",
    "Decision": "conformance.process",
    "DecisionProcess": "conformance.process",
    "EstimatorContract": "conformance.contract",
    "ExecutorContract": "tools",
    "ToolContract": "tools",
    "TransportContract": "transports",
    "WireAnswer": "wire",
    "WireRequest": "wire",
    "WireServer": "wire",
    "answering": "wire",
    "captured": "wire",
    "expected_gradient": "conformance.batches",
    "policy_gradient": "conformance.exact",
    "possible_batches": "conformance.batches",
}
"""What needs aiohttp, jsonschema or pytest, or is seldom wanted, by its module: fetched when it is first used."""

__all__ = [
    "Action",
    "CoachContract",
    "Decision",
    "DecisionProcess",
    "EstimatorContract",
    "ExecutorContract",
    "FixedCoach",
    "MemoryRecorder",
    "ScriptedEngine",
    "ScriptedSampler",
    "ToolContract",
    "TransportContract",
    "WireAnswer",
    "WireRequest",
    "WireServer",
    "WorkflowContract",
    "answering",
    "captured",
    "expected_gradient",
    "play",
    "policy_gradient",
    "possible_batches",
]


def __getattr__(name: str) -> Any:
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HEAVY[name]}"), name)
