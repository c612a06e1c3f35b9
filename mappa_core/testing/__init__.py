"""For authors of plugins: play a workflow without a model, and contracts to subclass. Imports nothing heavy.

from mappa_core import Task
from mappa_core.testing import WorkflowContract, play

async def test_solver_is_asked_first():
    trajectory = await play(MyTeam(Options()), Task(id="1", prompt="2+2?"), replies=["4", "\\\\boxed{4}"])
    assert trajectory.steps[0].agent == "solver"
"""

from mappa_core.testing.contracts import CoachContract, WorkflowContract
from mappa_core.testing.fakes import FixedCoach, MemoryRecorder, ScriptedEngine, ScriptedSampler
from mappa_core.testing.play import play

__all__ = [
    "CoachContract",
    "FixedCoach",
    "MemoryRecorder",
    "ScriptedEngine",
    "ScriptedSampler",
    "WorkflowContract",
    "play",
]
