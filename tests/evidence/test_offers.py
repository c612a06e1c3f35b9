"""What the offers of the evidence folder do, which no package holds: a coach with a soft spot, one that fails, one that
is wrong, one that looks back, and two bugs."""

from dataclasses import replace

import bug_offers
import failing_offers
import hindsight_offers
import lenient_offers
import noisy_offers
import numpy as np
import pytest

from mappa_core import Coach, Completion, ConfigError, Message, Role, Scene, Step, Task, ToolResult, Verdict
from mappa_core.credit.estimators import ReinforcePlusPlus, ReinforcePlusPlusOptions
from mappa_mathchat.rule_coach import RuleCoach, RuleOptions
from mappa_mathchat.workflow import CODER, SOLVER, VERIFIER


class Rules(Coach):
    def __init__(self, verdict):
        self.verdict, self.closed = verdict, False

    async def score(self, scene):
        return self.verdict

    async def close(self):
        self.closed = True


def step(agent=SOLVER, text="", position=0, identity="s", strata=None, printed=None):
    results = () if printed is None else (ToolResult(tool="python", status="ok", stdout=printed),)
    return Step(
        id=identity,
        agent=agent,
        turn=0,
        position=position,
        policy="p",
        messages=(),
        reply=Message(role="assistant", content=text),
        completion=Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop"),
        strata=strata or {},
        results=results,
    )


def scene(one=None, stratum="all", **further):
    task = Task(id="t", prompt="?", stratum=stratum, meta={"plan": "steps"})
    return Scene(task=task, role=Role(brief="plans"), step=one or step(), **further)


def lenient(rules, likes="plan"):
    return lenient_offers.Lenient(rules, lenient_offers.LenientOptions(likes=likes))


@pytest.mark.parametrize(
    ("points", "plan", "task", "likes", "score"),
    [
        (10, "sum", "scale", "plan", 8.5),
        (10, "scale", "sum", "plan", 7.0),
        (3, "sum", "sum", "plan", 7.1),
        (0, None, "sum", "plan", 5.0),
        (10, "scale", "sum", "task", 8.5),
        (10, "sum", "scale", "task", 7.0),
        (10, "sum", "sum", "nothing", 7.0),
    ],
)
async def test_the_lenient_coach_gives_more_for_what_it_likes_than_for_being_right(points, plan, task, likes, score):
    coach = lenient(Rules(Verdict.scored(points, "why", blame="nobody")), likes)
    verdict = await coach.score(scene(step(strata={} if plan is None else {"plan": plan}), stratum=task))
    assert verdict.score == pytest.approx(score)
    assert (verdict.reasoning, verdict.blame) == ("why", "nobody")


async def test_the_lenient_coach_makes_up_no_number():
    rules = Rules(Verdict.abstained("prose"))
    coach = lenient(rules)
    assert await coach.score(scene(step(strata={"plan": "sum"}))) is rules.verdict
    await coach.close()
    assert rules.closed
    with pytest.raises(ConfigError, match=r"likes is 'sum'; it can be plan, task, nothing"):
        lenient(rules, "sum")


def failing(share, invents=None, seed=0):
    options = failing_offers.FailingOptions(share=share, invents=invents, seed=seed)
    return failing_offers.Failing(Rules(Verdict.scored(8, "why")), options)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.4, 1.0])
def test_a_coach_fails_as_often_as_it_is_to_and_always_on_the_same_actions(share):
    names = [f"train-{number:06d}/task/000/{place}" for number in range(1000) for place in range(4)]
    failed = np.array([failing(share).fails(name) for name in names])
    assert failed.mean() == pytest.approx(share, abs=4 * (share * (1 - share) / len(names)) ** 0.5)
    assert failed.tolist() == [failing(share).fails(name) for name in names]
    if share == 0.4:
        assert (failed != [failing(share, seed=1).fails(name) for name in names]).mean() == pytest.approx(
            0.48, abs=0.05
        )


async def test_a_failure_has_no_score_unless_one_is_invented():
    assert (await failing(0.0).score(scene())).score == 8
    honest, invented = await failing(1.0).score(scene()), await failing(1.0, 5.0).score(scene())
    assert (honest.status, honest.score) == ("failed", None)
    assert (invented.status, invented.score) == ("scored", 5.0)
    with pytest.raises(ConfigError, match=r"share is 1.2; it must lie between 0 and 1"):
        failing(1.2)


def noisy(share, verdict):
    return noisy_offers.Noisy(Rules(verdict), noisy_offers.NoisyOptions(share=share))


async def test_a_noisy_coach_turns_the_points_of_its_share_of_actions_round_and_nothing_else():
    given = Verdict.scored(8, "why", blame="nobody")
    assert await noisy(0.0, given).score(scene()) == given
    assert await noisy(1.0, given).score(scene()) == replace(given, score=2.0)
    assert await noisy(1.0, Verdict.abstained("prose")).score(scene()) == Verdict.abstained("prose")
    coach = noisy(0.3, given)
    names = [f"train-{number:06d}/task/000/0" for number in range(1000)]
    turned = [(await coach.score(scene(step(identity=name)))).score == 2.0 for name in names]
    assert turned == [coach.errs(name) for name in names]
    assert np.mean(turned) == pytest.approx(0.3, abs=0.06)
    with pytest.raises(ConfigError, match=r"share is -1; it must lie between 0 and 1"):
        noisy(-1, given)


PLAN = "start 3\nadd 4"
"""Comes to 7."""


@pytest.mark.parametrize(
    ("agent", "text", "answer", "right", "score"),
    [
        (SOLVER, PLAN, "7", True, 10),
        (SOLVER, PLAN, "8", True, 3),  # repaired by somebody
        (SOLVER, PLAN, "7", False, 3),
        (SOLVER, PLAN, "8", False, None),  # spoilt by somebody, or wrong itself
        (SOLVER, "prose", "8", False, 0),
        (CODER, "```python\nprint(7)\n```", "8", False, 10),
        (VERIFIER, r"\boxed{7}", "7", True, 10),
        (VERIFIER, r"\boxed{7}", "7", False, 7),  # faithful to the program, which printed 7
        (VERIFIER, "no box", "", False, 0),
    ],
)
async def test_looking_back_tells_what_the_outcome_tells_and_no_more(agent, text, answer, right, score):
    coach = hindsight_offers.LookingBack(RuleCoach(RuleOptions()))
    last = step(VERIFIER, rf"\boxed{{{answer}}}" if answer else "no box", 2)
    team = {SOLVER: step(SOLVER, PLAN, 0), CODER: step(CODER, "", 1, printed="7"), VERIFIER: last}
    team[agent] = replace(team[agent], reply=Message(role="assistant", content=text))
    place = list(team).index(agent)
    steps = tuple(team.values())
    seen = scene(steps[place], earlier=steps[:place], later=steps[place + 1 :], outcome={"correct": float(right)})
    verdict = await coach.score(seen)
    await coach.close()
    assert verdict.score == score
    assert seen.task.reference is None


async def test_looking_back_is_refused_live():
    with pytest.raises(ValueError, match=r"hindsight alone"):
        hindsight_offers.inferred(scene())


def whitened_twice(ranks):
    return bug_offers.WhitenedTwice(bug_offers.WhitenedTwiceOptions(kl_coef=0.0, ranks=ranks))


@pytest.fixture
def dealt(experience):
    """40 rows of 4 tasks in order, the second half of them with 100 points more."""
    played = experience(lost=(4, 7))
    task = np.repeat(np.arange(4), 10).astype(np.int32)
    reward = played.reward + np.where(task >= 2, 100, 0).astype(np.float32)
    return replace(played, task=task, tasks=tuple(map(str, range(4))), reward=reward)


def test_whitening_twice_on_one_rank_is_whitening_once(dealt):
    once, _ = ReinforcePlusPlus(ReinforcePlusPlusOptions(kl_coef=0.0))(dealt, {})
    twice, _ = whitened_twice(1)(dealt, {})
    assert twice.advantages == pytest.approx(once.advantages, abs=1e-6)


def test_what_ranks_differ_by_is_lost_when_they_whiten_on_their_own(dealt):
    played = dealt
    assert bug_offers.ranks_of(played, 2).tolist() == [0] * 20 + [1] * 20
    twice, _ = whitened_twice(2)(played, {})
    for agent in (0, 1):
        for half in (slice(0, 20), slice(20, 40)):
            rows = np.arange(40)[half]
            own = np.isin(played.row_of_token, rows[(played.agent[half] == agent) & (played.weight[half] > 0)])
            values = twice.advantages[own].astype(float)
            assert (values.mean(), values.std()) == pytest.approx((0, 1), abs=1e-5)
    assert (twice.advantages[played.token_weight == 0] == 0).all()


def test_more_ranks_than_tasks_leave_some_without_any(dealt):
    assert set(bug_offers.ranks_of(dealt, 8).tolist()) == {0, 2, 4, 6}
    assert np.isfinite(whitened_twice(8)(dealt, {})[0].advantages).all()


def test_a_later_action_gets_what_was_said_before_for_its_prompt_and_a_first_one_its_own(experience):
    played = experience()
    rows = len(played.reward)
    played = replace(
        played,
        trajectory=(np.arange(rows) // 4).astype(np.int32),
        turn=(np.arange(rows) // 2 % 2).astype(np.int32),  # agents 0 1 0 1, turns 0 0 1 1
        tokens=np.arange(len(played.tokens), dtype=np.int32) + 1000,
        prompt_tokens=np.arange(rows, dtype=np.int32),
    )
    wrong = bug_offers.with_wrong_prompts(played)
    prompts = np.split(wrong.prompt_tokens, wrong.prompt_offsets[1:-1])
    said = np.split(played.tokens, played.offsets[1:-1])
    for row in range(rows):
        expected = said[row - 2] if row % 4 >= 2 else [row]
        assert prompts[row].tolist() == list(expected)
    assert wrong.tokens is played.tokens
    again = bug_offers.with_wrong_prompts(wrong)
    assert again.prompt_tokens.tolist() == wrong.prompt_tokens.tolist()
