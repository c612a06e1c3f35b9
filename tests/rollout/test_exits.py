"""Code of a package that calls exit ends what it was asked for, and not the run; SIGTERM ends the run."""

from __future__ import annotations

import asyncio
import sys

import pytest

from mappa.testing import FixedCoach, play
from mappa_core import Message, Role, Task, Workflow
from mappa_core.errors import Terminated

TASK = Task(id="t", prompt="2 + 2")


class Once(Workflow):
    agents = {"solver": Role(brief="solves")}  # noqa: RUF012

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error

    async def run(self, stage):
        await stage.act("solver", [Message(role="user", content=stage.task.prompt)])
        if self._error is not None:
            raise self._error
        stage.record(correct=1.0)


class Leaving(FixedCoach):
    async def score(self, scene):
        sys.exit(3)


async def test_a_coach_that_calls_exit_has_failed_to_judge():
    trajectory = await play(Once(), TASK, ["4"], coach=Leaving(5.0))
    (verdict,) = trajectory.verdicts
    assert (verdict.status, trajectory.error) == ("failed", None)
    assert verdict.error.startswith("SystemExit: 3 (")


async def test_a_workflow_that_calls_exit_has_failed_on_its_task():
    trajectory = await play(Once(SystemExit(3)), TASK, ["4"])
    assert trajectory.error.kind == "WorkflowError:SystemExit"


def test_a_signal_ends_the_run():
    with pytest.raises(Terminated):
        asyncio.run(play(Once(Terminated(143)), TASK, ["4"]))
