"""Dynamic sampling: which tasks are replaced, by which, and that a run that was cut off replaces the same."""

from __future__ import annotations

import json
import re
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mappa.runs import RunReader
from mappa.testing import load_plugins
from mappa.training import Run
from mappa.training.dynamic_sampling import tasks_with_spread
from mappa.training.listener import Listener
from mappa.training.task_sampler import TaskSampler
from mappa_core import Coach, ConfigError, Offer, Task, Verdict, hookimpl


class Picky(Coach):
    """Tells the samples of multiples of three apart, by 10 points, and no others."""

    def __init__(self, options):
        self.learned = 0

    async def score(self, scene):
        sample = int(scene.step.id.split("/")[2])
        return Verdict.scored(10 * sample if int(scene.task.prompt) % 3 == 0 else 5, "by number")

    def learn(self, trajectories):
        self.learned += len(trajectories)

    def state_dict(self):
        return {"learned": self.learned}

    def load_state_dict(self, state):
        self.learned = state["learned"]


class PickyCoaches:
    @hookimpl
    def mappa_coaches(self):
        yield Offer("picky", Picky)


@pytest.fixture
def registry(plugin, registry, tmp_path):
    return load_plugins(
        only=("engine", "sandbox"), modules={"doubles": plugin(tmp_path / "tiny.yaml"), "picky": PickyCoaches()}
    )


@pytest.fixture
def start(registry, tmp_path):
    """A run of the doubles on the paced engine; of its tasks 2 to 11 only 3, 6 and 9 have spread."""

    def make(name="run", *words, root=tmp_path / "runs", **options):
        given = json.dumps(options).replace('"', "")
        fixed = (
            f"run.root={root}",
            f"run.name={name}",
            "engine.use=paced",
            f"engine.options={given}",
            "coach.use=picky",
        )
        return Run.from_recipe("doubles/tiny", *fixed, "eval.problems=1", "sampling.concurrency=16", *words,
                               registry=registry)  # fmt: skip

    return make


def learned(folder):
    """The trajectories that each update learned from."""
    with RunReader(folder) as reader:
        _, latest = max(reader.checkpoints.items())
    return json.loads((latest / "policies/updates").read_text())


def metrics(folder):
    with RunReader(folder) as reader:
        return [report.metrics() for report in reader.iterations]


def learned_tasks(folder):
    """The numbers of the tasks that each update learned from, all of their samples."""
    found = []
    for names in learned(folder):
        samples = Counter(int(re.search(r"/n(\d+)/", name)[1]) for name in names)
        assert set(samples.values()) == {2}
        found.append(set(samples))
    return found


def replaced(folder):
    with RunReader(folder) as reader:
        return [(event.body["iteration"], tuple(event.body["tasks"])) for event in reader.events("replaced")]


# --- what has spread --------------------------------------------------------------------------------------------------


def experience(rows):
    """The columns that are read, of rows of task, agent and reward (None: missing)."""
    names = list(dict.fromkeys(task for task, _, _ in rows))
    groups = list(dict.fromkeys((task, agent) for task, agent, _ in rows))
    return SimpleNamespace(
        tasks=tuple(names),
        task=np.array([names.index(task) for task, _, _ in rows], np.int32),
        group=np.array([groups.index((task, agent)) for task, agent, _ in rows], np.int32),
        reward=np.array([np.nan if reward is None else reward for *_, reward in rows], np.float32),
        weight=np.array([reward is not None for *_, reward in rows], np.float32),
    )


def test_a_task_has_spread_if_siblings_of_one_agent_and_turn_differ():
    rows = [
        ("equal", "a", 1.0), ("equal", "a", 1.0),
        ("differs", "a", 1.0), ("differs", "a", 0.0),
        ("between agents", "a", 1.0), ("between agents", "a", 1.0), ("between agents", "b", 0.0),
        ("between agents", "b", 0.0),
        ("one agent", "a", 1.0), ("one agent", "a", 1.0), ("one agent", "b", 0.5), ("one agent", "b", 0.25),
        ("one known", "a", 1.0), ("one known", "a", None),
        ("none known", "a", None), ("none known", "a", None),
    ]  # fmt: skip
    assert tasks_with_spread(experience(rows)) == {"differs", "one agent"}


def test_an_experience_without_rows_has_no_task_with_spread():
    assert tasks_with_spread(experience([])) == frozenset()


@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    data=st.data(),
    seed=st.integers(0, 3),
    stratified=st.booleans(),
)
def test_replacements_are_unplayed_distinct_tasks_of_the_same_stratum(sizes, data, seed, stratified):
    every = tasks(*sizes)
    prompts = data.draw(st.integers(1, len(every)))
    sampler = TaskSampler(every, prompts=prompts, seed=seed, stratified=stratified)
    own = sampler.sample(data.draw(st.integers(0, 5)))
    places = data.draw(st.lists(st.sampled_from(own), unique_by=lambda task: task.id))
    played = {task.id for task in own} | data.draw(st.sets(st.sampled_from([task.id for task in every])))
    found = sampler.sample_more(7, places, played)
    again = TaskSampler(every, prompts=prompts, seed=seed, stratified=stratified).sample_more(7, places, played)
    assert found == again
    names = [task.id for task in found.values()]
    assert len(set(names)) == len(names) and not played.intersection(names)
    stratum = {task.id: task.stratum if stratified else "" for task in every}
    assert all(stratum[place] == stratum[task.id] for place, task in found.items())
    unplayed = Counter(stratum[task.id] for task in every if task.id not in played)
    asked = Counter(stratum[task.id] for task in places)
    assert Counter(stratum[name] for name in names) == {
        one: min(asked[one], unplayed[one]) for one in asked if unplayed[one]
    }


def tasks(*sizes):
    """So many tasks of each stratum."""
    strata = [str(stratum) for stratum, size in enumerate(sizes) for _ in range(size)]
    return [Task(id=f"{index}", prompt="?", stratum=stratum) for index, stratum in enumerate(strata)]


def test_replacements_differ_between_iterations_and_seeds():
    every = tasks(40)
    own, names = every[:8], {task.id for task in every[:8]}
    samplers = [TaskSampler(every, prompts=8, seed=seed) for seed in (0, 1)]
    further = [one.sample_more(number, own, names) for one in samplers for number in (0, 1)]
    assert len({tuple(task.id for task in found.values()) for found in further}) == 4


# --- the loop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [0, 2])
def test_iteration_learns_only_from_tasks_with_spread_and_counts_the_replaced(start, staleness):
    folder = start("run", "train.dynamic_sampling=9", max_staleness=staleness).train().folder
    assert all(len(one) == 2 and one <= {3, 6, 9} for one in learned_tasks(folder))
    dropped = Counter()
    for iteration, names in replaced(folder):
        assert all(int(name[1:]) % 3 for name in names)
        dropped[iteration] += len(names)
    assert sum(dropped.values()) > 0
    for iteration, figures in enumerate(metrics(folder)):
        assert figures["rollouts/replaced"] == 2 * dropped[iteration]
        assert figures["rollouts"] == 4 + 2 * dropped[iteration]
        with RunReader(folder) as reader:
            assert figures["rollouts"] == len(list(reader.trajectories.where(split="train", iteration=iteration)))
        assert figures["policy/doubler/equal_groups"] == 0.0


def test_coach_learns_from_replaced_tasks_too(start, manifest_of):
    folder = start("run", "train.dynamic_sampling=9").train().folder
    (state,) = manifest_of(folder).coach["coaches"]
    assert state["learned"] == sum(figures["rollouts"] for figures in metrics(folder))


def test_run_without_rounds_replaces_no_task(start):
    folder = start().train().folder
    assert replaced(folder) == []
    assert all(figures["rollouts"] == 4 and "rollouts/replaced" not in figures for figures in metrics(folder))


def test_tasks_of_the_last_round_are_learned_from(start):
    plain = learned_tasks(start("plain").train().folder)
    folder = start("one", "train.dynamic_sampling=1").train().folder
    first = [names for _, names in replaced(folder)]
    assert [number for number, _ in replaced(folder)] == [0, 1, 2, 3]
    for before, after, names in zip(plain, learned_tasks(folder), first, strict=True):
        gone = {int(name[1:]) for name in names}
        assert gone == {number for number in before if number % 3}
        assert before - gone == before & after and len(after) == 2 and not after & gone


def test_tasks_are_kept_when_no_replacement_is_left(start):
    folder = start("run", "train.dynamic_sampling=9", "train.prompts=10").train().folder
    assert learned_tasks(folder) == [set(range(2, 12))] * 4
    assert {names for _, names in replaced(folder)} == {()}


def test_replacements_keep_the_shares_of_strata(start):
    folder = start("run", "train.dynamic_sampling=9", "train.stratified=true").train().folder
    # Even and odd tasks are five each, so an iteration of two has one of each: 6, and 3 or 9.
    assert all(one & {6} and one & {3, 9} for one in learned_tasks(folder))


class Counts(Listener):
    def __init__(self):
        self.announced, self.ended = [], 0

    def on_rollouts_start(self, split, done, rollouts):
        self.announced += [rollouts] * (split == "train")

    def on_rollout_end(self, trajectory):
        self.ended += trajectory.id.startswith("train")


def test_listeners_hear_of_every_round(start):
    counts = Counts()
    folder = start("run", "train.dynamic_sampling=9").train(counts).folder
    rounds = [len(names) for _, names in replaced(folder)]
    assert sorted(counts.announced) == sorted([4] * 4 + [2 * count for count in rounds if count])
    assert counts.ended == sum(figures["rollouts"] for figures in metrics(folder))


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        (("train.samples=1",), {}, "train.dynamic_sampling=3: train.samples=1 leaves nothing to compare with"),
        (("credit.counterfactual.use=sibling",), {}, r"set credit\.counterfactual\.use=none"),
        ((), {"max_staleness": 1, "straggler_share": 0.5}, r"straggler_share=0\.5 leaves tasks unfinished"),
    ],
)
def test_dynamic_sampling_without_comparable_rewards_is_refused(start, tmp_path, words, options, said):
    with pytest.raises(ConfigError, match=said):
        start("run", "train.dynamic_sampling=3", *words, **options).train()
    assert not (tmp_path / "runs").exists()


class Cut(BaseException):
    """The process is gone."""


class Cutter(Listener):
    """Cuts a run off after so many actions and announcements."""

    def __init__(self, left):
        self._left = left

    def _count(self):
        self._left -= 1
        if self._left < 0:
            raise Cut

    def on_step(self, step):
        self._count()

    def on_rollouts_start(self, split, done, rollouts):
        self._count()


def sampled(folder):
    """All tokens of training by step."""
    with sqlite3.connect(folder / "run.db") as db:
        return sorted(db.execute("SELECT id, tokens FROM steps WHERE id LIKE 'train%'").fetchall())


@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    mode=st.sampled_from(["deterministic", "stale", "plain"]),
    cuts=st.lists(st.integers(1, 120), min_size=1, max_size=3),
    rounds=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_run_cut_off_at_any_write_replaces_the_same_tasks(start, registry, mode, cuts, rounds, seed):
    options = {"deterministic": True} if mode == "deterministic" else {"max_staleness": 2 * (mode == "stale")}
    words = (f"train.dynamic_sampling={rounds}", f"seed={seed}", "checkpoint.every=1")
    with tempfile.TemporaryDirectory() as root:
        whole = start("whole", *words, root=root, **options).train().folder
        run, folder = start("run", *words, root=root, **options), Path(root) / "run"
        for steps in cuts:
            try:
                run.train(Cutter(steps))
            except (Cut, BaseExceptionGroup):
                run = Run.resume(folder, registry=registry)
            else:
                break
        else:
            run.train()
        assert learned(folder) == learned(whole)
        assert replaced(folder) == replaced(whole)
        assert sampled(folder) == sampled(whole)
        for ours, theirs in zip(metrics(folder), metrics(whole), strict=True):
            assert (ours["rollouts"], ours["rollouts/replaced"]) == (theirs["rollouts"], theirs["rollouts/replaced"])
