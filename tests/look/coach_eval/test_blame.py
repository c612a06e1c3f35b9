"""Blame against counterfactual credit, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mappa.look.coach_eval.batch_judge import JudgingLimits
from mappa.look.coach_eval.blame import NO_BLAME, NO_CREDIT, NO_SCORE, NOT_ACTED, compute_blame_metrics, evaluate_blame
from mappa.look.coach_eval.labelled_actions import LabelledSet
from mappa.rollout.named_coach import NamedCoach
from mappa_core import NOBODY, Coach, Verdict

AGENTS = ("planner", "worker", "teller")


@pytest.fixture
def played(labelled):
    """A trajectory whose actions, one of each agent, have these credits; None has none and is left out."""

    def make(name, *credits_of_actions):
        actions = [labelled(name, 0.0, agent=agent, position=place) for place, agent in enumerate(AGENTS)]
        steps = [action.scene.step for action in actions]
        return [
            replace(one, label=credit, scene=replace(one.scene, earlier=tuple(steps[:place])))
            for place, (one, credit) in enumerate(zip(actions, credits_of_actions, strict=True))
            if credit is not None
        ]

    return make


def scored(*points, blame=None):
    return [Verdict.scored(point, "", blame=blame) for point in points]


def test_verdicts_agree_if_they_score_the_guilty_lowest_and_blame_it(played):
    trajectories = [played("a", -1.0, 0.0, 0.0), played("b", 0.0, -1.0, 0.0), played("c", 1.0, 1.0, 1.0)]
    verdicts = [scored(1, 9, 8, blame="planner"), scored(9, 2, 8), scored(9, 9, 9, blame=NOBODY)]
    verdicts[1] = [verdicts[1][0], *scored(2, 8, blame="worker")]
    found = compute_blame_metrics("sharp", trajectories, verdicts)
    assert (found.lowest.trajectories, found.lowest.agreement.value) == (2, 1.0)
    assert found.lowest.chance.value == pytest.approx(1 / 3) and found.lowest.beyond.value == pytest.approx(2 / 3)
    assert (found.blamed.trajectories, found.blamed.agreement.value, found.blamed.chance.value) == (2, 1.0, 1 / 3)
    assert (found.blamed_actions, found.raises.value, found.gain.value) == (2, 1.0, 1.0)
    # The seven others gain 0 four times and lose 1 three times.
    assert found.beyond.value == pytest.approx(1.0 + 3 / 7)
    assert found.unsettled == {}


def test_ties_are_shared_and_wrong_blame_shows(played):
    trajectories = [played("a", -0.5, -0.5, 0.0), played("b", 0.0, 0.0, -1.0)]
    verdicts = [scored(3, 5, 3, blame="teller"), scored(4, 4, 4, blame="planner")]
    found = compute_blame_metrics("blunt", trajectories, verdicts)
    assert found.lowest.agreement.value == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert found.lowest.chance.value == pytest.approx((2 / 3 + 1 / 3) / 2)
    # Blame of the teller by actions before it acted cannot be compared; its own is of an action that gains nothing.
    assert (found.blamed.agreement.value, found.blamed_actions, found.gain.value) == (0.0, 2, 0.0)
    assert found.unsettled == {NOT_ACTED: 2}


def test_undecided_trajectories_are_counted_and_give_no_number(played):
    trajectories = [played("a", -1.0, None, 0.0), played("b", 0.0, 0.0, -1.0), played("c", -1.0, 0.0, 0.0)]
    verdicts = [
        scored(5, 1, blame="worker"),
        [Verdict.failed("away")] * 3,
        scored(1, 2, 3, blame=NOBODY),
    ]
    found = compute_blame_metrics("patchy", trajectories, verdicts)
    assert found.unsettled == {NOT_ACTED: 1, NO_CREDIT: 1, NO_SCORE: 1, NO_BLAME: 2}
    assert (found.lowest.trajectories, found.lowest.agreement.value) == (2, 0.5)
    assert (found.blamed.trajectories, found.blamed.agreement.value) == (1, 0.0)
    assert (found.blamed_actions, found.raises, found.gain, found.beyond) == (0, None, None, None)
    assert found.counts.failed == 3


class Oracle(Coach):
    """Scores and blames as it is told, by agent."""

    async def score(self, scene):
        return Verdict.scored(2.0 if scene.step.agent == "planner" else 8.0, "", blame="planner")


async def test_a_certificate_asks_every_coach_about_every_action_and_draws_tasks(played):
    actions = [one for n in range(12) for one in played(f"t{n}", -1.0 if n % 2 else -0.5, 0.0, 0.0)]
    labels = LabelledSet(actions=tuple(actions), left_out={"actions: ToolError": 3})
    heard = []
    asking = JudgingLimits(concurrency=2, timeout_s=5.0)
    found = await evaluate_blame([NamedCoach(name="oracle", coach=Oracle())], labels, asking, on_verdict=heard.append)
    assert (found.actions, found.trajectories, found.guilty, len(heard)) == (36, 12, 12, 36)
    (oracle,) = found.coaches
    # All picks are right, in twelve tasks: Wilson's interval for twelve values.
    for share in (oracle.lowest.agreement, oracle.blamed.agreement, oracle.raises):
        assert (share.value, share.high) == (1.0, 1.0)
        assert share.low == pytest.approx(12 / (12 + 1.959964**2))
    assert 0.5 < oracle.gain.low < oracle.gain.value == 0.75 < oracle.gain.high < 1.0
    assert oracle.spearman.value > 0.9 and found.left_out == {"actions: ToolError": 3}
    one_task = LabelledSet(
        actions=tuple(
            replace(action, scene=replace(action.scene, task=replace(action.scene.task, cluster="x")))
            for action in actions
        ),
        left_out={},
    )
    alone = await evaluate_blame([NamedCoach(name="oracle", coach=Oracle())], one_task, asking)
    assert alone.coaches[0].gain.value == 0.75 and alone.coaches[0].gain.low is None
