"""What is subtly wrong breaks the clause that is about it and no other, and the report says what to do."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mappa import testing
from mappa.testing import EngineContract, PackageContract, ScriptedEngine, ShaperContract, WorkflowContract
from mappa.testing.pytest_plugin import pytest_collection_modifyitems
from mappa_core import ConfigError
from mappa_core.engine import PolicySpec
from mappa_engine.testing import LARGE_SHIFT, LENGTHS, LossContract

pytest_plugins = ("pytester",)
SETTINGS = ("-o", "asyncio_default_fixture_loop_scope=function", "-p", "no:cacheprovider", "-p", "no:xdist")

BROKEN = '''
import itertools, random, sqlite3
from dataclasses import replace

from mappa_core import Coach, Message, Role, Task, Tracker, Verdict, Workflow
from mappa.testing import (
    CoachContract, ShaperContract, TaskSourceContract, TrackerContract, WorkflowContract, scenes_of,
)

TASK = Task(id="1", prompt="?", reference="yes")


class Sound(Workflow):
    agents = {"solo": Role(brief="Answers.")}
    max_turns = {"solo": 1}

    async def run(self, stage):
        step = await self.act(stage, stage.task.prompt)
        stage.record(correct=await stage.grade(step.reply.content))

    async def act(self, stage, text, agent="solo"):
        return await stage.act(agent, [Message(role="user", content=text)])

    async def grade(self, text, task):
        return float(text == task.reference)


class Peeks(Sound):
    async def grade(self, text, task):
        self.truth = task.reference
        return float(text == task.reference)

    async def run(self, stage):
        await stage.grade("")
        await super().run(stage)

    async def act(self, stage, text, agent="solo"):
        return await super().act(stage, f"{text} Hint: {self.truth}")


class Strangers(Sound):
    async def act(self, stage, text, agent="solo"):
        return await super().act(stage, text, "other")


class Fragile(Sound):
    async def grade(self, text, task):
        return float(text.split()[0] == task.reference)


class Endless(Sound):
    async def run(self, stage):
        await super().run(stage)
        await self.act(stage, "again")


class Hides(Sound):
    async def run(self, stage):
        try:
            await super().run(stage)
        except Exception:
            stage.record(correct=0.0)


class Remembers(Sound):
    def __init__(self):
        self.said = []

    async def act(self, stage, text, agent="solo"):
        step = await super().act(stage, f"{text} So far: {len(self.said)}")
        self.said.append(step.reply.content)
        return step


class Clock(Sound):
    async def act(self, stage, text, agent="solo"):
        return await super().act(stage, f"{text} {next(TICKS)}")


TICKS = itertools.count()


class Silent(Sound):
    metric = "solved"


class OfWorkflows(WorkflowContract):
    task, replies = TASK, ("yes", "yes")
    kind = Sound

    def workflow(self):
        return self.kind()


class TestSound(OfWorkflows): pass
class TestPeeks(OfWorkflows): kind = Peeks
class TestFragile(OfWorkflows): kind = Fragile
class TestEndless(OfWorkflows): kind = Endless
class TestHides(OfWorkflows): kind = Hides
class TestRemembers(OfWorkflows): kind = Remembers
class TestClock(OfWorkflows): kind = Clock
class TestSilent(OfWorkflows): kind = Silent


class Counts(Coach):
    """Scores by what it saw before."""

    def __init__(self):
        self.seen = 0

    async def score(self, scene):
        self.seen += 1
        return Verdict.scored(min(self.seen, 10), "counted")


class Forgets(Coach):
    """Learns, and does not keep it."""

    def __init__(self):
        self.bonus = 0.0

    async def score(self, scene):
        return Verdict.scored(self.bonus, "learned")

    def learn(self, trajectories):
        self.bonus = 1.0


class Needs(Coach):
    """Takes the truth and the reply for granted."""

    async def score(self, scene):
        return Verdict.scored(10.0 * scene.task.reference.startswith(scene.step.reply.content.split()[0]), "compared")


class Partial(Coach):
    async def score(self, scene):
        return Verdict.abstained("")

    async def review(self, scenes):
        return [await self.score(scenes[0])]


class OfCoaches(CoachContract):
    scenes = scenes_of(Sound(), TASK, ("yes",), reference_for=("solo",)) * 2

    def coach(self):
        return self.kind()


class TestCounts(OfCoaches): kind = Counts
class TestForgets(OfCoaches): kind = Forgets
class TestNeeds(OfCoaches): kind = Needs
class TestPartial(OfCoaches): kind = Partial


class OfShapers(ShaperContract):
    def shaper(self):
        return self.kind()


class Zeroes:
    def __call__(self, trajectory, rewards):
        return tuple(reward or 0.0 for reward in rewards)


class Running:
    def __init__(self):
        self.mean = 0.0

    def __call__(self, trajectory, rewards):
        self.mean += 1.0
        return tuple(None if reward is None else reward - self.mean for reward in rewards)


class Cuts:
    def __call__(self, trajectory, rewards):
        return tuple(reward for reward in rewards if reward is not None)


class Writes:
    def __call__(self, trajectory, rewards):
        trajectory.outcome["seen"] = 1.0
        return rewards


class TestZeroes(OfShapers): kind = Zeroes
class TestRunning(OfShapers): kind = Running
class TestCuts(OfShapers): kind = Cuts
class TestWrites(OfShapers): kind = Writes


class OfTasks(TaskSourceContract):
    def source(self):
        return self.kind()


class Twins:
    def load(self, split):
        return [replace(TASK, prompt=f"{split} {n}") for n in range(2)]


class Leaks:
    def load(self, split):
        return [replace(TASK, id=f"{split}-{n}", prompt=str(n)) for n in range(3)]


class Shuffled:
    def load(self, split):
        tasks = [replace(TASK, id=f"{split}-{n}", prompt=f"{split} {n}") for n in range(12)]
        random.shuffle(tasks)
        return tasks


class Unkept:
    def load(self, split):
        return [replace(TASK, id=split, prompt=split, reference="nan", meta={"score": float("inf")})]


class Generous:
    """Grades answers itself, and gives a little for nothing."""

    def load(self, split):
        return [replace(TASK, id=split, prompt=split)]

    async def grade_answer(self, answer, task):
        return 1.0 if answer == task.reference else 0.1


class Stern(Generous):
    async def grade_answer(self, answer, task):
        return float(answer == f"{task.reference}!")


class TestGenerous(OfTasks): kind = Generous
class TestStern(OfTasks): kind = Stern
class TestTwins(OfTasks): kind = Twins
class TestLeaks(OfTasks): kind = Leaks
class TestShuffled(OfTasks): kind = Shuffled
class TestUnkept(OfTasks): kind = Unkept


class OfTrackers(TrackerContract):
    def tracker(self):
        return self.kind()


class Quiet(Tracker):
    def log(self, iteration, metrics): pass


class Bound(Quiet):
    """A connection of the thread that it was built in."""

    def __init__(self):
        self.database = sqlite3.connect(":memory:")

    def log(self, iteration, metrics):
        self.database.execute("SELECT 1")


class Strict(Quiet):
    def log(self, iteration, metrics):
        for value in metrics.values():
            int(value)


class Late(Quiet):
    def start(self, run):
        self.out = (run.folder / "log").open("a")

    def close(self, ending):
        self.out.close()


class Once(Quiet):
    def start(self, run):
        (run.folder / "started").touch(exist_ok=False)


class TestQuiet(OfTrackers): kind = Quiet
class TestBound(OfTrackers): kind = Bound
class TestStrict(OfTrackers): kind = Strict
class TestLate(OfTrackers): kind = Late
class TestOnce(OfTrackers): kind = Once
'''

CAUGHT = {
    "TestSound": set(),
    "TestPeeks": {"the_truth_reaches_no_agent"},
    "TestFragile": {"survives_replies_that_are_empty_or_nonsense"},
    "TestEndless": {"no_agent_acts_more_often_than_it_says"},
    "TestHides": {"errors_of_actions_are_not_swallowed"},
    "TestRemembers": {"concurrent_trajectories_do_not_mix"},
    "TestClock": {"concurrent_trajectories_do_not_mix", "replays_from_its_record"},
    "TestSilent": {"plays_to_its_end_and_records_its_metric"},
    "TestCounts": {"order_of_scoring_does_not_matter", "concurrent_scenes_do_not_mix"},
    "TestForgets": {"state_survives_a_round_trip"},
    "TestNeeds": {"whatever_an_agent_says_is_judged", "without_the_truth_it_gives_a_verdict_too"},
    "TestPartial": {"a_review_gives_a_verdict_per_scene"},
    "TestZeroes": {"a_missing_reward_stays_missing"},
    "TestRunning": {"the_order_of_trajectories_does_not_matter"},
    "TestCuts": {"every_action_has_one_reward", "a_missing_reward_stays_missing"},
    "TestWrites": {"inputs_are_not_modified"},
    "TestTwins": {"a_task_has_a_name_of_its_own"},
    "TestLeaks": {"no_task_is_trained_and_evaluated_on"},
    "TestShuffled": {"the_same_tasks_come_in_the_same_order"},
    "TestGenerous": {"a_truth_is_graded_as_right"},
    "TestStern": {"a_truth_is_graded_as_right"},
    "TestUnkept": {"a_task_can_be_recorded", "a_missing_truth_is_none"},
    "TestQuiet": set(),
    "TestBound": {"a_whole_run_is_logged", "a_run_goes_on_in_another_process", "concurrent_runs_do_not_mix"},
    "TestStrict": {"a_whole_run_is_logged", "a_run_goes_on_in_another_process", "concurrent_runs_do_not_mix"},
    "TestLate": {"a_run_that_never_started_is_closed"},
    "TestOnce": {"a_run_goes_on_in_another_process"},
}
"""Class -> the clauses that it breaks."""


MAKES_A_RUN = """
from mappa.runs import RunFolder


def test_a_run(tmp_path):
    with RunFolder.create(tmp_path, "run", plugin="p", recipe="r", config="seed: 0\\n") as folder:
        pass
    assert (folder.path / "config.mark").is_file()
"""


def test_runs_that_tests_make_leave_nothing_in_the_users_state_folder(pytester, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    pytester.makepyfile(test_run=MAKES_A_RUN)
    pytester.runpytest_subprocess(*SETTINGS).assert_outcomes(passed=1)
    assert not (tmp_path / "state").exists()


def test_every_clause_catches_what_it_is_about(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_broken=BROKEN)
    done = pytester.runpytest_subprocess(*SETTINGS, "-o", "asyncio_mode=auto", "--tb=short", "-rf")
    found: dict[str, set[str]] = {name: set() for name in CAUGHT}
    for line in done.outlines:
        if failed := re.match(r"FAILED test_broken\.py::(\w+)::test_(\w+)", line):
            found[failed[1]].add(failed[2])
    assert found == CAUGHT
    said = "\n".join(done.outlines)
    assert "What Mappa asks for, and what to do" in said
    assert "`task.reference` appears in no message to an agent. `stage.grade` takes a text" in said


@pytest.mark.parametrize(
    "clause", [WorkflowContract.test_replays_from_its_record, ShaperContract.test_every_action_has_one_reward]
)
@pytest.mark.parametrize("mode", ["auto", "strict", None])
def test_coroutines_that_nobody_would_await_are_refused(clause, mode):
    def of_pytest_asyncio(name, default=None):
        if mode is None:
            raise ValueError(f"unknown configuration value: {name}")
        return mode

    config = SimpleNamespace(getoption=of_pytest_asyncio, getini=of_pytest_asyncio)
    items = [SimpleNamespace(), SimpleNamespace(function=clause)]
    if mode == "auto" or not inspect.iscoroutinefunction(clause):
        pytest_collection_modifyitems(config, items)
        return
    with pytest.raises(pytest.UsageError, match=r'put asyncio_mode = "auto" under \[tool.pytest.ini_options\]'):
        pytest_collection_modifyitems(config, items)


def upside_down(new, rows, advantages):
    return advantages * (new - rows.old_logprobs).exp(), {}


def averaged(new, rows, advantages):
    return -(new - rows.old_logprobs).exp() * advantages / len(new) * sum(LENGTHS), {}


def mean_of_ratios(new, rows, advantages):
    ratio = (new - rows.old_logprobs).exp()
    return -ratio * advantages, {"ratio": ratio.detach().mean()}


def unbounded(new, rows, advantages):
    return -(2 * (new - rows.old_logprobs)).exp() * advantages / 2, {}


def by_place(new, rows, advantages):
    """The action that comes first counts twice, once the policy has moved."""
    moved = (new - rows.old_logprobs).detach().abs() > 0
    return -(new - rows.old_logprobs).exp() * advantages * (1 + moved * (rows.row == rows.row[0])), {}


@pytest.mark.parametrize(
    ("loss", "clauses"),
    [
        (upside_down, {"before_the_policy_moves_it_is_the_policy_gradient"}),
        (averaged, {"micro_batches_do_not_matter"}),
        (mean_of_ratios, {"micro_batches_do_not_matter"}),
        (unbounded, {"a_policy_that_has_moved_far_has_a_finite_loss"}),
        (by_place, {"micro_batches_do_not_matter", "the_order_of_actions_does_not_matter"}),
    ],
)
def test_losses_that_are_wrong_are_caught(loss, clauses):
    class Contract(LossContract):
        def loss(self):
            return loss

    found = set()
    for name in (name for name in vars(LossContract) if name.startswith("test_")):
        try:
            getattr(Contract(), name)(*([LARGE_SHIFT] if "far" in name else []))
        except AssertionError:
            found.add(name.removeprefix("test_"))
    assert found == clauses


def test_every_clause_says_what_to_do() -> None:
    contracts = [getattr(testing, name) for name in testing.__all__ if name.endswith("Contract")]
    assert len(contracts) == 12
    clauses = {
        f"{one.__name__}.{name}": test for one in contracts for name, test in vars(one).items() if "test_" in name
    }
    assert [name for name, test in clauses.items() if not test.__doc__] == []


def test_the_plugin_of_pytest_imports_nothing_heavy() -> None:
    program = (
        "import sys, pytest\nbefore = set(sys.modules)\nimport mappa.testing.pytest_plugin\n"
        "new = sorted(name for name in set(sys.modules) - before if not name.startswith('mappa_core'))\n"
        "print(new)\nsys.exit(len([name for name in sys.modules if name.startswith('mappa_core')]) > 3 or len(new) > 8)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


async def test_an_engine_without_weights_is_caught(tmp_path):
    """Samples, counts its updates and keeps the count: all that it lacks is learning."""

    class Contract(EngineContract):
        model = "none"

        def loss(self):
            return lambda new_logprobs, rows, advantages: (new_logprobs, {})

    contract = Contract()
    broken = set()
    for name in (name for name in vars(EngineContract) if name.startswith("test_")):

        async def opened():
            engine = ScriptedEngine(lambda prompt, sampling: f"{sampling.seed}"[:4])
            await engine.open([PolicySpec(name="default", model=contract.model)], contract.train, seed=0)
            return engine

        try:
            await getattr(contract, name)(opened, *([tmp_path] if "checkpoint" in name else []))
        except (AssertionError, pytest.fail.Exception):
            broken.add(name.removeprefix("test_"))
    assert broken == {
        "a_prompt_that_does_not_fit_is_refused",
        "the_learner_scores_what_was_sampled_as_the_sampler_did",
        "an_update_moves_towards_what_was_better",
        "an_action_without_reward_changes_nothing",
        "a_checkpoint_brings_everything_back",
    }


def test_a_package_that_does_not_load_is_shown_with_its_traceback(site):
    site.install("acme_broken")
    contract = PackageContract()
    contract.plugin = "broken"
    with pytest.raises(AssertionError, match="acme_that_was_never_installed"):
        contract.test_it_is_installed_and_loads()


def test_a_recipe_that_cannot_be_composed_names_its_key(site):
    site.write(
        "typo",
        "from pathlib import Path\n"
        "@hookimpl\ndef mappa_recipes():\n    return {'tiny': Path(__file__).parent / 'tiny.yaml'}\n",
    )
    (site.folder / "tiny.yaml").write_text("train: {iteratoins: 3}\n")
    contract = PackageContract()
    contract.plugin = "typo"
    contract.test_it_is_installed_and_loads()
    with pytest.raises(ConfigError, match="iteratoins"):
        contract.test_every_recipe_can_be_composed()
