"""A run over a scripted engine: the whole loop and the whole store, without a model."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from mappa.cli import result_tables
from mappa.cli.progress import LineProgress
from mappa.cli.run_result import show_run_result
from mappa.commands import Console
from mappa.evaluation import heldout
from mappa.look.observe import observe_recipe as observe_team
from mappa.look.view.report import write_report
from mappa.rollout.resume import resume_iteration as resume_iteration_of
from mappa.session import config_problems
from mappa.session.eval_split import in_selection_split as is_for_selection
from mappa.store import checkpoint
from mappa.store.checkpoint_ref import resolve_checkpoint
from mappa.store.writer import Store
from mappa.testing import ScriptedEngine, ScriptedSampler, load_plugins
from mappa.training import TrainResult
from mappa_core import (
    Coach,
    Message,
    Offer,
    Registry,
    Role,
    Task,
    TaskSource,
    Tracker,
    Verdict,
    Workflow,
    files,
    hookimpl,
)
from mappa_core.calls import restarts
from mappa_core.credit import counterfactual
from mappa_core.engine import EngineLost, VersionSpan

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
class PacedOptions:
    max_staleness: int = 0
    straggler_share: float = 0.0
    deterministic: bool = False
    action_ms: float = 1.0
    """What actions take at least; some take ten times as long."""
    update_ms: float = 2.0
    slow: dict[str, float] = field(default_factory=dict)
    """Milliseconds that the answers to these prompts take instead."""
    held: dict[str, int] = field(default_factory=dict)
    """Updates before which the answers to these prompts do not begin to be written."""
    skips: list[int] = field(default_factory=list)
    """Updates, from 1, that skip their two steps."""


class PacedSampler(ScriptedSampler):
    """Takes its time. A version that is published meanwhile samples all but the first token."""

    def __init__(self, engine, options) -> None:
        super().__init__(doubling)
        self._engine = engine
        self._options = options

    async def sample(self, tokens, sampling):
        self._engine.strike("sample")
        first = self.version
        self._engine.sampled_during.append(self._engine.updating)
        asked = bytes(tokens.astype(np.uint8)).decode().removeprefix("<user>").removesuffix("<assistant>")
        while self._engine.updates < self._options.held.get(asked, self._engine.updates):
            await asyncio.sleep(0.001)
        await asyncio.sleep(self._ms(asked, sampling.seed) / 1000)
        completion = await super().sample(tokens, sampling)
        end = len(completion.tokens)
        spans = (VersionSpan(version=first, start=0, end=1), VersionSpan(version=self.version, start=1, end=end))
        return completion if first == self.version else replace(completion, versions=spans)

    def _ms(self, asked, seed):
        return self._options.slow.get(asked, self._options.action_ms * min(10.0, Random(seed).paretovariate(1.2)))


class PacedEngine(ScriptedEngine):
    """Rollouts and updates take time, and its weights are what they were learned from: per update, the trajectories."""

    def __init__(self, options, losses, chaos) -> None:
        super().__init__(doubling)
        self.strike = chaos
        self._options = options
        self._losses = losses
        self.deterministic = options.deterministic
        self.max_staleness = options.max_staleness
        self.straggler_share = options.straggler_share
        self.learned = []
        self.updating = False
        self.sampled_during = []

    async def open(self, policies, train, *, seed):
        self._samplers = {spec.name: PacedSampler(self, self._options) for spec in policies}

    async def update(self, experience, advantages, loss, progress):
        self.updating = True
        await asyncio.sleep(self._options.update_ms / 1000)
        self.updating = False
        self.strike("update")
        if self.updates + 1 in self._losses:
            self._losses.remove(self.updates + 1)
            raise EngineLost("learner 0 was killed", actor="learner-0")
        self.learned.append(sorted(experience.trajectories))
        await super().update(experience, advantages, loss, progress)
        skips = self.updates in self._options.skips
        return {name: {"steps": 0.0 if skips else 2.0, "skipped": 2.0 if skips else 0.0} for name in self._samplers}

    async def publish(self):
        self.strike("publish")
        return await super().publish()

    def _write(self, path):
        self.strike("save")
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(self.learned))

    async def load(self, folder):
        self.strike("load")
        self.learned = json.loads((folder / "updates").read_text())
        self.updates = len(self.learned)
        await self.publish()


class MakingEngines:
    """Builds paced engines and keeps hold of them. `losses`: updates, from 1, during which a process is lost, once for
    every time they stand there. `faults`: what a method raises, by its name and the number of the call, from 1, over
    all engines."""

    def __init__(self) -> None:
        self.made = []
        self.losses = []
        self.faults = {}
        self.calls = Counter()

    def __call__(self, options):
        self.made.append(PacedEngine(options, self.losses, self.strike))
        return self.made[-1]

    def strike(self, method):
        self.calls[method] += 1
        if (fault := self.faults.pop((method, self.calls[method]), None)) is not None:
            raise fault


@dataclass
class NotesOptions:
    fails: bool = False


class Notes(Tracker):
    """A tracker that notes what it hears."""

    def __init__(self, options: NotesOptions) -> None:
        self._options = options
        self.runs = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.actions, self.verdicts, self.rollouts = [], [], []
        self.ending = None

    @property
    def heard(self) -> list[int]:
        """The iterations whose figures it heard, those of evaluations left out."""
        return [iteration for iteration, metrics in self.logged if "accuracy" in metrics]

    def start(self, run):
        self.runs.append(run)

    def log(self, iteration, metrics):
        if self._options.fails:
            raise ConnectionError("no dashboard")
        self.logged.append((iteration, metrics))

    def action(self, trajectory, step, ended):
        self.actions.append((trajectory, step, ended))

    def verdict(self, trajectory, verdict, ended):
        self.verdicts.append((trajectory, verdict, ended))

    def rollout(self, split, trajectory, ended):
        self.rollouts.append((split, trajectory, ended))

    def close(self, ending):
        self.ending = ending


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
        self.engines = MakingEngines()

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
        yield Offer("paced", self.engines, PacedOptions)

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
def kept() -> Callable[[Path], tuple[int, ...]]:
    """The iterations of which a run's folder has a checkpoint."""
    return lambda folder: tuple(sorted(int(path.name) for path in (folder / "checkpoints").glob("[0-9]*")))


# --- what these tests look at that is another room's: named here alone ------------------------------------------------


@pytest.fixture
def line_progress() -> type[LineProgress]:
    """What prints a run's progress where standard output is no terminal."""
    return LineProgress


@pytest.fixture
def show_result() -> Callable[[Console, TrainResult], None]:
    """What `mappa train` prints at the end."""
    return show_run_result


@pytest.fixture
def report_of() -> Callable[[TrainResult], str]:
    """The page `report.html` of a run."""
    return lambda trained: write_report(trained.folder, trained.summary).read_text()


@pytest.fixture
def observe():
    """What plays a team once without training it."""
    return observe_team


@pytest.fixture
def resume_iteration():
    """What a resumed run replays of an iteration, and what it plays again."""
    return resume_iteration_of


@pytest.fixture
def in_selection_split():
    """Whether a task is one of those on which the best checkpoint is chosen."""
    return is_for_selection


@pytest.fixture
def show_warnings():
    """What prints the warnings of a run."""
    return result_tables.show_warnings


@pytest.fixture
def overridden_settings():
    """Settings of a run that have no effect, in words."""
    return config_problems.overridden_settings


@pytest.fixture
def build_evaluation():
    """What an evaluation counts of trajectories."""
    return heldout.build_evaluation


@pytest.fixture
def counterfactual_credit():
    """What an action changed of the outcome."""
    return counterfactual.counterfactual_credit


@pytest.fixture
def manifest_of():
    """What a checkpoint of a run's folder says of itself: that of an iteration, or the last."""
    return lambda folder, which="last": resolve_checkpoint(f"{folder}@{which}", root=folder.parent).checkpoint.manifest


@pytest.fixture
def fsync_path() -> Callable[[Path], None]:
    """What syncs a file or folder to the disk."""
    return files.fsync_path


@pytest.fixture
def sync_checkpoints_by(monkeypatch) -> Callable[[Callable[[Path], None]], None]:
    """Lets a function sync the files of checkpoints."""
    return lambda sync: monkeypatch.setattr(checkpoint, "fsync_path", sync)


@pytest.fixture
def hang_after(monkeypatch) -> Callable[[float], None]:
    """Sets the seconds in which a call has to end that was cancelled; what calls a provider hangs that needs longer."""
    return lambda seconds: monkeypatch.setattr(restarts, "CANCEL_S", seconds)


@pytest.fixture
def store_class() -> type[Store]:
    """What writes a run's records, for tests that let a write fail."""
    return Store


@pytest.fixture
def registry(tmp_path) -> Registry:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE)
    return load_plugins(only=("engine", "sandbox"), modules={"doubles": Plugin(recipe)})
