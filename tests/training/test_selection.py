"""The best checkpoint is chosen on some held-out tasks and reported on the others."""

from __future__ import annotations

import json

import pytest

from mappa.runs import RunReader
from mappa.sessions import evaluate_standalone
from mappa.testing import ScriptedEngine, load_plugins
from mappa.training import Run
from mappa_core import ConfigError, Offer, Task, TaskSource, hookimpl

# The weights of every iteration double these numbers alone: the tasks that choose are best after 2, the others after 4.
TASKS = [Task(id=f"n{n}", prompt=str(n), reference=str(2 * n)) for n in range(41, 65)]
RIGHT = {
    0: (0, 0), 1: (4, 1), 2: (9, 3), 3: (2, 5), 4: (6, 9), 5: (9, 2),
}  # fmt: skip
"""How many of the tasks that choose, and of the others, are right after so many iterations."""


class Numbers(TaskSource):
    def __init__(self, options) -> None:
        pass

    def load(self, split):
        return TASKS if split == "eval" else [Task(id="t1", prompt="1", reference="2"), Task(id="t2", prompt="2")]


class Uneven(ScriptedEngine):
    """Doubles what its weights know."""

    def __init__(self, for_selection, reported) -> None:
        super().__init__(self.answer)
        self._tasks = for_selection, reported
        self.loaded = []

    def answer(self, prompt, sampling):
        said = prompt.removeprefix("<user>").removesuffix("<assistant>")
        known = {
            task.prompt for tasks, right in zip(self._tasks, RIGHT[self.updates], strict=True) for task in tasks[:right]
        }
        return str(2 * int(said)) if said in known else said

    async def load(self, folder):
        await super().load(folder)
        self.loaded.append(self.updates)


@pytest.fixture
def made():
    return []


@pytest.fixture
def for_selection(in_selection_split):
    """The tasks on which the best checkpoint is chosen."""
    return [task for task in TASKS if in_selection_split(task, 0.5)]


@pytest.fixture
def reported(in_selection_split):
    return [task for task in TASKS if not in_selection_split(task, 0.5)]


@pytest.fixture
def registry(plugin, tmp_path, made, for_selection, reported):
    class WithNumbers(plugin):
        @hookimpl
        def mappa_tasks(self):
            yield Offer("numbers", Numbers)

        @hookimpl
        def mappa_engines(self):
            def build(options):
                made.append(Uneven(for_selection, reported))
                return made[-1]

            yield Offer("scripted", build)

    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(
        """
tasks: {use: numbers}
workflow: {use: doubles}
policies: {default: {model: none}}
coach: {use: strict}
estimator: {use: reinforce}
engine: {use: scripted}
train: {iterations: 5, prompts: 2, samples: 1}
eval: {every: 1}
checkpoint: {every: 1, keep: 9, best: true}
"""
    )
    return load_plugins(only=("engine", "sandbox"), modules={"doubles": WithNumbers(recipe)})


def run(registry, tmp_path, *settings, name="run"):
    words = (f"run.root={tmp_path / 'runs'}", f"run.name={name}", *settings)
    return Run.from_recipe("doubles/tiny", *words, registry=registry)


def test_best_checkpoint_is_chosen_on_one_part_and_reported_on_the_other(
    registry, tmp_path, made, for_selection, reported
):
    trained = run(registry, tmp_path).train()
    found = trained.summary.eval
    assert (found.n, found.selection.n) == (len(reported), len(for_selection))
    assert (found.selection.iteration, found.selection.evaluations) == (2, 6)  # the first of the best
    assert found.selection.value == 9 / len(for_selection)
    assert found.before.mean == 0.0
    assert found.after.mean == 3 / len(reported)  # the weights that were chosen, and not the best that there were
    assert found.gain.mean == 3 / len(reported)
    assert [(evaluation.part, evaluation.iteration) for evaluation in trained.evaluations] == [
        ("report", 0),
        ("report", 2),
    ]
    assert made[-1].loaded == [2]
    assert json.loads((trained.folder / "checkpoints/best.json").read_text())["value"] == 9 / len(for_selection)


def test_without_an_evaluation_before_the_best_of_the_others_is_chosen(registry, tmp_path, reported):
    trained = run(registry, tmp_path, "eval.before=false").train()
    found = trained.summary.eval
    assert (found.selection.iteration, found.selection.evaluations) == (2, 5)
    assert (found.before, found.after.mean, found.gain) == (None, 3 / len(reported), None)
    assert [(evaluation.part, evaluation.iteration) for evaluation in trained.evaluations] == [("report", 2)]


def test_reported_tasks_are_played_twice_and_selection_tasks_at_every_evaluation(registry, tmp_path, reported):
    folder = run(registry, tmp_path).train().folder
    names = {task.id for task in reported}
    with RunReader(folder) as reader:
        played = list(reader.trajectories.where(split="eval"))
        parts = [(event.body["part"], event.body["iteration"]) for event in reader.events("evaluation")]
    assert {one.iteration for one in played if one.task in names} == {0, 2}
    assert {one.iteration for one in played if one.task not in names} == set(range(6))
    assert parts == [("report", 0), *(("selection", done) for done in range(6)), ("report", 2)]


def test_resumed_run_reports_the_same_best_checkpoint(registry, tmp_path, made, for_selection, reported):
    whole = run(registry, tmp_path, name="whole").train()

    class Killed(BaseException):
        pass

    class Killer:
        def __getattr__(self, name):
            return lambda *args: None

        def on_iteration_end(self, report):
            if report.iteration == 4:
                raise Killed

    with pytest.raises(Killed):
        run(registry, tmp_path, name="killed").train(Killer())
    resumed = Run.resume(tmp_path / "runs" / "killed", registry=registry).train()
    assert resumed.summary.eval == whole.summary.eval
    again = Run.resume(whole.folder, registry=registry).train()
    assert again.summary.eval == whole.summary.eval
    with RunReader(whole.folder) as reader:
        assert reader.counts("eval") == {"done": 2 * len(reported) + 6 * len(for_selection)}


def test_prolonged_run_reports_the_best_of_all_its_evaluations(registry, tmp_path, for_selection, reported):
    folder = run(registry, tmp_path, "train.iterations=2", "eval.every=0").train().folder
    for _ in range(2):
        further = Run.resume(folder, "train.iterations=3", registry=registry).train().summary.eval
        assert (further.selection.iteration, further.selection.evaluations) == (2, 3)
        assert further.selection.value == 9 / len(for_selection)
        assert further.selection.n == len(for_selection) and further.after.mean == 3 / len(reported)


def test_best_weights_are_not_loaded_if_they_are_the_last(registry, tmp_path, made, reported):
    trained = run(registry, tmp_path, "train.iterations=2").train()
    assert trained.summary.eval.selection.iteration == 2 and made[-1].loaded == []
    assert trained.summary.eval.after.mean == 3 / len(reported)


def test_best_checkpoint_chosen_on_all_tasks_is_kept_and_the_last_weights_are_reported(registry, tmp_path):
    trained = run(registry, tmp_path, "eval.selection=null").train()
    found = trained.summary.eval
    assert found.n == 24 and found.selection is None
    assert found.after.mean == sum(RIGHT[5]) / 24
    assert json.loads((trained.folder / "checkpoints/best.json").read_text())["iteration"] == 4


def test_run_without_a_best_checkpoint_sets_no_tasks_apart(registry, tmp_path):
    trained = run(registry, tmp_path, "checkpoint.best=false").train()
    assert trained.summary.eval.n == 24 and trained.summary.eval.selection is None
    assert [evaluation.part for evaluation in trained.evaluations] == ["all"] * 6


def test_selection_settings_cannot_change_on_resume(registry, tmp_path):
    folder = run(registry, tmp_path, "train.iterations=1").train().folder
    for word in ("checkpoint.best=false", "eval.selection=0.25"):
        with pytest.raises(ConfigError, match=word.partition("=")[0]):
            Run.resume(folder, word, registry=registry)


async def test_standalone_evaluation_excludes_the_selection_tasks(registry, tmp_path, reported):
    evaluated = await evaluate_standalone(run(registry, tmp_path).composed, registry)
    assert evaluated.evaluation.problems == tuple(task.id for task in reported)
    assert evaluated.evaluation.part == "report"


def test_a_part_that_would_be_empty_is_refused_before_an_engine_opens(registry, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(ScriptedEngine, "open", lambda engine, *args, **options: opened.append(engine))
    with pytest.raises(ConfigError, match=r"eval.selection=0.5: of 1 held-out tasks.*none is left"):
        run(registry, tmp_path, "eval.selection=0.5", "eval.problems=1").train()
    assert opened == []


@pytest.mark.parametrize("share", ["0.0", "1.0"])
def test_a_share_that_leaves_a_part_empty_is_refused(registry, tmp_path, share):
    with pytest.raises(ConfigError, match=r"eval.selection: must be above 0 and below 1"):
        run(registry, tmp_path, f"eval.selection={share}")
