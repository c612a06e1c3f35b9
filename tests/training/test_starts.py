"""Checkpoints that are kept, copied, and started from."""

import json
import shutil
from uuid import uuid4

import pytest

from mappa.runs import RunReader
from mappa.testing import ScriptedEngine, load_plugins
from mappa.training import Run
from mappa_core import ConfigError, Offer, hookimpl

RIGHT = [0, 1, 3, 2, 3, 1, 0, 0, 0, 0]
"""How many of the four held-out tasks a team solves after so many updates."""


class RisingEngine(ScriptedEngine):
    """Its team gets better and then worse; a policy that starts elsewhere begins with the updates made there."""

    def __init__(self, options) -> None:
        super().__init__(lambda prompt, sampling: self._answer(prompt))
        self.starts = {}
        self.references = {}

    def _answer(self, prompt):
        number = int(prompt.removeprefix("<user>").removesuffix("<assistant>"))
        return str(2 * number) if 20 <= number < 20 + RIGHT[self.updates] else str(number)

    async def open(self, policies, train, *, seed):
        await super().open(policies, train, seed=seed)
        self.starts = {spec.name: spec.start for spec in policies}
        self.references = {spec.name: spec.reference for spec in policies}
        for start in filter(None, self.starts.values()):
            self.updates = int((start / "weights").read_text())

    def _write(self, path):
        super()._write(path)
        for name in self._samplers:
            (path.parent / name).mkdir()
            (path.parent / name / "weights").write_text(str(self.updates))
            if self.references[name] is not None:
                (path.parent / name / "reference").mkdir()
                (path.parent / name / "reference" / "weights").write_text("those of the start")


@pytest.fixture
def engines():
    """The engines of the test's runs, in order."""
    return []


@pytest.fixture
def registry(tmp_path, plugin, engines, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    class Rising(plugin):
        @hookimpl
        def mappa_engines(self):
            yield Offer("rising", lambda options: engines.append(RisingEngine(options)) or engines[-1])

    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(
        """
tasks: {use: numbers}
workflow: {use: doubles}
policies: {default: {model: none}}
coach: {use: strict}
estimator: {use: reinforce}
engine: {use: rising}
train: {iterations: 6, prompts: 2, samples: 1}
eval: {every: 1, selection: null}
checkpoint: {every: 6, keep: 1}
"""
    )
    return load_plugins(only=("engine", "sandbox"), modules={"doubles": Rising(recipe)})


def start(registry, tmp_path, *settings, name="run"):
    words = (f"run.root={tmp_path / 'runs'}", f"run.name={name}", *settings)
    return Run.from_recipe("doubles/tiny", *words, registry=registry)


def test_the_first_of_the_best_evaluations_keeps_its_checkpoint(registry, tmp_path, kept, manifest_of):
    trained = start(registry, tmp_path, "checkpoint.best=true").train()
    assert kept(trained.folder) == (2, 6)
    assert json.loads((trained.folder / "checkpoints/best.json").read_text()) == {
        "schema": 1, "iteration": 2, "metric": "correct", "value": 0.75,
    }  # fmt: skip
    with RunReader(trained.folder) as reader:
        events = [event.body["iteration"] for event in reader.events("best")]
    assert events == [0, 1, 2]
    manifest = manifest_of(trained.folder, "2")
    assert manifest.agents == {"doubler": "doubler", "checker": "checker"}
    assert {name: one.kind for name, one in manifest.policies.items()} == {"doubler": "full", "checker": "full"}


def test_run_without_the_setting_keeps_no_best_checkpoint(registry, tmp_path, kept):
    trained = start(registry, tmp_path).train()
    assert kept(trained.folder) == (6,)
    assert not (trained.folder / "checkpoints/best.json").exists()


def test_a_resumed_run_keeps_what_was_best(registry, tmp_path, kept):
    settings = ("checkpoint.best=true", "checkpoint.every=1")
    folder = start(registry, tmp_path, *settings, "train.iterations=4").train().folder
    assert kept(folder) == (2, 4)
    Run.resume(folder, "train.iterations=6", registry=registry).train()
    assert kept(folder) == (2, 6)


@pytest.mark.parametrize("which", ["best", "last", "4"])
@pytest.mark.parametrize("place", ["run", "url"])
def test_a_team_starts_with_the_weights_of_another(registry, tmp_path, engines, which, place):
    url = f"memory://{uuid4().hex}"
    first = start(registry, tmp_path, "checkpoint.best=true", "checkpoint.every=1", "checkpoint.keep=9",
                  f"checkpoint.url={url}", name="first").train().folder  # fmt: skip
    run = "first" if place == "run" else f"{url}/first"
    if place == "url":
        shutil.rmtree(first)
    iteration = {"best": 2, "last": 6, "4": 4}[which]
    second = start(registry, tmp_path, f"policies.default.from={run}@{which}", "train.iterations=1", name="second")
    trained = second.train()
    assert {name: path.parts[-3:] for name, path in engines[-1].starts.items()} == {
        name: (f"{iteration:06d}", "policies", name) for name in ("doubler", "checker")
    }
    assert trained.evaluations[0].interval.mean == RIGHT[iteration] / 4
    assert f"from: {run}@{iteration}" in (trained.folder / "config.yaml").read_text()


def test_resumed_run_loads_starting_weights_only_without_a_checkpoint(registry, tmp_path, engines):
    start(registry, tmp_path, "checkpoint.best=true", name="first").train()
    second = start(registry, tmp_path, "policies.default.from=first@best", "train.iterations=1", name="second")
    folder = second.train().folder
    shutil.rmtree(folder / "checkpoints")
    Run.resume(folder, registry=registry).check()
    assert all(path.parts[-3] == "000002" for path in engines[-1].starts.values())
    shutil.copytree(tmp_path / "runs/first/checkpoints/000006", folder / "checkpoints/000006")
    shutil.rmtree(tmp_path / "runs/first")
    Run.resume(folder, "train.health.kl=null", registry=registry).check()
    assert set(engines[-1].starts.values()) == {None}


@pytest.mark.parametrize("lost", [False, True])
def test_the_reference_is_what_a_run_started_from_until_its_end(registry, tmp_path, engines, lost):
    url = f"memory://{uuid4().hex}"
    start(registry, tmp_path, "train.iterations=2", name="first").train()
    assert set(engines[-1].references.values()) == {None}, "the model"
    settings = ("policies.default.from=first@last", "train.iterations=1", f"checkpoint.url={url}")
    folder = start(registry, tmp_path, *settings, name="second").train().folder
    assert engines[-1].references == engines[-1].starts
    # Whatever becomes of the other run, and of this machine.
    shutil.rmtree(tmp_path / "runs/first")
    if lost:
        shutil.rmtree(folder / "checkpoints")
    Run.resume(folder, registry=registry).check()
    assert set(engines[-1].starts.values()) == {None}
    assert engines[-1].references == {
        name: folder / "checkpoints/000001/policies" / name / "reference" for name in ("doubler", "checker")
    }
    start(registry, tmp_path, "policies.default.from=second@last", name="third").check()
    assert engines[-1].references["doubler"] == folder / "checkpoints/000001/policies/doubler"


def test_a_reference_that_nothing_read_is_looked_for_where_the_run_started(registry, tmp_path, engines):
    start(registry, tmp_path, "train.iterations=1", name="first").train()
    settings = ("policies.default.from=first@last", "train.health.kl=null", "train.iterations=1")
    folder = start(registry, tmp_path, *settings, name="second").train().folder
    assert set(engines[-1].references.values()) == {None}
    Run.resume(folder, "train.health.kl=0.5", registry=registry).check()
    assert engines[-1].references["doubler"] == tmp_path / "runs/first/checkpoints/000001/policies/doubler"
    shutil.rmtree(tmp_path / "runs/first")
    with pytest.raises(ConfigError, match=r"policies\.\w+\.from: .* no run first.* set train\.health\.kl=null"):
        Run.resume(folder, "train.health.kl=0.5", registry=registry).check()


def test_a_run_whose_checkpoints_are_gone_goes_on_from_their_copies(registry, tmp_path, engines):
    url = f"memory://{uuid4().hex}"
    folder = start(registry, tmp_path, "train.iterations=4", f"checkpoint.url={url}").train().folder
    shutil.rmtree(folder / "checkpoints")
    trained = Run.resume(folder, "train.iterations=6", registry=registry).train()
    with RunReader(trained.folder) as reader:
        assert [event.body["iteration"] for event in reader.events("resumed")] == [4]
    assert engines[-1].updates == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["policies.doubler.from=first"], r"policies\.doubler\.from: 'first' names no checkpoint"),
        (["policies.doubler.from=first@best"], r"policies\.doubler\.from: first did not keep its best checkpoint"),
        (["policies.doubler.from=first/cook@last"], r"has no trained policy 'cook'; it has checker, doubler"),
        (
            ["policies.doubler.kind=lora", "policies.doubler.from=first@last"],
            "is of kind full, and policies.doubler.kind",
        ),
    ],
)
def test_invalid_start_is_refused_before_anything_is_written(registry, tmp_path, settings, message):
    start(registry, tmp_path, "train.iterations=1", name="first").train()
    with pytest.raises(ConfigError, match=message):
        start(registry, tmp_path, *settings, name="second").train()
    assert not (tmp_path / "runs" / "second").exists()


def test_policy_may_start_with_the_weights_of_a_policy_of_another_name(registry, tmp_path, engines):
    start(registry, tmp_path, "train.iterations=1", name="first").train()
    start(registry, tmp_path, "policies.checker.from=first/doubler@1", "train.iterations=1", name="second").train()
    assert engines[-1].starts["checker"].name == "doubler" and engines[-1].starts["doubler"] is None
