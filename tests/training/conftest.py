"""A run over a scripted engine: the whole loop and the whole store, without a model."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mappa_core.hookspecs import Offer, hookimpl
from mappa_core.plugins import Registry, load
from mappa_core.protocols import Coach, TaskSource, Workflow
from mappa_core.records import Message, Role, Task, Verdict
from mappa_core.testing import ScriptedEngine

RECIPE = """
tasks: {use: numbers}
workflow: {use: doubles}
policies: {default: {model: none}}
sampling: {max_tokens: 8, concurrency: 3}
coach: {use: strict, reference_for: [doubler]}
shapers: [{use: scale}]
estimator: {use: reinforce}
engine: {use: scripted}
train: {iterations: 4, prompts: 2, samples: 2}
checkpoint: {every: 2}
"""


class Numbers(TaskSource):
    def __init__(self, options) -> None:
        pass

    def load(self, split):
        numbers = range(2, 12) if split == "train" else range(20, 24)
        return [Task(id=f"n{n}", prompt=str(n), reference=str(2 * n), stratum="even" if n % 2 == 0 else "odd")
                for n in numbers]  # fmt: skip


@dataclass
class DoublesOptions:
    raises: bool = False
    raises_on: str = ""


class Doubles(Workflow):
    agents = {"doubler": Role(brief="doubles"), "checker": Role(brief="repeats")}  # noqa: RUF012

    def __init__(self, options: DoublesOptions) -> None:
        self._options = options

    async def run(self, stage):
        if self._options.raises or stage.task.id == self._options.raises_on:
            raise KeyError("a bug of the workflow")
        doubled = await stage.act("doubler", [Message(role="user", content=stage.task.prompt)])
        checked = await stage.act("checker", [Message(role="user", content=doubled.reply.content)])
        stage.record(correct=await stage.grade(checked.reply.content))

    async def grade(self, text, task):
        return float(text == task.reference)


@dataclass
class StrictOptions:
    fails_from: int = 10**9
    """Calls after which every verdict fails."""


class Strict(Coach):
    """10 where a doubler is right, 5 for a checker; counts what it learned from in its state."""

    def __init__(self, options: StrictOptions) -> None:
        self._options = options
        self.calls = 0
        self.learned = 0

    async def score(self, scene):
        self.calls += 1
        if self.calls > self._options.fails_from:
            raise ConnectionError("the coach is away")
        if scene.step.agent == "checker":
            return Verdict.scored(5, "repeats")
        return Verdict.scored(10 if scene.step.reply.content == scene.task.reference else 0, "compared")

    def learn(self, trajectories):
        self.learned += len(trajectories)

    def state_dict(self):
        return {"learned": self.learned}

    def load_state_dict(self, state):
        self.learned = state["learned"]


def doubling(prompt, sampling):
    """Right for even numbers; the checker repeats."""
    number = int(prompt.removeprefix("<user>").removesuffix("<assistant>"))
    return str(2 * number) if number < 20 and number % 2 == 0 else str(number)


@dataclass
class NotesOptions:
    fails: bool = False


class Notes:
    """A tracker that notes what it hears."""

    def __init__(self, options: NotesOptions) -> None:
        self._options = options
        self.heard: list[int] = []
        self.closed = False

    def log(self, iteration, metrics):
        if self._options.fails:
            raise ConnectionError("no dashboard")
        self.heard.append(iteration)

    def close(self):
        self.closed = True


class Making:
    """Builds trackers and keeps hold of them."""

    def __init__(self) -> None:
        self.made: list[Notes] = []

    def __call__(self, options: NotesOptions) -> Notes:
        self.made.append(Notes(options))
        return self.made[-1]


class Plugin:
    """The module of a plugin, as `load` takes it."""

    def __init__(self, recipe) -> None:
        self.recipe = recipe

    @hookimpl
    def mappa_tasks(self):
        yield Offer("numbers", Numbers)

    @hookimpl
    def mappa_workflows(self):
        yield Offer("doubles", Doubles, DoublesOptions)

    @hookimpl
    def mappa_coaches(self):
        yield Offer("strict", Strict, StrictOptions)

    @hookimpl
    def mappa_engines(self):
        yield Offer("scripted", lambda options: ScriptedEngine(doubling))

    @hookimpl
    def mappa_trackers(self):
        yield Offer("notes", Making(), NotesOptions)

    @hookimpl
    def mappa_recipes(self):
        return {"tiny": self.recipe}


@pytest.fixture
def plugin() -> type[Plugin]:
    """The plugin, for modules that add offers of their own."""
    return Plugin


@pytest.fixture
def registry(tmp_path) -> Registry:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE)
    return load(only=(), modules={"doubles": Plugin(recipe)})
