"""Iterations an hour of the asynchronous loop against the synchronous one.

The real loop, collector, store and checkpoints over an engine that only takes time: actions sleep a heavy-tailed time,
an update and a publish a fixed one, and samplers and learners do not slow each other down, as where each has its own
devices. (Where they take turns on the same ones, nothing of this is to be had.) Teams of 3 agents play 32 trajectories
an iteration, all of two iterations at once if they may; an action's tokens are lognormal with sigma 1, so the longest
of an iteration take many times as long as the median; an update takes about a quarter of the time of the rollouts.

Three arms take turns: staleness 0, staleness 1, and staleness 1 with a straggler share of 0.1. The ratio is iterations
an hour of the last by the first, median over the rounds with a 95 % bootstrap interval.

    python bench/async.py [--rounds 7] [--iterations 12]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from measure import parse_arguments, print_result

from mappa.store.iteration_report import IterationReport
from mappa.testing import ScriptedEngine, ScriptedSampler
from mappa.training import Run
from mappa.training.listener import Listener
from mappa_core.experience import Advantages, Experience, Receipt
from mappa_core.hookspecs import Offer, hookimpl
from mappa_core.plugins import Registry, load_plugins
from mappa_core.protocols import Coach, Loss, PolicySpec, Split, Stage, TaskSource, Workflow
from mappa_core.records import Completion, Message, Role, Sampling, Scene, Task, Verdict, VersionSpan

MEDIAN_S, SIGMA = 0.060, 1.0
UPDATE_S, PUBLISH_S = 0.250, 0.020
ARMS: Mapping[str, Mapping[str, float]] = {
    "staleness 0": {"max_staleness": 0, "straggler_share": 0.0},
    "staleness 1": {"max_staleness": 1, "straggler_share": 0.0},
    "staleness 1, stragglers 0.1": {"max_staleness": 1, "straggler_share": 0.1},
}
RECIPE = """
tasks: {use: many}
workflow: {use: chain}
policies: {default: {model: none}}
sampling: {max_tokens: 8, concurrency: 64}
coach: {use: fixed}
estimator: {use: reinforce}
engine: {use: timed}
train: {prompts: 16, samples: 2}
checkpoint: {every: 4}
eval: {problems: 1}
"""


@dataclass
class TimedOptions:
    max_staleness: int = 0
    straggler_share: float = 0.0


class TimedSampler(ScriptedSampler):
    """Sleeps as long as an action takes: the seed of its request decides, whatever the arm."""

    async def sample(self, tokens: Any, sampling: Sampling) -> Completion:
        version = self.version
        await asyncio.sleep(MEDIAN_S * Random(sampling.seed).lognormvariate(0.0, SIGMA))
        completion = await super().sample(tokens, sampling)
        assert completion.tokens is not None
        return replace(completion, versions=(VersionSpan(version=version, start=0, end=len(completion.tokens)),))


class TimedEngine(ScriptedEngine):
    deterministic = False

    def __init__(self, options: TimedOptions) -> None:
        super().__init__(lambda prompt, sampling: "ok")
        self.max_staleness = options.max_staleness
        self.straggler_share = options.straggler_share

    async def open(self, policies: Sequence[PolicySpec], train: Any | None, *, seed: int) -> None:
        self._samplers = {spec.name: TimedSampler(self._script) for spec in policies}

    async def publish(self) -> Mapping[str, Receipt]:
        await asyncio.sleep(PUBLISH_S)
        return await super().publish()

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        await asyncio.sleep(UPDATE_S)
        return await super().update(experience, advantages, loss, progress)


class Many(TaskSource):
    def __init__(self, options: Any) -> None:
        pass

    def load(self, split: Split) -> Sequence[Task]:
        return [Task(id=f"{split}{number}", prompt=str(number)) for number in range(1000)]


class Chain(Workflow):
    """Three agents act one after the other."""

    agents = dict.fromkeys(("one", "two", "three"), Role(brief="plays its part"))

    def __init__(self, options: Any) -> None:
        pass

    async def run(self, stage: Stage) -> None:
        for agent in self.agents:
            await stage.act(agent, [Message(role="user", content=stage.task.prompt)])
        stage.record(correct=1.0)


class Fixed(Coach):
    def __init__(self, options: Any) -> None:
        pass

    async def score(self, scene: Scene) -> Verdict:
        return Verdict.scored(7, "fine")


class Plugin:
    def __init__(self, recipe: Path) -> None:
        self._recipe = recipe

    @hookimpl
    def mappa_tasks(self) -> Sequence[Offer[TaskSource]]:
        return [Offer("many", Many)]

    @hookimpl
    def mappa_workflows(self) -> Sequence[Offer[Workflow]]:
        return [Offer("chain", Chain)]

    @hookimpl
    def mappa_coaches(self) -> Sequence[Offer[Coach]]:
        return [Offer("fixed", Fixed)]

    @hookimpl
    def mappa_engines(self) -> Sequence[Offer[Any]]:
        return [Offer("timed", TimedEngine, TimedOptions)]

    @hookimpl
    def mappa_recipes(self) -> Mapping[str, Path]:
        return {"tiny": self._recipe}


class Watch(Listener):
    """Seconds from the first training rollout to the end of the last iteration."""

    def __init__(self) -> None:
        self.started: float | None = None
        self.ended = 0.0
        self.stale: list[float] = []
        self.late = 0

    def on_rollouts_start(self, split: Split, done: int, rollouts: int) -> None:
        if split == "train" and self.started is None:
            self.started = time.perf_counter()

    def on_iteration_end(self, report: IterationReport) -> None:
        self.ended = time.perf_counter()
        self.stale.append(0.0 if report.staleness is None else report.staleness.mean)
        self.late += report.late


def play(registry: Registry, root: str, name: str, arm: str, iterations: int, seed: int) -> Watch:
    """A whole run."""
    watch = Watch()
    options = ", ".join(f"{key}: {value}" for key, value in ARMS[arm].items())
    words = (f"run.root={root}", f"run.name={name}", f"engine.options={{{options}}}", f"train.iterations={iterations}")
    Run.from_recipe("bench/tiny", *words, seed=seed, registry=registry).train(watch)
    return watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=12)
    arguments = parse_arguments(parser, rounds=1, iterations=2)
    rates = []
    with tempfile.TemporaryDirectory(prefix="mappa-bench-") as root:
        recipe = Path(root) / "tiny.yaml"
        recipe.write_text(RECIPE)
        registry = load_plugins(only=("engine", "sandbox"), modules={"bench": Plugin(recipe)})
        for place in range(arguments.rounds):
            taken = {}
            for arm in list(ARMS) if place % 2 else reversed(list(ARMS)):
                watch = play(registry, root, f"{place}-{arm}", arm, arguments.iterations, place)
                assert watch.started is not None
                taken[arm] = 3600 * arguments.iterations / (watch.ended - watch.started)
                stale = f"staleness {np.mean(watch.stale):.2f} on average, {watch.late} rollouts late"
                print(f"round {place + 1}: {arm}: {taken[arm]:,.0f} iterations an hour, {stale}")
            rates.append([taken[arm] for arm in ARMS])
    ratios = np.array(rates) / np.array(rates)[:, :1]
    print(f"staleness 1 alone: {np.median(ratios[:, 1]):.2f} x the iterations an hour of staleness 0")
    print_result("async", ratios[:, 2], unit="x iterations an hour", against="staleness 0")


if __name__ == "__main__":
    main()
