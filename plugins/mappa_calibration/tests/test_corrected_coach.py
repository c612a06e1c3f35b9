"""The coach around a coach: what is judged twice, what is taken off, and that the rest is the coach itself."""

import json
from dataclasses import replace
from random import Random

import pytest

from mappa.testing import CoachContract
from mappa_calibration.actions import REFERENCE
from mappa_calibration.corrected_coach import BiasCorrectedCoach
from mappa_calibration.options import AlarmOptions, BiasOptions
from mappa_core import Coach, ConfigError, Role, Scene, Task, Trajectory, Usage, Use, Verdict
from mappa_core.transport import Provider

TEAM = {"solver": Role(brief="solves"), "coder": Role(brief="codes")}


class Fond(Coach):
    """Gives 5 points, and 2 more to an agent that it knows by its name."""

    by_trajectory = True
    providers = (Provider(name="test", model="m", host="h", priced=True),)

    def __init__(self, fails=False):
        self.fails = fails
        self.learned = self.closed = self.cassette = None
        self.shown = []

    async def score(self, scene):
        self.shown.append(scene.step.agent)
        if self.fails and scene.step.agent not in TEAM:
            raise RuntimeError("no key")
        usage = Usage(calls=1, prompt_tokens=10, completion_tokens=1, usd=0.5)
        return replace(Verdict.scored(7 if scene.step.agent == "solver" else 5, "so", blame="nobody"), usage=usage)

    def use_cassette(self, cassette):
        self.cassette = cassette

    def learn(self, trajectories):
        self.learned = len(trajectories)

    def state_dict(self):
        return {"learned": self.learned}

    def load_state_dict(self, state):
        self.learned = state["learned"]

    async def close(self):
        self.closed = True


OPTIONS = BiasOptions(coach=Use(use="fond"), strata=["agent"], share=1.0, shrink=0.0)


@pytest.fixture
def scene(act):
    def make(agent="solver", identity="now", later=None, strata={"plan": "sum"}):  # noqa: B006
        step = act(agent, "…", id=identity, strata=strata)
        return Scene(task=Task(id="t", prompt="?"), role=TEAM[agent], step=step, team=TEAM, later=later)

    return make


@pytest.fixture
def learned(scene):
    """A coach that has learned from so many tasks, on each of which both agents acted, in every iteration."""

    async def make(options=OPTIONS, coach=None, tasks=60, iterations=(0,), **shown):
        wrapped = BiasCorrectedCoach(coach or Fond(), options)
        for iteration in iterations:
            report = wrapped.learn(await judged(wrapped, tasks, iteration, **shown))
        return wrapped, report

    async def judged(wrapped, tasks, iteration, **shown):
        trajectories = []
        for number in range(tasks):
            scenes = [scene(agent, f"{number}/{agent}", **shown) for agent in TEAM]
            verdicts = await wrapped.review(scenes)
            own = tuple(replace(verdict, step=shown.step.id) for verdict, shown in zip(verdicts, scenes, strict=True))
            steps, task = tuple(scene.step for scene in scenes), Task(id=f"task-{number}", prompt="?")
            outcome = {"correct": float(number % 2)}
            common = {"sample": 0, "iteration": iteration, "outcome": outcome}
            trajectories.append(Trajectory(id=str(number), task=task, steps=steps, verdicts=own, **common))
        return trajectories

    return make


async def test_an_action_is_judged_twice_and_blind(scene):
    inner = Fond()
    verdict = await BiasCorrectedCoach(inner, OPTIONS).score(scene())
    assert inner.shown == ["solver", "agent B"]
    (again,) = verdict.members
    assert (verdict.score, again.score, again.coach) == (7, 5, REFERENCE)
    assert (verdict.usage.calls, verdict.usage.usd) == (2, 1.0) and verdict.raw_score is None


async def test_one_action_is_asked_for_again_as_it_was_asked_for(scene):
    class Together(Fond):
        async def review(self, scenes):
            return [Verdict.scored(1, "together") for _ in scenes]

    coach = BiasCorrectedCoach(Together(), OPTIONS)
    assert (await coach.score(scene())).members[0].score == 5
    assert (await coach.review([scene()]))[0].members[0].score == 1


async def test_a_share_of_the_actions_is_judged_twice_the_same_ones_every_time(scene):
    coach = BiasCorrectedCoach(Fond(), replace(OPTIONS, share=0.25, initial_share=0.25))
    twice = [[bool((await coach.score(scene(identity=f"s{n}"))).members) for n in range(200)] for _ in range(2)]
    assert twice[0] == twice[1] and 30 <= sum(twice[0]) <= 70


class Even(Fond):
    async def score(self, scene):
        return Verdict.scored(5, "so")


class Moody(Fond):
    """Gives 2 or 8 points by chance, and others when it is asked again."""

    async def score(self, scene):
        self.shown.append(scene.step.agent)
        return Verdict.scored(Random(len(self.shown)).choice((2, 8)), "so")


@pytest.mark.parametrize(
    ("coach", "tasks", "iterations", "twice"),
    [
        pytest.param(Fond, 8, (), "all", id="nothing was learned"),
        pytest.param(Fond, 8, (0,), "all", id="too few tasks"),
        pytest.param(Fond, 8, (0, 9), "some", id="too few tasks for ten iterations"),
        pytest.param(Fond, 60, (0,), "some", id="shown"),
        pytest.param(Even, 60, (0,), "some", id="excluded"),
        pytest.param(Moody, 60, (0,), "all", id="neither"),
    ],
)
async def test_all_is_judged_twice_until_preferences_are_shown_or_excluded(
    learned, scene, coach, tasks, iterations, twice
):
    wrapped = BiasCorrectedCoach(coach(), replace(OPTIONS, share=0.25))
    if iterations:
        wrapped, _ = await learned(replace(OPTIONS, share=0.25), coach(), tasks, iterations)
    count = sum([bool((await wrapped.score(scene(identity=f"s{n}"))).members) for n in range(100)])
    assert count == 100 if twice == "all" else 10 <= count <= 40


async def test_a_second_coach_sees_what_the_first_one_sees(scene):
    second = Fond()
    coach = BiasCorrectedCoach(Fond(), replace(OPTIONS, second=Use(use="other")), second)
    assert (await coach.score(scene())).members[0].score == 7 and second.shown == ["solver"]


async def test_a_second_judgement_that_fails_leaves_the_first(scene):
    verdict = await BiasCorrectedCoach(Fond(fails=True), OPTIONS).score(scene())
    assert verdict.score == 7 and verdict.members[0].error.startswith("RuntimeError: no key (")


async def test_a_preference_for_an_agent_is_shown_and_taken_off(learned, scene):
    coach, report = await learned()
    assert [(alarm.kind, alarm.gap.agent, alarm.gap.stratum) for alarm in report.alarms] == [
        ("level", "everyone", "coder")
    ]
    assert "coder, against solver, beyond its own blind judgement" in str(report.alarms[0])
    liked, other = await coach.score(scene()), await coach.score(scene("coder"))
    assert (liked.score, liked.raw_score, other.score) == (pytest.approx(6), 7, pytest.approx(6))
    assert (liked.reasoning, liked.blame) == ("so", "nobody")
    assert (await coach.score(scene(later=()))).raw_score is None  # in hindsight nothing was learned


@pytest.mark.parametrize(
    ("changed", "score"),
    [
        ({"max_points": 0.4}, 6.6),
        ({"correct": False}, 7),
        ({"alarms": AlarmOptions(acknowledged=["everyone/agent"])}, 7),
    ],
)
async def test_what_is_bounded_only_watched_or_acknowledged(learned, scene, changed, score):
    coach, _ = await learned(replace(OPTIONS, **changed))
    assert (await coach.score(scene())).score == pytest.approx(score)


async def test_too_few_tasks_show_nothing(learned, scene):
    coach, report = await learned(tasks=8)
    assert report.alarms == () and (await coach.score(scene())).raw_score is None


async def test_an_alarm_may_pause_the_run(learned):
    _, report = await learned(replace(OPTIONS, alarms=AlarmOptions(level="pause")))
    assert report.pause.startswith("the coach drifts:\n  the coach gives everyone") and "acknowledged" in report.pause


async def test_without_a_second_judgement_a_preference_cannot_be_told_and_nothing_is_judged_twice(learned, scene):
    coach, report = await learned(replace(OPTIONS, strata=["length", "plan"]))
    assert report.gaps == () and len(report.notes) == 4
    assert report.notes[0] == (
        "a preference by length of coder (live) cannot be told from merit here: no second judgement of an action is "
        "blind to its length. A `second` coach can tell"
    )
    assert "blind to its plan. `words.plan` or a `second` coach can tell" in report.notes[1]
    assert (await coach.score(scene())).members == ()


class Rules(Fond):
    """Knows the team by the names of its agents."""

    async def score(self, scene):
        known = scene.step.agent in TEAM
        return Verdict.scored(5, "so") if known else Verdict.abstained("no rules for it\nat all")


async def test_where_no_second_judgement_gives_a_score_that_is_said_once_with_the_reason(learned):
    for options in (OPTIONS, replace(OPTIONS, strata=["plan"], words={"plan": ["sum"]})):
        _, report = await learned(options, Rules())
        agent = "everyone" if options is OPTIONS else "coder"
        assert (
            f"of {agent} (live) cannot be told from merit here: no second judgement has given a score so far, most "
            "often abstained: no rules for it. A `second` coach can tell"
        ) in report.notes[0]
    _, later = await learned(OPTIONS, Rules(), iterations=(0, 1))
    assert later.notes == ()


async def test_a_missing_second_score_is_reported_for_a_single_agent_too(learned):
    class Alone(Rules):
        async def score(self, scene):
            return Verdict.abstained("no rules.") if scene.step.agent != "coder" else Verdict.scored(5, "so")

    (note,) = (await learned(OPTIONS, Alone()))[1].notes
    assert note.startswith("a preference by agent of everyone (live) cannot be told from merit here: no second")
    assert "most often abstained: no rules. A `second` coach can tell" in note


async def test_a_second_coach_that_always_fails_is_said_and_one_that_does_once_is_not(scene):
    class Ill(Fond):
        async def score(self, scene):
            raise RuntimeError("no key")

    options, second = replace(OPTIONS, strata=["length"], second=Use(use="other")), Ill()

    async def scored(wrapped, number):
        judged = scene(identity=str(number))
        verdict = replace(await wrapped.score(judged), step=judged.step.id)
        common = {"sample": 0, "iteration": 0, "outcome": {"correct": 1.0}}
        return Trajectory(id=str(number), task=judged.task, steps=(judged.step,), verdicts=(verdict,), **common)

    ill = BiasCorrectedCoach(Fond(), options, second)
    (note,) = ill.learn([await scored(ill, number) for number in range(3)]).notes
    assert "no second judgement has given a score so far, most often failed: RuntimeError: no key (" in note
    well = BiasCorrectedCoach(Fond(), options, Fond())
    assert well.learn([await scored(well, 0)]).notes == ()
    well._second = second
    assert well.learn([await scored(well, 1)]).notes == ()


async def test_the_size_of_gaps_that_can_be_found_is_reported_once(learned):
    _, report = await learned(replace(OPTIONS, correct=False))
    (note,) = report.notes
    assert note.startswith("a preference by agent of everyone (live) is seen within 10 iterations from 0.00 points on")


async def test_an_unknown_stratifier_is_an_error(learned):
    with pytest.raises(ConfigError, match=r"strata: no action has the stratifier 'size'; there is agent, length, plan"):
        await learned(replace(OPTIONS, strata=["size"]))
    with pytest.raises(ConfigError, match=r"strata: no action has the stratifier 'size'; there is agent, length$"):
        await learned(replace(OPTIONS, strata=["size"], words={"size": ["big"]}), strata={})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"decay": 0.0}, "decay: must be above 0"),
        ({"share": 1.5}, "share: must be from 0 to 1"),
        ({"initial_share": -0.1}, "initial_share: must be from 0 to 1"),
        ({"second": Use(use="fond")}, "second: is the coach itself, which likes the same"),
        ({"share": 0.0}, "share: must be above 0, as a preference by agent is found by judging actions twice"),
        ({"shrink": -1.0}, "shrink: must be at least 0"),
        ({"max_points": 0.0}, "max_points: must be above 0"),
        ({"strata": []}, "strata: must name stratifiers"),
        ({"words": {"plan": ["sum"]}}, "words: 'plan' is not among strata"),
        ({"words": {"agent": ["sum"]}}, "words: leave out agent"),
        ({"alarms": AlarmOptions(acknowledged=["agent"])}, "AGENT/STRATIFIER"),
    ],
)
def test_options_that_make_no_sense_are_refused(changed, said):
    with pytest.raises(ConfigError, match=said):
        replace(OPTIONS, **changed).check()


async def test_the_state_survives_json_with_the_coachs_own(learned, scene):
    coach, _ = await learned()
    fresh = BiasCorrectedCoach(Fond(), OPTIONS)
    fresh.load_state_dict(json.loads(json.dumps(coach.state_dict())))
    assert fresh.state_dict() == coach.state_dict() and fresh.state_dict()["coach"] == {"learned": 60}
    assert await fresh.score(scene()) == await coach.score(scene())


async def test_everything_else_is_passed_on_to_the_coach(learned):
    inner = Fond()
    coach, _ = await learned(coach=inner)
    coach.use_cassette("cassette")
    await coach.close()
    assert (coach.by_trajectory, coach.providers) == (True, Fond.providers)
    assert (inner.cassette, inner.learned, inner.closed) == ("cassette", 60, True)


class TestContract(CoachContract):
    @pytest.fixture(autouse=True)
    def _scenes(self, scene):
        self.scenes = [scene(), scene("coder", later=())]

    def coach(self):
        return BiasCorrectedCoach(Fond(), OPTIONS)
