"""Several coaches as one: arithmetic by hand, who is asked, and what becomes of those who do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa.testing import CoachContract, load_plugins
from mappa_calibration.ensemble import Ensemble, Member, build_ensemble, combine_scores
from mappa_calibration.ensemble_options import CombineMethod, EnsembleOptions
from mappa_core import Coach, Completion, ConfigError, Message, Role, Scene, Step, Task, Trajectory, Usage, Use, Verdict
from mappa_core.coach import Cassette
from mappa_core.transport import Provider


def scene(position: int = 0, *, later: tuple[Step, ...] | None = None) -> Scene:
    completion = Completion(text="4", prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
    step = Step(
        id=f"t/{position:03d}",
        agent="solver",
        turn=position,
        position=position,
        policy="p",
        messages=(Message(role="user", content="2 + 2?"),),
        reply=Message(role="assistant", content="4"),
        completion=completion,
    )
    return Scene(task=Task(id="t", prompt="2 + 2?"), role=Role(brief="adds"), step=step, later=later)


class Scripted(Coach):
    """Gives the verdicts of a list, over and over, and remembers how it was asked and told."""

    def __init__(self, *given: Verdict | Exception, together: bool = False, provider: str | None = None) -> None:
        self.given = given
        self.together = together
        self.asked: list[tuple[str, ...]] = []
        self.told: list[object] = []
        self.state: dict[str, Any] = {}
        self.provider = provider

    async def score(self, scene: Scene) -> Verdict:
        self.asked.append((scene.step.id,))
        return self._answer(len(self.asked) - 1)

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        self.asked.append(tuple(scene.step.id for scene in scenes))
        return [self._answer(place) for place in range(len(scenes))]

    def _answer(self, place: int) -> Verdict:
        answer = self.given[place % len(self.given)]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def by_trajectory(self) -> bool:
        return self.together

    @property
    def providers(self) -> tuple[Provider, ...]:
        return () if self.provider is None else (Provider(name=self.provider, model="m", host="h", priced=True),)

    def use_cassette(self, cassette: Cassette) -> None:
        self.told.append(cassette)

    def learn(self, trajectories: Sequence[Trajectory]) -> None:
        self.told.append(tuple(trajectories))
        self.state = {"seen": len(trajectories)}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state = dict(state)

    async def close(self) -> None:
        self.told.append("closed")


def scores(*points: float) -> list[Member]:
    """Members a, b, … that each give one score."""
    return members(*(Verdict.scored(score, f"reason {place}") for place, score in enumerate(points)))


def members(*given: Verdict | Exception) -> list[Member]:
    return [Member(name="abcdefgh"[place], coach=Scripted(answer)) for place, answer in enumerate(given)]


BY_HAND = [
    ("mean", (4, 5, 9), 6.0),
    ("mean", (7,), 7.0),
    ("median", (4, 5, 9), 5.0),
    ("median", (4, 5, 8, 9), 6.5),
    ("median", (3, 8), 5.5),
    ("min", (4, 5, 9), 4.0),
    ("trimmed_mean", (3,), 3.0),
    ("trimmed_mean", (3, 8), 5.5),
    ("trimmed_mean", (9, 4, 5), 5.0),
    ("trimmed_mean", (0, 4, 5, 10), 4.5),
    ("trimmed_mean", (10, 0, 4, 5, 6), 5.0),
    ("trimmed_mean", (0, 1, 2, 3, 4, 5, 6, 7, 8, 10), 4.5),  # of ten, two go at each end
    ("trimmed_mean", (0, 0, 2, 3, 4, 5, 6, 7, 9, 9), 4.5),
]


@pytest.mark.parametrize(("combine", "points", "expected"), BY_HAND)
def test_scores_are_combined_as_by_hand(combine: str, points: tuple[float, ...], expected: float) -> None:
    assert combine_scores(points, combine, [1.0] * len(points)) == pytest.approx(expected, abs=1e-12)


def test_a_weighted_mean_is_as_by_hand() -> None:
    assert combine_scores((4, 10), "weighted", (3, 1)) == pytest.approx((3 * 4 + 1 * 10) / 4, abs=1e-12)


points = st.floats(0, 10)


@given(
    pairs=st.lists(st.tuples(points, st.floats(1e-6, 1e6)), min_size=1, max_size=9),
    combine=st.sampled_from([method for method in get_args(CombineMethod) if method != "calibrated"]),
)
def test_a_combined_score_lies_between_the_scores_and_does_not_depend_on_their_order(
    pairs: list[tuple[float, float]], combine: str
) -> None:
    given, weights = zip(*pairs, strict=True)
    score = combine_scores(given, combine, weights)
    assert min(given) <= score <= max(given)
    backward, weights_backward = zip(*reversed(pairs), strict=True)
    assert combine_scores(backward, combine, weights_backward) == pytest.approx(score, abs=1e-9)


async def test_the_verdict_holds_what_every_member_said() -> None:
    verdict = await Ensemble(scores(4, 5, 9), combine="mean").score(scene())
    assert verdict.score == 6.0
    assert [(member.coach, member.score) for member in verdict.members] == [("a", 4.0), ("b", 5.0), ("c", 9.0)]
    assert verdict.reasoning == "mean of a 4, b 5, c 9\na: reason 0\nb: reason 1\nc: reason 2"
    assert (verdict.raw_score, verdict.usage, verdict.replayed, verdict.coach) == (None, None, False, "")


async def test_members_that_fail_or_abstain_or_raise_are_left_out_and_seen() -> None:
    given = members(
        Verdict.failed("timeout"), Verdict.scored(6, "fine"), Verdict.abstained("blocked"), RuntimeError("bug")
    )
    verdict = await Ensemble(given, combine="mean").score(scene())
    assert verdict.score == 6.0
    assert verdict.reasoning.splitlines()[0] == "mean of a failed, b 6, c abstained, d failed"
    assert [member.status for member in verdict.members] == ["failed", "scored", "abstained", "failed"]
    assert verdict.members[3].error.startswith("RuntimeError: bug (")


async def test_the_weights_of_missing_members_are_left_out_too() -> None:
    given = members(Verdict.scored(4, "a"), Verdict.failed("b"), Verdict.scored(10, "c"))
    weighted = [replace(member, weight=weight) for member, weight in zip(given, (1, 5, 3), strict=True)]
    assert (await Ensemble(weighted, combine="weighted").score(scene())).score == pytest.approx((4 + 3 * 10) / 4)


FEW = {
    "one of two that must": (2, [Verdict.scored(5, "a"), Verdict.failed("b")], "failed"),
    "none, all failed": (1, [Verdict.failed("a"), Verdict.failed("b")], "failed"),
    "none, one failed": (1, [Verdict.abstained("a"), Verdict.failed("b")], "failed"),
    "one, the other abstains": (2, [Verdict.scored(5, "a"), Verdict.abstained("b")], "failed"),
    "none, all abstain": (1, [Verdict.abstained("a"), Verdict.abstained("b")], "abstained"),
}


@pytest.mark.parametrize(("at_least", "given", "status"), FEW.values(), ids=FEW)
async def test_too_few_scores_are_no_score(at_least: int, given: list[Verdict], status: str) -> None:
    verdict = await Ensemble(members(*given), at_least=at_least).score(scene())
    assert (verdict.status, verdict.score, len(verdict.members)) == (status, None, 2)
    assert f"{at_least} must" in (verdict.error or verdict.reasoning)


async def test_members_that_disagree_abstain() -> None:
    verdict = await Ensemble(scores(4, 5, 9), max_spread=4.9).score(scene())
    assert verdict.status == "abstained"
    assert verdict.reasoning.splitlines()[0] == "members are 5 points apart: a 4, b 5, c 9"
    assert [member.score for member in verdict.members] == [4.0, 5.0, 9.0]


async def test_members_just_as_far_apart_as_they_may_be_agree() -> None:
    assert (await Ensemble(scores(4, 5, 9), max_spread=5).score(scene())).score == 5.0


async def test_the_escalation_coach_decides_alone_where_members_disagree() -> None:
    judgement = replace(
        Verdict.scored(2, "it is wrong", blame="solver"), model="pro-1", question="q", raw_reply="{}", seed=3
    )
    dear = Scripted(judgement, provider="pro")
    members = scores(8, 8.5)
    ensemble = Ensemble(members, max_spread=2, escalate_to=Member(name="pro", coach=dear))
    assert (await ensemble.score(scene(0))).score == 8.25
    assert dear.asked == []
    members[1].coach.given = (Verdict.scored(1, "no"),)  # type: ignore[attr-defined]
    verdict = await ensemble.score(scene(1))
    assert dear.asked == [("t/001",)]
    assert (verdict.score, verdict.blame, verdict.model, verdict.question, verdict.seed) == (
        2,
        "solver",
        "pro-1",
        "q",
        3,
    )
    assert verdict.reasoning == "members are 7 points apart: a 8, b 1; pro decides\nit is wrong"
    assert [(member.coach, member.score) for member in verdict.members] == [("a", 8.0), ("b", 1.0), ("pro", 2.0)]


@pytest.mark.parametrize(
    ("answer", "status"),
    [(Verdict.failed("quota"), "failed"), (Verdict.abstained("refused"), "abstained"), (OSError("gone"), "failed")],
)
async def test_without_a_score_of_the_escalation_coach_there_is_none(answer: Verdict | Exception, status: str) -> None:
    dear = Member(name="pro", coach=Scripted(answer))
    verdict = await Ensemble(scores(1, 9), max_spread=2, escalate_to=dear).score(scene())
    assert (verdict.status, len(verdict.members)) == (status, 3)


BLAMES = {
    "most": (["solver", "coder", "solver"], "solver"),
    "one of three says": ([None, "coder", None], "coder"),
    "a tie": (["solver", "coder", None], None),
    "a tie of two and two": (["solver", "coder", "solver", "coder"], None),
    "more than either": (["solver", "coder", "nobody", "nobody"], "nobody"),
    "nobody says": ([None, None], None),
}


@pytest.mark.parametrize(("given", "blame"), BLAMES.values(), ids=BLAMES)
async def test_the_ensemble_blames_whom_most_members_blame(given: list[str | None], blame: str | None) -> None:
    verdicts = [Verdict.scored(5, "why", blame=agent) for agent in given]
    assert (await Ensemble(members(*verdicts)).score(scene())).blame == blame


async def test_a_member_without_a_score_blames_nobody() -> None:
    abstains = Verdict(status="abstained", reasoning="no text", blame="coder")
    verdict = await Ensemble(members(Verdict.scored(5, "why", blame="solver"), abstains, abstains)).score(scene())
    assert verdict.blame == "solver"


async def test_the_first_correction_is_kept() -> None:
    given = members(
        Verdict.scored(5, "a"), Verdict.scored(4, "b", correction="add"), Verdict.scored(4, "c", correction="sub")
    )
    assert (await Ensemble(given).score(scene())).correction == "add"


def paid(calls: int, usd: float | None, *, replayed: bool = False) -> Verdict:
    usage = Usage(calls=calls, prompt_tokens=100 * calls, completion_tokens=10 * calls, usd=usd)
    return replace(Verdict.scored(5, "why"), usage=usage, replayed=replayed)


USAGES = {
    "both": ([paid(1, 0.25), paid(2, 0.5)], (3, 300, 0.75), False),
    "one asks nobody": ([paid(1, 0.25), Verdict.scored(5, "rule")], (1, 100, 0.25), False),
    "one has no price": ([paid(1, 0.25), paid(2, None)], (3, 300, None), False),
    "one is replayed": ([paid(1, 0.25), paid(2, 0.5, replayed=True)], (1, 100, 0.25), False),
    "both are replayed": ([paid(1, 0.25, replayed=True), paid(2, 0.5, replayed=True)], (3, 300, 0.75), True),
    "the one that asks is replayed": ([paid(1, 0.25, replayed=True), Verdict.scored(5, "r")], (1, 100, 0.25), True),
    "nobody is asked": ([Verdict.scored(5, "rule"), Verdict.scored(5, "rule")], None, False),
}


@pytest.mark.parametrize(("given", "expected", "replayed"), USAGES.values(), ids=USAGES)
async def test_the_usage_is_what_was_paid_this_time(given: list[Verdict], expected: object, replayed: bool) -> None:
    verdict = await Ensemble(members(*given)).score(scene())
    usage = verdict.usage
    assert (None if usage is None else (usage.calls, usage.prompt_tokens, usage.usd)) == expected
    assert verdict.replayed is replayed


async def test_members_are_asked_at_the_same_time() -> None:
    together = asyncio.Barrier(3)

    class Waits(Coach):
        async def score(self, scene: Scene) -> Verdict:
            await together.wait()
            return Verdict.scored(5, "all were here")

    given = [Member(name=name, coach=Waits()) for name in "abc"]
    assert (await Ensemble(given).score(scene())).score == 5.0


async def test_a_review_asks_those_once_who_judge_by_trajectory() -> None:
    whole = Scripted(Verdict.scored(4, "w0"), Verdict.scored(8, "w1"), together=True)
    single = Scripted(Verdict.scored(6, "s0"), Verdict.scored(2, "s1"))
    ensemble = Ensemble([Member(name="whole", coach=whole), Member(name="single", coach=single)], combine="mean")
    assert ensemble.by_trajectory
    verdicts = await ensemble.review([scene(0), scene(1)])
    assert [verdict.score for verdict in verdicts] == [5.0, 5.0]
    assert [verdict.members[0].score for verdict in verdicts] == [4.0, 8.0]
    assert whole.asked == [("t/000", "t/001")]
    assert single.asked == [("t/000",), ("t/001",)]


async def test_in_hindsight_every_member_is_asked_once_and_escalation_goes_action_by_action() -> None:
    first = Scripted(Verdict.scored(4, "0"), Verdict.scored(8, "1"))
    other = Scripted(Verdict.scored(4, "0"), Verdict.scored(1, "1"))
    dear = Scripted(Verdict.scored(3, "decided"))
    ensemble = Ensemble(
        [Member(name="one", coach=first), Member(name="other", coach=other)],
        max_spread=3,
        escalate_to=Member(name="dear", coach=dear),
    )
    assert not ensemble.by_trajectory
    verdicts = await ensemble.review([scene(0, later=(scene(1).step,)), scene(1, later=())])
    assert [verdict.score for verdict in verdicts] == [4.0, 3.0]
    assert first.asked == other.asked == [("t/000", "t/001")]
    assert dear.asked == [("t/001",)]


async def test_a_member_that_raises_or_miscounts_in_a_review_fails_alone() -> None:
    class Short(Scripted):
        async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
            return [Verdict.scored(9, "only one")]

    given = [
        Member(name="good", coach=Scripted(Verdict.scored(6, "fine"))),
        Member(name="short", coach=Short(together=True)),
        Member(name="broken", coach=Scripted(RuntimeError("bug"), Verdict.scored(2, "second"))),
    ]
    verdicts = await Ensemble(given, combine="mean").review([scene(0), scene(1)])
    assert [verdict.score for verdict in verdicts] == [6.0, 4.0]
    assert verdicts[0].members[1].error == "TypeError: the coach gave 1 verdicts on 2 actions"
    assert verdicts[0].members[2].error.startswith("RuntimeError: bug (")


async def test_an_ensemble_passes_what_the_run_tells_it_to_every_coach() -> None:
    coaches = [Scripted(provider="gemini"), Scripted(), Scripted(provider="gemini"), Scripted(provider="openai")]
    ensemble = Ensemble(
        [Member(name=name, coach=coach) for name, coach in zip("abc", coaches, strict=False)],
        escalate_to=Member(name="d", coach=coaches[3]),
    )
    cassette: Any = object()
    trajectory = Trajectory(id="t", task=Task(id="t", prompt="?"), sample=0, iteration=0)
    ensemble.use_cassette(cassette)
    ensemble.learn([trajectory])
    await ensemble.close()
    assert [coach.told for coach in coaches] == [[cassette, (trajectory,), "closed"]] * 4
    assert [provider.name for provider in ensemble.providers] == ["gemini", "openai"]


def test_the_state_of_every_coach_is_kept_apart() -> None:
    first, second, dear = Scripted(), Scripted(), Scripted()
    named = [Member(name="gemini", coach=first), Member(name="gemini-2", coach=second)]
    ensemble = Ensemble(named, escalate_to=Member(name="pro", coach=dear))
    first.state, second.state, dear.state = {"n": 1}, {"n": 2}, {"n": 3}
    state = ensemble.state_dict()
    assert state == {"members.0.gemini": {"n": 1}, "members.1.gemini-2": {"n": 2}, "escalate_to.pro": {"n": 3}}
    first.state = second.state = dear.state = {}
    ensemble.load_state_dict(state)
    assert [first.state, second.state, dear.state] == [{"n": 1}, {"n": 2}, {"n": 3}]


@dataclass
class Points:
    points: float = 5.0


def uses(*points: float) -> list[Use]:
    return [Use(use="fixed", options=Points(value)) for value in points]


WRONG = {
    "no members": ({"members": []}, "members: an ensemble takes at least two coaches, and these are 0"),
    "one member": ({"members": uses(1)}, "members: an ensemble takes at least two coaches, and these are 1"),
    "the same twice": ({"members": uses(1, 2, 1)}, "members: 0 and 2 are the same fixed, asked the same"),
    "weights missing": ({"combine": "weighted"}, "weights: combine=weighted needs it"),
    "weights unused": ({"weights": [1.0, 2.0]}, "weights: combine=weighted needs it"),
    "a weight missing": ({"combine": "weighted", "weights": [1.0]}, "a number above 0 for each of 2 members"),
    "a weight of zero": ({"combine": "weighted", "weights": [1.0, 0.0]}, "a number above 0 for each of 2 members"),
    "a weight that is none": ({"combine": "weighted", "weights": [1.0, float("nan")]}, "a number above 0"),
    "none at least": ({"at_least": 0}, "at_least: must lie between 1 and the 2 members, not 0"),
    "more than there are": ({"at_least": 3}, "at_least: must lie between 1 and the 2 members, not 3"),
    "a spread below zero": ({"max_spread": -1.0}, "max_spread: must be at least 0 and finite, not -1"),
    "a spread without end": ({"max_spread": float("inf")}, "max_spread: must be at least 0 and finite, not inf"),
    "escalation that never is": ({"escalate_to": Use(use="fixed")}, "escalate_to: is never asked without max_spread"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_options_that_make_no_sense_are_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        EnsembleOptions(**{"members": uses(1, 2), **options}).check()
    assert message in str(error.value)


async def test_an_ensemble_is_built_of_its_options() -> None:
    def build(use: Use) -> Coach:
        return Scripted(Verdict.scored(use.options.points, use.use))

    options = EnsembleOptions(
        members=[*uses(2, 8), Use(use="other", options=Points(5.0))],
        combine="weighted",
        weights=[1.0, 2.0, 1.0],
        max_spread=7.0,
        escalate_to=Use(use="dear", options=Points(1.0)),
    )
    verdict = await build_ensemble(options, build).score(scene())
    assert verdict.score == pytest.approx((2 + 2 * 8 + 5) / 4)
    assert [member.coach for member in verdict.members] == ["fixed", "fixed-2", "other"]
    assert (await build_ensemble(replace(options, max_spread=1.0), build).score(scene())).score == 1.0


def test_the_package_offers_the_ensemble() -> None:
    registry = load_plugins(only=("calibration",))
    offer = registry.offer("coaches", "ensemble")
    assert (offer.options, offer.composite) == (EnsembleOptions, True)
    with pytest.raises(ConfigError, match="at least two coaches"):
        offer.options().check()


class TestContract(CoachContract):
    scenes = (scene(0), scene(1), scene(2))

    def coach(self) -> Coach:
        class Counts(Coach):
            async def score(self, scene: Scene) -> Verdict:
                return Verdict.scored(scene.step.position, "its place")

        return Ensemble([Member(name="a", coach=Counts()), Member(name="b", coach=Counts())])
