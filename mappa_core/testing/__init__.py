"""Test tools for plugin authors: run a workflow without a model, a local fake provider, and a contract to subclass for
every kind of offer. Modules are imported on first use of a name; the names are listed in `__init__.pyi`.

    from mappa_core import Task
    from mappa_core.testing import WorkflowContract, play

    async def test_solver_acts_first():
        trajectory = await play(MyTeam(Options()), Task(id="1", prompt="2+2?"), replies=["4", "\\\\boxed{4}"])
        assert trajectory.steps[0].agent == "solver"

The contracts need `pip install "mappa-core[test]"`, and `asyncio_mode = "auto"` in the settings of pytest."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
