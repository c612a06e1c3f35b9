"""Who is asked for which verdict, when, and what is never asked for twice."""

import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from mappa.rollout.replay import Replay
from mappa.testing import FixedCoach, MemoryRecorder, play
from mappa_core import Coach, CoachError, ConfigError, Message, Role, Task, Usage, Verdict, Workflow

TASK = Task(id="t", prompt="p", reference="truth")


class Two(Workflow):
    """Two agents after one another; the second may ask for the first's verdict, or raise."""

    agents = {"first": Role(brief="a"), "second": Role(brief="b")}  # noqa: RUF012

    def __init__(self, *, feedback=False, raises=False):
        self._feedback, self._raises = feedback, raises

    async def run(self, stage):
        step = await stage.act("first", [Message(role="user", content="go")])
        if self._feedback:
            await stage.verdict(step)
        await stage.act("second", [Message(role="user", content="go on")])
        if self._raises:
            raise RuntimeError("lost")
        stage.record(correct=1.0)


class Reviewer(Coach):
    """Judges all it is shown together and notes it; its score is the number of actions."""

    def __init__(self, *, by_trajectory=True, usage=None):
        self.groups = []
        self._by_trajectory, self._usage = by_trajectory, usage

    @property
    def by_trajectory(self):
        return self._by_trajectory

    async def score(self, scene):
        raise AssertionError("it is asked for all of them together")

    async def review(self, scenes):
        self.groups.append(tuple(scenes))
        return [replace(Verdict.scored(len(scenes), "seen"), usage=self._usage) for _ in scenes]


def phases(trajectory):
    return [(verdict.step[-3:], verdict.phase, verdict.score) for verdict in trajectory.verdicts]


async def test_a_coach_that_judges_by_trajectory_is_asked_once_and_without_the_outcome():
    coach = Reviewer()
    trajectory = await play(Two(), TASK, ["x", "y"], coach=coach)
    assert phases(trajectory) == [("000", "live", 2.0), ("001", "live", 2.0)]
    ((one, other),) = coach.groups
    assert (one.later, one.outcome, other.outcome) == (None, None, None)
    assert [step.agent for step in other.earlier] == ["first"]


async def test_a_coach_gets_the_whole_trajectory_and_the_truth_with_the_actions_that_may_show_it():
    coach, looking_back = Reviewer(), Reviewer()
    await play(Two(), TASK, ["x", "y"], coach=coach, hindsight=looking_back, reference_for=["second"])
    for judge in (coach, looking_back):
        (group,) = judge.groups
        assert {scene.step.agent: scene.task.reference for scene in group} == {"first": None, "second": "truth"}


async def test_hindsight_scenes_show_later_steps_and_the_outcome():
    looking_back = Reviewer()
    trajectory = await play(Two(), TASK, ["x", "y"], coach=FixedCoach(5), hindsight=looking_back)
    assert sorted(phases(trajectory)) == [
        ("000", "after", 2.0), ("000", "live", 5.0), ("001", "after", 2.0), ("001", "live", 5.0)
    ]  # fmt: skip
    ((one, other),) = looking_back.groups
    assert [step.agent for step in one.later] == ["second"] and other.later == ()
    assert one.outcome == other.outcome == {"correct": 1.0}


async def test_a_trajectory_without_an_outcome_is_not_judged_in_hindsight():
    looking_back = Reviewer()
    trajectory = await play(Two(raises=True), TASK, ["x", "y"], coach=FixedCoach(5), hindsight=looking_back)
    assert looking_back.groups == [] and {phase for _, phase, _ in phases(trajectory)} == {"live"}


class Broken(Reviewer):
    """Raises what it is given, on a line of its own."""

    def __init__(self, error):
        super().__init__()
        self._error = error

    async def review(self, scenes):
        raise self._error


RAISED_AT = f"{Path(__file__).name}:{inspect.getsourcelines(Broken.review)[1] + 1}"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("points"), f"KeyError: 'points' ({RAISED_AT})"),
        (CoachError("no key"), "CoachError: no key"),
        (ConnectionError("gone"), "ConnectionError: gone"),
    ],
)
async def test_failed_verdict_names_the_line_of_the_coachs_bug(error, said):
    trajectory = await play(Two(), TASK, ["x", "y"], coach=FixedCoach(5), hindsight=Broken(error))
    assert {verdict.error for verdict in trajectory.verdicts if verdict.phase == "after"} == {said}


async def test_feedback_from_a_coach_that_speaks_only_at_the_end_is_refused_and_not_waited_for():
    with pytest.raises(ConfigError, match=r"first .*batch=step"):
        await play(Two(feedback=True), TASK, ["x", "y"], coach=Reviewer())


async def test_recorded_verdicts_are_reused_except_failed_verdicts():
    first = await play(Two(), TASK, ["x", "y"], coach=Reviewer(), hindsight=Reviewer())
    coach, looking_back, recorder = Reviewer(), Reviewer(), MemoryRecorder()
    again = await play(
        Two(), TASK, [], coach=coach, hindsight=looking_back, recorder=recorder,
        recorded=Replay(steps=first.steps, verdicts=first.verdicts),
    )  # fmt: skip
    assert coach.groups == looking_back.groups == [] and recorder.verdicts == []
    assert again.verdicts == first.verdicts
    lost = tuple(
        replace(Verdict.failed("away"), id=verdict.id, step=verdict.step, phase=verdict.phase)
        if verdict.phase == "live" and verdict.step.endswith("001")
        else verdict
        for verdict in first.verdicts
    )
    again = await play(
        Two(), TASK, [], coach=coach, hindsight=looking_back, recorder=recorder,
        recorded=Replay(steps=first.steps, verdicts=lost),
    )  # fmt: skip
    assert [len(group) for group in coach.groups] == [2] and looking_back.groups == []
    assert [verdict.step[-3:] for verdict in recorder.verdicts] == ["001"]
    assert phases(again) == phases(first)


async def test_a_review_that_breaks_or_is_short_gives_no_number_to_any_of_its_actions():
    class Short(Reviewer):
        async def review(self, scenes):
            return [Verdict.scored(9, "only one")]

    class Broken(Reviewer):
        async def review(self, scenes):
            raise ConnectionError("away")

    for coach, why in ((Short(), "1 verdicts on 2 actions"), (Broken(), "ConnectionError: away")):
        trajectory = await play(Two(), TASK, ["x", "y"], coach=coach)
        assert [verdict.status for verdict in trajectory.verdicts] == ["failed", "failed"]
        assert all(why in verdict.error for verdict in trajectory.verdicts)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "TypeError: the coach returned None, not a Verdict"),
        (5.0, "TypeError: the coach returned float, not a Verdict"),
        (Verdict.scored(5, None), "a Verdict.reasoning that cannot be stored: Expected str, got null"),
        (Verdict.scored(5, ["a"]), "Verdict.reasoning that cannot be stored"),
        (Verdict.scored(5, "x", blame=5), "Verdict.blame that cannot be stored: Expected str | null, got int"),
        (Verdict.scored(5, "x", correction=7), "Verdict.correction that cannot be stored"),
        (replace(Verdict.scored(5, "x"), members=(Verdict.scored(5, None),)), "Verdict.members[0].reasoning"),
    ],
)
@pytest.mark.parametrize("by_trajectory", [True, False])
async def test_invalid_return_value_of_a_coach_is_a_failed_verdict(given, why, by_trajectory):
    class Careless(Reviewer):
        async def score(self, scene):
            return given

        async def review(self, scenes):
            return [given for _ in scenes]

    trajectory = await play(Two(), TASK, ["x", "y"], coach=Careless(by_trajectory=by_trajectory))
    assert [verdict.status for verdict in trajectory.verdicts] == ["failed", "failed"]
    assert all(why in verdict.error for verdict in trajectory.verdicts)


async def test_review_that_returns_none_is_named_in_the_failed_verdicts():
    class Silent(Reviewer):
        async def review(self, scenes):
            pass

    trajectory = await play(Two(), TASK, ["x", "y"], coach=Silent())
    assert {verdict.error for verdict in trajectory.verdicts} == {"TypeError: the coach gave 0 verdicts on 2 actions"}


async def test_no_coach_is_called_past_the_cap_and_replayed_verdicts_are_free():
    paid = Usage(calls=1, prompt_tokens=10, completion_tokens=1, usd=0.6)

    class Dear(Coach):
        asked = 0

        async def score(self, scene):
            self.asked += 1
            return replace(Verdict.scored(5, "dear"), usage=paid, replayed=scene.step.agent == "first")

    coach = Dear()
    trajectory = await play(Two(feedback=True), TASK, ["x", "y"], coach=coach, hindsight=coach, spend_usd=0.5)
    after = [verdict for verdict in trajectory.verdicts if verdict.phase == "after"]
    assert coach.asked == 2
    assert [verdict.status for verdict in after] == ["failed", "failed"]
    assert all("spend" in verdict.error for verdict in after)
