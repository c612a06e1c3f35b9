"""Counterfactual rollouts: who was guilty has credit below 0, who was not has none; files are those of before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mappa.rollout.collector import RolloutCollector
from mappa.rollout.counterfactual import (
    CounterfactualBound,
    CounterfactualCollector,
    CounterfactualResult,
    bound_counterfactuals,
    max_actions_after,
)
from mappa.rollout.named_coach import NamedCoach
from mappa.rollout.team import Job, Team
from mappa.runs import RunFolder, RunReader
from mappa.sessions import RunConfig
from mappa.testing import FixedCoach, ScriptedSampler
from mappa_core import (
    ConfigError,
    Failure,
    Message,
    PromptTooLong,
    Role,
    Sampling,
    Task,
    ToolError,
    ToolLimits,
    ToolResult,
    ToolSpec,
    Trajectory,
    Workflow,
)

NO_COUNTERFACTUALS = RunConfig().credit.counterfactual
TASK = Task(id="sum", prompt="2+2", reference="4")


class Keep:
    """A tool that keeps a text in a file of its own name, and tells which files were there. It breaks on `break`."""

    spec = ToolSpec(name="python", description="", schema={"type": "object", "properties": {"code": {}}})

    def __init__(self) -> None:
        self.seen: list[tuple[str, tuple[str, ...], dict[str, str]]] = []
        self.broken = False

    async def call(self, arguments, workspace, limits):
        text = arguments["code"].strip()
        there = {name: (workspace.path / name).read_text() for name in workspace.files}
        self.seen.append((text, workspace.files, there))
        if self.broken:
            raise ToolError("the machine is gone")
        name = text.split()[0]
        (workspace.path / name).write_text(text)
        return ToolResult(tool="python", status="ok", stdout=text, files=workspace.changes())

    async def close(self):
        pass


class Chain(Workflow):
    """A planner plans, a worker works by the plan and keeps it, a teller tells what the worker said."""

    agents = {"planner": Role(brief="plans"), "worker": Role(brief="works"), "teller": Role(brief="tells")}  # noqa: RUF012

    def __init__(self, feedback: bool = False) -> None:
        self.feedback = feedback

    @property
    def max_turns(self):
        return {"planner": 1, "worker": 1, "teller": 1}

    async def run(self, stage):
        plan = await stage.act("planner", [say(stage.task.prompt)], tools=("python",))
        if self.feedback:
            await stage.verdict(plan)
        work = await stage.act("worker", [say(f"plan {plan.reply.content}")], tools=("python",))
        told = await stage.act("teller", [say(f"tell {work.results[0].stdout if work.results else 'nothing'}")])
        stage.record(correct=await stage.grade(told.reply.content.split()[-1]), luck=stage.random.random())

    async def grade(self, text, task):
        return float(text == task.reference)


def say(text: str) -> Message:
    return Message(role="user", content=text)


def fenced(text: str) -> str:
    return f"```python\n{text}\n```"


class Script:
    """What agents say, by a word of their prompt. `plans` are the planner's in turn, `works` the worker's."""

    def __init__(self, plans, works=("work 4",)) -> None:
        self.plans, self.works = list(plans), list(works)
        self.asked: list[tuple[str, int]] = []

    def __call__(self, prompt, sampling):
        self.asked.append((prompt, sampling.seed))
        if "tell" in prompt:
            return prompt.removesuffix("<assistant>").split()[-1]
        if "plan" not in prompt:
            return fenced(self.plans.pop(0))
        bad = "bad" in prompt
        return fenced("work 5" if bad else (self.works.pop(0) if len(self.works) > 1 else self.works[0]))


def team_of(script, tool, workflow, *, judged=False, seed=0):
    agents = workflow.agents
    return Team(
        workflow=workflow,
        policy_of=dict.fromkeys(agents, "scripted"),
        samplers={"scripted": ScriptedSampler(script)},
        sampling={agent: Sampling() for agent in agents},
        tools={"python": tool},
        limits={"python": ToolLimits()},
        retries={"python": 0},
        retry_after_s=0.0,
        coach_of={agent: NamedCoach(name="fixed", coach=FixedCoach(5.0)) for agent in agents} if judged else {},
        seed=seed,
    )


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path, "run", plugin="p", recipe="r", config="") as folder:
        yield folder


class Bench:
    """A team that has played, and what plays it again."""

    def __init__(
        self, folder, plans, *, works=("work 4",), samples=1, judged=False, feedback=False, waves=False, settle=tuple
    ):
        self.script, self.tool = Script(plans, works), Keep()
        self.folder, self.waves, self.settle = folder, waves, settle
        self.team = team_of(self.script, self.tool, Chain(feedback), judged=judged)
        self.jobs = [Job(task=TASK, split="train", iteration=0, sample=n) for n in range(samples)]

    async def play(self):
        collector = RolloutCollector(
            self.team, recorder=self.folder.store, archive=self.folder.files, concurrency=1, waves=self.waves
        )
        self.trajectories = await collector.collect(self.jobs)
        self.script.asked.clear()
        self.tool.seen.clear()
        return self.trajectories

    def again(self, use, *, default_actions=None, **section):
        return CounterfactualCollector(
            self.team,
            replace(NO_COUNTERFACTUALS, use=use, **section),
            settle=self.settle,
            default_actions=default_actions or {},
            store=self.folder.store,
            recorder=self.folder.store,
            archive=self.folder.files,
            concurrency=4,
            waves=self.waves,
        )


@pytest.fixture
def credits_of(counterfactual_credit):
    """The credit of every action of a trajectory."""
    return lambda trajectory, metric="correct": [
        counterfactual_credit(trajectory, step.position, metric).value for step in trajectory.steps
    ]


# --- who is guilty ----------------------------------------------------------------------------------------------------


async def test_a_sibling_in_its_place_shows_that_the_planner_was_guilty_and_its_sibling_helped(folder, credits_of):
    bench = Bench(folder, ["bad plan", "good plan"], samples=2)
    await bench.play()
    weighed = await bench.again("sibling").collect(0, bench.trajectories)
    bad, good = weighed.trajectories
    # Planners alone had the same prompt: 0 - 1 for the bad plan, 1 - 0 for the good one.
    assert (bad.outcome["correct"], good.outcome["correct"]) == (0.0, 1.0)
    assert credits_of(bad) == [-1.0, None, None] and credits_of(good) == [1.0, None, None]
    assert weighed.figures.metrics() == {
        "rollouts": 2,
        "lost": 0,
        "overflowed": 0,
        "settled": 2,
        "missing/no_sibling": 4,
    }


async def test_every_action_is_sampled_again_and_only_the_guilty_one_has_credit_below_0(folder, credits_of):
    bench = Bench(folder, ["good plan"] * 3, works=["work 5", "work 4"])
    await bench.play()
    bench.script.plans, bench.script.works = ["good plan"], ["work 4"]
    (weighed,) = (
        await bench.again("resample", agents=["worker", "teller"]).collect(0, bench.trajectories)
    ).trajectories
    # The worker wrote 5: with 4 the team is right, so 0 - 1. The teller can only say what it was told: 0 - 0.
    assert credits_of(weighed) == [None, -1.0, 0.0]


async def test_a_default_action_measures_what_an_agent_contributes(folder, credits_of):
    bench = Bench(folder, ["good plan"])
    await bench.play()
    texts = {"planner": "no plan", "worker": "no work", "teller": "4"}
    (weighed,) = (await bench.again("default", default_actions=texts).collect(0, bench.trajectories)).trajectories
    # Without a plan the worker works as well; without work nobody knows the sum; the teller's default is right.
    assert credits_of(weighed) == [0.0, 1.0, 0.0]


async def test_the_credit_is_less_the_mean_over_several_samples(folder, credits_of):
    bench = Bench(folder, ["good plan"])
    await bench.play()
    bench.script.works = ["work 5", "work 4", "work 3", "work 9"]
    (weighed,) = (
        await bench.again("resample", agents=["worker"], samples=4).collect(0, bench.trajectories)
    ).trajectories
    assert credits_of(weighed)[1] == 1.0 - 1 / 4


async def test_the_same_action_with_the_same_luck_has_credit_0(folder, credits_of):
    bench = Bench(folder, ["same plan", "same plan"], samples=2)
    first, _ = await bench.play()
    seeds = dict(enumerate(bench.team.seed_of(first.id, position) for position in range(3)))
    (weighed, _) = (await bench.again("sibling", samples=9).collect(0, bench.trajectories)).trajectories
    assert credits_of(weighed, "luck") == [0.0, 0.0, 0.0]
    of_first = [seed for prompt, seed in bench.script.asked if seed in seeds.values()]
    assert seeds[0] not in of_first and seeds[1] in of_first


# --- what is restored, and what is asked ------------------------------------------------------------------------------


async def test_files_of_before_the_action_are_there_and_later_ones_are_not(folder):
    bench = Bench(folder, ["good plan"])
    await bench.play()
    await bench.again("resample", agents=["worker"]).collect(0, bench.trajectories)
    # The planner's program is not run again: its file lies there. The worker's own file of the first play does not.
    assert bench.tool.seen == [("work 4", ("good",), {"good": "good plan"})]
    assert [prompt.split(">")[1].split()[0] for prompt, _ in bench.script.asked] == ["plan", "tell"]


async def test_a_replaced_action_has_its_own_calls_made_where_the_old_ones_left_nothing(folder):
    bench = Bench(folder, ["bad plan", "good plan"], samples=2)
    await bench.play()
    await bench.again("sibling").collect(0, bench.trajectories)
    of_first = [seen for seen in bench.tool.seen if seen[0] in ("good plan", "work 4")]
    assert of_first == [("good plan", (), {}), ("work 4", ("good",), {"good": "good plan"})]


async def test_counterfactual_lost_to_a_tool_failure_gives_no_credit_and_is_counted(folder, credits_of):
    bench = Bench(folder, ["good plan"])
    await bench.play()
    bench.tool.broken = True
    weighed = await bench.again("resample", agents=["worker"]).collect(0, bench.trajectories)
    assert credits_of(weighed.trajectories[0]) == [None, None, None]
    assert (weighed.figures.missing["ToolError"], weighed.figures.lost) == (1, 1)


async def test_counterfactual_rollouts_are_not_judged(folder):
    bench = Bench(folder, ["good plan", "good plan"], judged=True)
    await bench.play()
    await bench.again("resample").collect(0, bench.trajectories)
    with RunReader(folder.path) as reader:
        (row,) = reader.trajectories
        assert len(reader.trajectory(row.id).verdicts) == 3
        played = list(reader.trajectories.where(split="counterfactual"))
        assert [reader.trajectory(one.id).verdicts for one in played] == [(), (), ()]


async def test_a_workflow_that_shows_verdicts_to_agents_is_refused(folder):
    bench = Bench(folder, ["good plan"], judged=True, feedback=True)
    await bench.play()
    with pytest.raises(ConfigError, match=r"asks for the verdict of planner .* turn the feedback off"):
        await bench.again("resample", agents=["worker"]).collect(0, bench.trajectories)


async def test_trajectories_without_outcome_or_not_drawn_have_no_credit(folder):
    bench = Bench(folder, ["good plan"] * 9, samples=4)
    trajectories = list(await bench.play())
    trajectories[0] = replace(trajectories[0], error=Failure(kind="PromptTooLong", message=""), outcome={})
    half = bench.again("resample", share=0.5, agents=["teller"])
    weighed = await half.collect(0, trajectories)
    again = await half.collect(0, trajectories)
    assert sum(weighed.missing.values()) + weighed.settled == 4
    assert weighed.missing["not_drawn"] == 2
    assert [trajectory.counterfactuals for trajectory in weighed.trajectories] == [
        trajectory.counterfactuals for trajectory in again.trajectories
    ]


# --- what is kept -----------------------------------------------------------------------------------------------------


async def test_counterfactual_rollouts_have_their_own_split_and_are_read_with_their_trajectory(folder):
    bench = Bench(folder, ["bad plan", "good plan"], samples=2)
    await bench.play()
    weighed = await bench.again("sibling").collect(0, bench.trajectories)
    with RunReader(folder.path) as reader:
        assert reader.counts() == {"done": 2} and reader.counts("counterfactual") == {"done": 2}
        assert {row.split for row in reader.trajectories} == {"train"}
        first = weighed.trajectories[0]
        assert reader.trajectory(first.id).counterfactuals == first.counterfactuals
        kept = reader.trajectory(f"counterfactual/{first.id}/000/00")
        assert [step.position for step in kept.steps] == [0, 1, 2] and kept.counterfactuals == ()
    assert folder.store.load_recorded("train", 0).keys() == {trajectory.id for trajectory in bench.trajectories}


async def test_a_trajectory_whose_name_begins_like_another_does_not_get_its_counterfactuals(folder):
    bench = Bench(folder, ["good plan"] * 3)
    await bench.play()
    (first,) = bench.trajectories
    twin = Task(id=f"{TASK.id}/000/000", prompt="2+2", reference="4")
    bench.jobs = [Job(task=twin, split="train", iteration=0, sample=0)]
    await bench.play()
    await bench.again("resample", agents=["teller"]).collect(0, (first, *bench.trajectories))
    with RunReader(folder.path) as reader:
        assert [counterfactual.position for counterfactual in reader.trajectory(first.id).counterfactuals] == [2]


@pytest.mark.parametrize("waves", [False, True])
async def test_counterfactuals_finished_before_a_kill_are_not_played_again(folder, waves):
    bench = Bench(folder, ["bad plan", "good plan"], samples=2, waves=waves)
    await bench.play()
    whole = await bench.again("sibling").collect(0, bench.trajectories)
    tools_then = len(bench.tool.seen)
    bench.script.asked.clear()
    # All of them have ended: nothing is asked, whoever goes on.
    same = await bench.again("sibling").collect(0, bench.trajectories)
    assert (bench.script.asked, len(bench.tool.seen)) == ([], tools_then)
    assert [trajectory.counterfactuals for trajectory in same.trajectories] == [
        trajectory.counterfactuals for trajectory in whole.trajectories
    ]


@pytest.mark.parametrize("waves", [False, True])
@pytest.mark.parametrize("killed_after", range(1, 6))
async def test_resumed_counterfactuals_equal_uninterrupted_counterfactuals(folder, waves, killed_after, credits_of):
    bench = Bench(folder, ["bad plan", "good plan"], samples=2, waves=waves)
    await bench.play()
    real, recorded = folder.store.record_step, []

    class Killed(BaseException):
        pass

    def step(trajectory, one):
        real(trajectory, one)
        recorded.append(one.id)
        if len(recorded) == killed_after:
            raise Killed

    folder.store.record_step = step
    with pytest.raises(BaseExceptionGroup):
        await bench.again("sibling").collect(0, bench.trajectories)
    before, called = list(recorded), len(bench.tool.seen)
    bench.script.asked.clear()
    folder.store.record_step = lambda trajectory, one: (real(trajectory, one), recorded.append(one.id))
    weighed = await bench.again("sibling").collect(0, bench.trajectories)
    assert len(recorded) == len(set(recorded)) == 6
    assert [credits_of(trajectory)[0] for trajectory in weighed.trajectories] == [-1.0, 1.0]
    # What was recorded is neither sampled nor run again; with waves it is sampled again, to be compared.
    done = {bench.team.seed_of(name.split("/", 1)[1][:-7], int(name[-3:])) for name in before}
    assert waves or not done & {seed for _, seed in bench.script.asked}
    assert len(bench.tool.seen) - called == 4 - sum(name.endswith(("/000", "/001")) for name in before)


# --- the formula ------------------------------------------------------------------------------------------------------


async def test_the_credit_of_an_action_by_hand(folder, counterfactuals, counterfactual_credit):
    def weighed_by(trajectory, *outcomes):
        return counterfactual_credit(replace(trajectory, counterfactuals=counterfactuals(*outcomes)), 0, "correct")

    (trajectory,) = await Bench(folder, ["good plan"]).play()
    cases = {
        (): (None, "not_played"),
        (0.0,): (1.0, None),
        (0.25, 0.5): (0.625, None),
        (0.0, "ToolError"): (1.0, None),
        ("ToolError",): (None, "ToolError"),
        (0.0, "PromptTooLong"): (None, "PromptTooLong"),
    }
    for outcomes, (value, why) in cases.items():
        credit = weighed_by(trajectory, *outcomes)
        assert (credit.value, credit.reason) == (value, why)
    failed = replace(trajectory, error=Failure(kind="PromptTooLong", message=""))
    assert weighed_by(failed, 0.0).reason == "no_outcome"
    assert counterfactual_credit(replace(trajectory, outcome={}), 0, "correct").reason == "no_outcome"


# --- a prompt that outgrew the window ---------------------------------------------------------------------------------


class Window(Script):
    """Plans in which the teller's prompt does not fit where the worker wrote much."""

    def __call__(self, prompt, sampling):
        if "tell" in prompt and "much" in prompt:
            raise PromptTooLong("40 tokens do not fit 20")
        return super().__call__(prompt, sampling)


@pytest.mark.parametrize(
    ("overflow", "default", "of_brief", "of_much", "metrics"),
    [
        # The brief one is worth 1, the other 0. With much in its place 1 - 0 and 0 - 0, with little 1 - 1 and 0 - 1.
        ("unsolved", "work much", 1.0, 0.0, {"rollouts": 2, "overflowed": 2, "settled": 2}),
        ("unsolved", "work 4", 0.0, -1.0, {"rollouts": 2, "overflowed": 0, "settled": 2}),
        (
            "unknown", "work much", None, None,
            {"rollouts": 1, "overflowed": 1, "settled": 0, "missing/PromptTooLong": 1, "missing/no_outcome": 1},
        ),
        (
            "unknown", "work 4", 0.0, None,
            {"rollouts": 1, "overflowed": 0, "settled": 1, "missing/no_outcome": 1},
        ),
    ],
)  # fmt: skip
async def test_what_outgrows_the_window_is_unsolved_here_and_there(
    folder, experience_builder, credits_of, overflow, default, of_brief, of_much, metrics
):
    builder = experience_builder(overflow)
    bench = Bench(folder, [], samples=2, settle=builder.settle)
    bench.script = Window(["good plan"] * 2, ["work 4", "work much"])
    bench.team = team_of(bench.script, bench.tool, Chain())
    brief, much = await bench.play()
    assert (brief.error, much.error.kind) == (None, "PromptTooLong")
    collector = bench.again("default", agents=["worker"], default_actions={"worker": fenced(default)})
    weighed = await collector.collect(0, bench.trajectories)
    assert [one.error for one in weighed.trajectories] == [None, much.error], "recorded as it was"
    settled = builder.settle(weighed.trajectories)
    assert [credits_of(one) for one in settled] == [[None, of_brief, None], [None, of_much]]
    assert weighed.figures.metrics() == {"lost": 0, **metrics}


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_the_bound_counts_what_may_follow_each_replaced_action():
    section = replace(NO_COUNTERFACTUALS, use="resample", samples=2, agents=["coder"])
    turns = {"solver": 1, "coder": 2}
    # After the coder's first action it may act twice, after its second once: 3; the solver at most once after each.
    assert max_actions_after(turns, ("solver", "coder"), ["coder"]) == {"solver": 2.0, "coder": 3.0}
    assert bound_counterfactuals(section, turns, {"solver": 10, "coder": 100}, 8) == CounterfactualBound(
        rollouts=32, actions=80, tokens=5120
    )
    assert bound_counterfactuals(section, {"solver": 1}, {"solver": 10, "coder": 100}, 8).tokens is None
    quarter = replace(section, use="default", share=0.25)
    assert bound_counterfactuals(quarter, turns, {"solver": 10, "coder": 100}, 8) == CounterfactualBound(
        rollouts=4, actions=10, tokens=240
    )


async def test_counterfactual_rollouts_stay_within_the_announced_bound(folder):
    bench = Bench(folder, ["good plan"] * 9, samples=2)
    await bench.play()
    section = replace(NO_COUNTERFACTUALS, use="resample", samples=2)
    weighed = await bench.again("resample", samples=2).collect(0, bench.trajectories)
    said = bound_counterfactuals(
        section, bench.team.workflow.max_turns, dict.fromkeys(bench.team.workflow.agents, 256), 2
    )
    assert len(weighed.rollouts) == said.rollouts == 12 and len(bench.script.asked) == 24 <= said.actions


def test_a_prompt_that_the_team_did_not_make_long_is_no_overflow():
    outgrown = Failure(kind="PromptTooLong", message="80 > 64", quoted={"t/0": 80})
    rollouts = tuple(
        Trajectory(id=f"t/{number}", task=Task(id="t", prompt="?"), sample=0, iteration=0, error=error)
        for number, error in enumerate((None, outgrown, replace(outgrown, quoted={})))
    )
    figures = CounterfactualResult(trajectories=(), rollouts=rollouts, settled=0).figures
    assert (figures.rollouts, figures.overflowed) == (3, 1)
