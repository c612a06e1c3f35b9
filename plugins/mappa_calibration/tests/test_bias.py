"""A coach's preferences are taken off its scores; what is real, unknown or new is left alone."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_calibration.contrasts import ActionColumns
from mappa_calibration.corrected_coach import BiasCorrectedCoach, OffsetModel
from mappa_calibration.options import BiasOptions
from mappa_core.protocols import Coach, Provider
from mappa_core.records import Role, Scene, Task, Trajectory, Verdict
from mappa_core.testing import CoachContract

SURE = BiasOptions(shrink=0.0)


class Scripted(Coach):
    """Gives a step the verdict that its reply names."""

    by_trajectory = True
    providers = (Provider(name="test", model="m", host="h", priced=True),)

    def __init__(self, verdicts=()):
        self.verdicts = dict(verdicts)
        self.learned = self.closed = self.cassette = None
        self.reviewed = 0

    async def score(self, scene):
        return self.verdicts[scene.step.id]

    async def review(self, scenes):
        self.reviewed += 1
        return [self.verdicts[scene.step.id] for scene in scenes]

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


@pytest.fixture
def trajectory(act):
    """A trajectory of one action an agent with its raw score."""

    def make(number, strata, score, *, outcome=None, agent="solver", phase="live", **verdict):
        step = act(agent, "…", id=f"{number}/{agent}", strata=strata)
        given = Verdict(**{"status": "scored", "score": score, "step": step.id, "phase": phase, **verdict})
        return Trajectory(
            id=str(number),
            task=Task(id=f"task-{number}", prompt="?"),
            sample=0,
            iteration=0,
            steps=(step,),
            verdicts=(given,),
            outcome={} if outcome is None else {"correct": outcome},
        )

    return make


@pytest.fixture
def scene(act):
    def make(strata, *, agent="solver", later=None, identity="now"):
        step = act(agent, "…", id=identity, strata=strata)
        return Scene(task=Task(id="t", prompt="?"), role=Role(brief="solves"), step=step, later=later)

    return make


def debiased(options=SURE, coach=None, *, strata=("plan",), active=True):
    return BiasCorrectedCoach(coach or Scripted(), replace(options, strata=list(strata), correct=active))


def points(coach, stratum, agent="solver"):
    return coach.bias("live", agent, {"plan": stratum})


def test_what_a_stratum_gets_more_at_equal_outcome_is_its_bias(trajectory):
    coach = debiased()
    cells = [("sum", 1.0, 8.5, 3), ("scale", 1.0, 7.0, 1), ("sum", 0.0, 7.1, 1), ("scale", 0.0, 5.6, 3)]
    rows = [(stratum, outcome, score) for stratum, outcome, score, count in cells for _ in range(count)]
    coach.learn([trajectory(n, {"plan": s}, score, outcome=outcome) for n, (s, outcome, score) in enumerate(rows)])
    # 1.5 points between them, four actions each: half of it up, half of it down.
    assert points(coach, "sum") == pytest.approx(0.75)
    assert points(coach, "scale") == pytest.approx(-0.75)


def test_real_difficulty_stays(trajectory):
    coach = debiased()
    rows = [("sum", 1.0)] * 9 + [("sum", 0.0)] + [("scale", 1.0)] * 2 + [("scale", 0.0)] * 8
    coach.learn([trajectory(n, {"plan": s}, 3 + 6 * right, outcome=right) for n, (s, right) in enumerate(rows)])
    assert points(coach, "sum") == pytest.approx(0, abs=1e-9)


def test_what_the_outcome_does_not_say_is_not_learned(trajectory):
    coach = debiased()
    coach.learn([trajectory(n, {"plan": s}, score) for n, (s, score) in enumerate([("sum", 8.0), ("scale", 4.0)] * 10)])
    assert points(coach, "sum") == 0


def test_doubt_takes_off_half_where_both_strata_have_as_many_actions_as_it_is_worth(trajectory):
    coach = debiased(BiasOptions(shrink=20.0))
    rows = [("sum", 7.0), ("scale", 5.0)] * 20
    coach.learn([trajectory(n, {"plan": s}, score, outcome=1.0) for n, (s, score) in enumerate(rows)])
    assert points(coach, "sum") - points(coach, "scale") == pytest.approx(1.0)


def test_biases_average_to_zero_over_actions(trajectory):
    coach = debiased(BiasOptions(shrink=5.0))
    rows = [("a", 8.0)] * 11 + [("b", 5.0)] * 3 + [("c", 2.0)] * 2
    coach.learn([trajectory(n, {"plan": s}, score, outcome=1.0) for n, (s, score) in enumerate(rows)])
    assert 11 * points(coach, "a") + 3 * points(coach, "b") + 2 * points(coach, "c") == pytest.approx(0)


def test_older_iterations_count_less(trajectory):
    coach = debiased(BiasOptions(shrink=0.0, decay=0.5))

    def iteration(gap):
        rows = [("sum", 5.0 + gap), ("scale", 5.0)] * 4
        return [trajectory(n, {"plan": s}, score, outcome=1.0) for n, (s, score) in enumerate(rows)]

    coach.learn(iteration(3.0))
    coach.learn(iteration(0.0))
    assert points(coach, "sum") - points(coach, "scale") == pytest.approx(1.0)  # (0.5 * 3 + 1 * 0) / 1.5


def test_scores_that_rise_while_strata_change_are_no_preference(trajectory):
    coach = debiased()
    for score, sums in [(3.0, 2), (5.0, 5), (7.0, 8)]:
        rows = ["sum"] * sums + ["scale"] * (10 - sums)
        coach.learn([trajectory(n, {"plan": s}, score, outcome=0.0) for n, s in enumerate(rows)])
    assert points(coach, "sum") == pytest.approx(0, abs=1e-9)


def test_stratifiers_that_go_together_are_not_corrected_twice(trajectory):
    coach = debiased(strata=("plan", "task"))
    rows = [("sum", 7.0), ("scale", 5.0)] * 6
    coach.learn([trajectory(n, {"plan": s, "task": s}, score, outcome=1.0) for n, (s, score) in enumerate(rows)])
    both = [coach.bias("live", "solver", {"plan": one, "task": one}) for one in ("sum", "scale")]
    assert both == pytest.approx([1.0, -1.0])


def test_an_action_without_a_stratum_tells_nothing_of_that_stratifier_but_of_others(trajectory):
    coach = debiased(strata=("plan", "task"))
    rows = [({"plan": "sum", "task": "x"}, 8.0), ({"plan": "scale", "task": "x"}, 6.0)] * 5
    rows += [({"task": "x"}, 1.0), ({"task": "y"}, 0.0)] * 5
    coach.learn([trajectory(n, strata, score, outcome=1.0) for n, (strata, score) in enumerate(rows)])
    assert points(coach, "sum") == pytest.approx(1.0)
    gap = coach.bias("live", "solver", {"task": "x"}) - coach.bias("live", "solver", {"task": "y"})
    assert gap == pytest.approx(1.0)


def test_raw_scores_are_learned_not_corrected_ones(trajectory):
    coach = debiased()
    rows = [("sum", 4.0, 7.0), ("scale", 6.0, 5.0)] * 4
    coach.learn(
        [trajectory(n, {"plan": s}, score, outcome=1.0, raw_score=raw) for n, (s, score, raw) in enumerate(rows)]
    )
    assert points(coach, "sum") == pytest.approx(1.0)


def test_agents_and_phases_are_kept_apart(trajectory):
    coach = debiased()
    rows = [("sum", 7.0), ("scale", 5.0)] * 4
    live = [trajectory(n, {"plan": s}, score, outcome=1.0) for n, (s, score) in enumerate(rows)]
    after = [trajectory(n, {"plan": s}, 10 - score, outcome=1.0, phase="after") for n, (s, score) in enumerate(rows)]
    coach.learn([*live, *after])
    assert points(coach, "sum") == pytest.approx(1.0)
    assert coach.bias("after", "solver", {"plan": "sum"}) == pytest.approx(-1.0)
    assert points(coach, "sum", agent="coder") == 0


@pytest.fixture
def knowing(trajectory):
    """A coach that has learned that `sum` gets a point too much, and `scale` one too little."""

    def make(options=SURE, **verdicts):
        coach = debiased(options, Scripted(verdicts), active=False)
        rows = [("sum", 7.0), ("scale", 5.0)] * 4
        coach.learn([trajectory(n, {"plan": s}, score, outcome=1.0) for n, (s, score) in enumerate(rows)])
        return coach

    return make


async def test_only_an_active_coach_corrects_and_the_raw_score_stays_visible(knowing, scene):
    coach = knowing(now=Verdict.scored(6, "so so", blame="nobody"))
    assert await coach.score(scene({"plan": "sum"})) == Verdict.scored(6, "so so", blame="nobody")
    coach._active = True
    corrected = await coach.score(scene({"plan": "sum"}))
    assert (corrected.score, corrected.raw_score) == (pytest.approx(5), 6)
    assert (corrected.reasoning, corrected.blame) == ("so so", "nobody")


async def test_all_actions_of_a_trajectory_are_corrected_in_one_review(knowing, scene):
    coach = knowing(a=Verdict.scored(6, ""), b=Verdict.scored(6, ""))
    coach._active = True
    verdicts = await coach.review([scene({"plan": "sum"}, identity="a"), scene({"plan": "scale"}, identity="b")])
    assert [verdict.score for verdict in verdicts] == pytest.approx([5, 7])


@pytest.mark.parametrize("score", [0.0, 0.5, 9.5, 10.0])
@pytest.mark.parametrize("stratum", ["sum", "scale"])
async def test_no_correction_leaves_the_scale(knowing, scene, score, stratum):
    coach = knowing(now=Verdict.scored(score, ""))
    coach._active = True
    assert 0 <= (await coach.score(scene({"plan": stratum}))).score <= 10


async def test_no_score_moves_by_more_than_the_most(knowing, scene):
    coach = knowing(BiasOptions(shrink=0.0, max_points=0.4), now=Verdict.scored(6, ""))
    coach._active = True
    assert (await coach.score(scene({"plan": "sum"}))).score == pytest.approx(5.6)


@pytest.mark.parametrize("verdict", [Verdict.abstained("prose"), Verdict.failed("no key")])
async def test_what_has_no_score_stays_without_one(knowing, scene, verdict):
    coach = knowing(now=verdict)
    coach._active = True
    assert await coach.score(scene({"plan": "sum"})) is verdict


@pytest.mark.parametrize("strata", [{}, {"plan": "new"}, {"task": "sum"}])
async def test_an_action_of_no_known_stratum_keeps_its_verdict(knowing, scene, strata):
    coach = knowing(now=Verdict.scored(6, ""))
    coach._active = True
    assert (await coach.score(scene(strata))).raw_score is None


async def test_verdicts_in_hindsight_have_a_bias_of_their_own(knowing, scene):
    coach = knowing(now=Verdict.scored(6, ""))
    coach._active = True
    assert (await coach.score(scene({"plan": "sum"}, later=()))).score == 6


async def test_the_rest_is_the_coach_itself(trajectory, scene):
    inner = Scripted({"now": Verdict.scored(6, "")})
    coach = debiased(coach=inner)
    cassette = object()
    coach.use_cassette(cassette)
    await coach.review([scene({})])
    coach.learn([trajectory(1, {}, 5.0)])
    await coach.close()
    assert (coach.by_trajectory, coach.providers) == (True, Scripted.providers)
    assert (inner.cassette, inner.reviewed, inner.learned, inner.closed) == (cassette, 1, 1, True)


def test_state_survives_json_with_the_coachs_own_and_stays_active(knowing):
    coach = knowing(BiasOptions(shrink=3.0))
    coach._active = True
    fresh = debiased(BiasOptions(shrink=3.0), active=False)
    fresh.load_state_dict(json.loads(json.dumps(coach.state_dict())))
    assert fresh.state_dict() == coach.state_dict()
    assert fresh.state_dict()["active"] and fresh.state_dict()["coach"] == {"learned": 8}
    assert points(fresh, "sum") == points(coach, "sum") > 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_offsets_are_those_of_a_regression_on_dummies(seed):
    """An independent reference: one design matrix of all iterations, ridge on the strata alone."""
    rng = np.random.default_rng(seed)
    offsets, x, y, design = OffsetModel(), [], [], []
    for iteration in range(3):
        n = 25
        plan = rng.integers(0, 3, n)
        outcome = rng.random(n)
        score = 5 + iteration + 2 * outcome + np.array([1.0, 0.0, -0.5])[plan] + rng.normal(size=n)
        offsets = offsets.with_actions(
            ActionColumns(
                points=score,
                outcome=outcome,
                cluster=np.arange(n),
                tokens=np.full(n, math.nan),
                strata={"plan": np.array(["a", "b", "c"], dtype=object)[plan]},
            )
        )
        x.append(np.eye(3)[plan])
        y.append(score)
        own = np.zeros((n, 6))
        own[:, 2 * iteration : 2 * iteration + 2] = np.column_stack([np.ones(n), outcome])
        design.append(own)
    whole = np.column_stack([np.concatenate(x), np.concatenate(design)])
    ridge = np.diag([7.0] * 3 + [0.0] * 6)
    beta = np.linalg.solve(whole.T @ whole + ridge, whole.T @ np.concatenate(y))[:3]
    count = np.concatenate(x).sum(axis=0)
    expected = beta - count @ beta / count.sum()
    found = offsets.fit(7.0)
    assert [found["plan", stratum] for stratum in "abc"] == pytest.approx(expected.tolist(), abs=1e-8)


class TestDebiasedKeepsTheContractOfCoaches(CoachContract):
    @pytest.fixture(autouse=True)
    def _scenes(self, scene):
        self.scenes = [scene({"plan": "sum"}), scene({})]

    def coach(self):
        return debiased(coach=Scripted({"now": Verdict.scored(6, "")}))
