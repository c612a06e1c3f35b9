"""A biased coach in a run: found, corrected, the same after a resume, and chosen as any coach is."""

from dataclasses import dataclass

import pytest

from mappa.runs import open as open_run
from mappa.sessions import Run
from mappa.testing import ScriptedEngine, load_plugins
from mappa_core import Coach, GuardStop, Message, Offer, Role, Task, TaskSource, Verdict, Workflow, hookimpl

RECIPE = """
tasks: {use: many}
workflow: {use: pair}
policies: {default: {model: none}}
sampling: {max_tokens: 8}
coach:
  use: bias_corrected
  options: {coach: {use: fond}, strata: [agent], share: 1.0}
estimator: {use: reinforce}
engine: {use: scripted}
train: {iterations: 6, prompts: 10, samples: 1}
checkpoint: {every: 1}
eval: {problems: 1}
"""


@dataclass
class FondOptions:
    bonus: float = 2.0


class Fond(Coach):
    def __init__(self, options):
        self._options = options

    async def score(self, scene):
        return Verdict.scored(5 + self._options.bonus * (scene.step.agent == "first"), "felt")


class Many(TaskSource):
    def __init__(self, options):
        pass

    def load(self, split):
        return [Task(id=f"{split}{n}", prompt=str(n)) for n in range(60)]


class Pair(Workflow):
    metric = "right"
    agents = {"first": Role(brief="begins"), "second": Role(brief="ends")}  # noqa: RUF012

    def __init__(self, options):
        pass

    async def run(self, stage):
        for agent in self.agents:
            await stage.act(agent, [Message(role="user", content=stage.task.prompt)])
        stage.record(right=float(stage.random.random() < 0.5))


class Plugin:
    def __init__(self, recipe):
        self._recipe = recipe

    @hookimpl
    def mappa_tasks(self):
        yield Offer("many", Many)

    @hookimpl
    def mappa_workflows(self):
        yield Offer("pair", Pair)

    @hookimpl
    def mappa_coaches(self):
        yield Offer("fond", Fond, FondOptions)

    @hookimpl
    def mappa_engines(self):
        yield Offer("scripted", lambda options: ScriptedEngine(lambda prompt, sampling: "ok"))

    @hookimpl
    def mappa_recipes(self):
        return {"tiny": self._recipe}


@pytest.fixture
def start(tmp_path):
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE)
    registry = load_plugins(only=("calibration", "engine"), modules={"fond": Plugin(recipe)})

    def make(*words, name="run", folder=None):
        if folder is not None:
            return Run.resume(folder, *words, registry=registry)
        words = (f"run.root={tmp_path / 'runs'}", f"run.name={name}", *words)
        return Run.from_recipe("fond/tiny", *words, registry=registry)

    return make


def verdicts(folder):
    with open_run(folder) as reader:
        rows = list(reader.trajectories.where(split="train"))
        return [verdict for row in rows for verdict in reader.trajectory(row.id).verdicts]


def test_a_preference_is_found_said_and_taken_off(start):
    trained = start().train()
    with open_run(trained.folder) as reader:
        (alarmed,), (noted,) = reader.events("drift"), reader.events("coach")
        (gap,) = list(reader.iterations)[-1].drift.gaps
    assert (
        alarmed.body["alarms"][0]["gap"]["agent"] == "everyone"
        and "is seen within 10 iterations from" in noted.body["notes"][0]
    )
    assert (gap.points.mean, gap.raised) == (pytest.approx(2.0), ("level",))
    first, last = verdicts(trained.folder)[:20], verdicts(trained.folder)[-20:]
    assert {verdict.score for verdict in first} == {7.0, 5.0} and all(verdict.members for verdict in first)
    scores = [verdict.score for verdict in last]
    assert max(scores) - min(scores) < 0.5 and {verdict.raw_score for verdict in last} == {7.0, 5.0}


def test_a_resumed_run_knows_what_it_learned(start):
    whole, part = start(name="whole").train(), start("train.iterations=3", name="part").train()
    resumed = start("train.iterations=6", folder=part.folder).train()
    assert [verdict.score for verdict in verdicts(resumed.folder)] == [
        verdict.score for verdict in verdicts(whole.folder)
    ]


def test_a_pause_is_answered_by_an_acknowledgement(start, tmp_path):
    with pytest.raises(GuardStop, match=r"the coach drifts:\n.*everyone(.|\n)*acknowledged(.|\n)*checkpoint"):
        start("coach.options.alarms.level=pause").train()
    known = "coach.options.alarms.acknowledged=[everyone/agent]"
    trained = start(known, folder=tmp_path / "runs" / "run").train()
    assert trained.summary.status == "done" and {verdict.raw_score for verdict in verdicts(trained.folder)} == {None}
