"""A team of a notebook over a scripted engine: nothing of it is in a package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import mappa
from mappa.look import compare
from mappa.look.demo import unpack_demo
from mappa.runs.html_table import html_table as build_table
from mappa.testing import ScriptedEngine
from mappa_core import Message, Role, Verdict, Workflow

TASKS = {
    "train": [{"id": f"n{number}", "prompt": str(number), "answer": 2 * number} for number in range(2, 12)],
    "eval": [{"id": f"n{number}", "prompt": str(number), "answer": 2 * number} for number in range(20, 24)],
}


class Doubles(Workflow):
    agents = {"doubler": Role(brief="doubles"), "checker": Role(brief="repeats")}  # noqa: RUF012

    async def run(self, stage):
        doubled = await stage.act("doubler", [Message(role="user", content=stage.task.prompt)])
        checked = await stage.act("checker", [Message(role="user", content=f"={doubled.reply.content}")])
        stage.record(correct=await stage.grade(checked.reply.content))

    async def grade(self, text, task):
        return float(text == task.reference)


def strict(scene):
    if scene.step.agent == "checker":
        return 5, "It repeats."
    right = scene.step.reply.content == scene.task.reference
    return Verdict.scored(10 if right else 0, "It was compared.", blame=None if right else "doubler")


def doubling(prompt, sampling):
    """Right for even numbers below 20; the checker repeats what stands behind the equals sign."""
    asked = prompt.removeprefix("<user>").removesuffix("<assistant>")
    if asked.startswith("="):
        return asked[1:]
    if not asked.isdecimal():
        return "?"
    number = int(asked)
    return str(2 * number) if number < 20 and number % 2 == 0 else str(number)


def build_engine():
    return ScriptedEngine(doubling)


SHORT = {
    "train": {"iterations": 2, "prompts": 2},
    "engine": {"use": "function", "options": {"function": f"{__name__}:build_engine"}},
    "estimator": {"use": "reinforce"},
    "model": "none",
}
OBJECTS = {"workflow": Doubles, "tasks": TASKS, "coach": {"use": strict, "reference_for": ["doubler"]}}


@pytest.fixture(scope="session")
def notebook_root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="session")
def settings(notebook_root) -> dict:
    """Settings of a short training over the scripted engine."""
    return {**SHORT, "run": {"root": str(notebook_root)}, "progress": False}


@pytest.fixture(scope="session")
def objects() -> dict:
    """The team of a notebook: its workflow, tasks and coach."""
    return OBJECTS


@pytest.fixture(scope="session")
def trained(settings, objects) -> mappa.TrainedRun:
    """What a training of the team came to; nothing may be added to it."""
    return mappa.train(**objects, **settings)


# --- what these tests look at that is another room's: named here alone ------------------------------------------------


@pytest.fixture
def demo(tmp_path) -> Path:
    """The run that ships with Mappa."""
    return unpack_demo(tmp_path)


@pytest.fixture
def html_table() -> Callable[..., str]:
    """What builds every table of HTML."""
    return build_table


@pytest.fixture
def compare_module() -> ModuleType:
    """The module of comparisons and their values."""
    return compare
