"""Certifying coaches: what is asked, what is left out, and what is said of the scores."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from mappa.look.coach_eval.batch_judge import JudgingLimits
from mappa.look.coach_eval.bootstrap import Estimate
from mappa.look.coach_eval.evaluate import evaluate_coaches
from mappa.look.coach_eval.labelled_actions import LabelledSet, read_labels, write_labels
from mappa.look.coach_eval.metrics import EnsembleMetrics, count_statuses
from mappa.rollout.named_coach import NamedCoach
from mappa_core import Coach, ConfigError, InputError, Usage, Verdict
from mappa_core.transport import Provider

ASKING = JudgingLimits(concurrency=4, timeout_s=5.0)


class Scripted(Coach):
    """Says what a function of the scene and of the number of times that it was asked about it says."""

    def __init__(self, say, *, providers=(), by_trajectory=False):
        self._say = say
        self._providers = providers
        self._by_trajectory = by_trajectory
        self.asked = {}
        self.reviews = []
        self.now = self.most = 0

    @property
    def providers(self):
        return self._providers

    @property
    def by_trajectory(self):
        return self._by_trajectory

    async def score(self, scene):
        number = self.asked[scene.step.id] = self.asked.get(scene.step.id, -1) + 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        said = self._say(scene, number)
        return said if isinstance(said, Verdict) else Verdict.scored(said, "as scripted")

    async def review(self, scenes):
        self.reviews.append([scene.step.id for scene in scenes])
        return await super().review(scenes)


def labels(actions):
    return LabelledSet(actions=tuple(actions), left_out={})


async def certified(actions, repeats=1, **coaches):
    judges = [
        NamedCoach(name=name, coach=one if isinstance(one, Coach) else Scripted(one)) for name, one in coaches.items()
    ]
    return await evaluate_coaches([[judge] * repeats for judge in judges], labels(actions), ASKING)


@pytest.fixture
def twenty(labelled):
    """Twenty trajectories of two actions: solver, checker; every second one is right."""
    return [
        labelled(f"t{number}", float(number % 2), agent=agent, position=position)
        for number in range(20)
        for position, agent in enumerate(("solver", "checker"))
    ]


def truth(actions):
    label = {action.scene.step.id: action.label for action in actions}
    return lambda scene, number: 10.0 * label[scene.step.id]


async def test_siblings_of_a_task_do_not_narrow_the_interval(labelled):
    """Eight trajectories of each task, all judged alike: by trajectory they would be eight times as much evidence."""
    actions = [labelled(f"t{number}", float(number % 2)) for number in range(20)]
    siblings = [
        replace(
            one,
            trajectory=f"{one.trajectory}/{sample}",
            scene=replace(one.scene, step=replace(one.scene.step, id=f"{one.trajectory}/{sample}/0")),
        )
        for one in actions
        for sample in range(8)
    ]
    points = {
        one.scene.task.id: place
        for place, one in zip(np.random.default_rng(0).permutation(20) / 2, actions, strict=True)
    }
    (alone,), (together,) = [
        (await certified(some, repeats=2, coach=lambda scene, number: points[scene.task.id] + number)).coaches
        for some in (actions, siblings)
    ]
    assert (alone.overall.trajectories, together.overall.trajectories) == (20, 160)
    for one, many in ((alone.overall.auc, together.overall.auc), (alone.overall.spearman, together.overall.spearman)):
        assert (one.value, one.low, one.high) == pytest.approx((many.value, many.low, many.high))
        assert many.low < many.value < many.high


# --- agreement --------------------------------------------------------------------------------------------------------


async def test_a_coach_that_knows_the_truth_agrees_with_it_and_its_opposite_does_not(twenty):
    knows = truth(twenty)
    found = await certified(twenty, knows=knows, opposite=lambda scene, number: 10 - knows(scene, number))
    good, bad = found.coaches
    assert (found.actions, found.trajectories, found.right) == (40, 20, 0.5)
    assert (good.overall.auc.value, good.overall.spearman.value) == (1.0, pytest.approx(1.0))
    assert (bad.overall.auc.value, bad.overall.spearman.value) == (0.0, pytest.approx(-1.0))
    assert good.by_agent.keys() == {"solver", "checker"}
    assert good.by_agent["checker"].verdicts == 20


async def test_agreement_by_hand(labelled):
    scores = {"a": 9, "b": 6, "c": 6, "d": 6, "e": 2}
    actions = [labelled(name, label) for name, label in zip("abcde", (1, 1, 1, 0, 0), strict=True)]
    found = await certified(actions, one=lambda scene, number: scores[scene.task.id])
    assert found.coaches[0].overall.auc.value == pytest.approx(5 / 6)


async def test_a_label_that_is_no_yes_or_no_is_right_above_a_half(labelled):
    actions = [labelled(name, label) for name, label in zip("abc", (0.2, 0.5, 0.9), strict=True)]
    found = await certified(actions, one=lambda scene, number: {"a": 3, "b": 1, "c": 2}[scene.task.id])
    assert found.right == pytest.approx(1 / 3)
    assert found.coaches[0].overall.auc.value == 0.5
    assert found.coaches[0].overall.spearman.value == pytest.approx(-0.5)


async def test_constant_scores_or_labels_give_no_figure(labelled, twenty):
    flat = (await certified(twenty, flat=lambda scene, number: 5)).coaches[0].overall
    assert flat.auc.value == 0.5 and flat.spearman is None
    right = (await certified([labelled("a", 1.0), labelled("b", 1.0)], one=lambda scene, number: 5)).coaches[0].overall
    assert right.auc is None and right.spearman is None


# --- missing verdicts -------------------------------------------------------------------------------------------------


async def test_a_missing_verdict_is_left_out_and_counted_and_never_a_number(twenty):
    knows = truth(twenty)

    def patchy(scene, number):
        place = int(scene.task.id[1:])
        if place == 0:
            raise ConnectionError("gone after 3.5 s\nwith details")
        if place == 1:
            return Verdict.abstained(f"the request {place} was blocked")
        return knows(scene, number)

    coach = (await certified(twenty, patchy=patchy)).coaches[0]
    assert coach.overall.verdicts == 36 and coach.overall.auc.value == 1.0
    counts = coach.counts
    assert (counts.verdicts, counts.scored, counts.abstained, counts.failed) == (40, 36, 2, 2)
    assert counts.reasons == {
        "failed: ConnectionError: gone after 3.5 s": 2,
        "abstained: the request 1 was blocked": 2,
    }


def test_failed_verdict_is_never_counted_as_replayed():
    shared = replace(Verdict.failed("status 401: key 1, in r1/x.db"), replayed=True)
    counts = count_statuses([shared, Verdict.failed("status 402: key 2, in r2/x.db"), Verdict.failed("other")])
    assert (counts.failed, counts.replayed) == (3, 0)
    assert counts.reasons == {"failed: status 401: key 1, in r1/x.db": 2, "failed: other": 1}


async def test_a_coach_that_never_scores_has_no_figure(twenty):
    found = await certified(twenty, silent=lambda scene, number: Verdict.abstained("no"), knows=truth(twenty))
    silent = found.coaches[0]
    assert silent.overall.verdicts == 0 and silent.overall.auc is None and silent.overall.spearman is None
    assert silent.effects.length is None and silent.effects.strata == {"task": {"sum": None}}
    assert found.ensemble.best is None and found.ensemble.gain is None and found.ensemble.left_out == 40


async def test_a_coach_that_hangs_is_timed_out(labelled):
    class Hanging(Coach):
        async def score(self, scene):
            await asyncio.Event().wait()

    judge = NamedCoach(name="hangs", coach=Hanging())
    found = await evaluate_coaches(
        [[judge]], labels([labelled("a", 1.0)]), JudgingLimits(concurrency=1, timeout_s=0.01)
    )
    assert found.coaches[0].counts.reasons == {"failed: no verdict within 0.01 s": 1}


# --- noise ------------------------------------------------------------------------------------------------------------


async def test_noise_by_hand(labelled):
    # Within-action variances 2 (4, 6), 0 (5, 5) and none (one verdict is missing): sd = sqrt((2 + 0) / 2) = 1.
    said = {"a": (4, 6), "b": (5, 5), "c": (7, Verdict.abstained("blocked"))}
    actions = [labelled(name, label) for name, label in zip("abc", (1, 0, 1), strict=True)]
    found = await certified(actions, repeats=2, one=lambda scene, number: said[scene.task.id][number])
    noise = found.coaches[0].noise
    assert noise.sd.value == pytest.approx(1.0)
    assert noise.same.value == 0.5
    assert found.coaches[0].overall.verdicts == 5


async def test_noise_of_three_repeats_counts_every_pair(labelled):
    said = (4.0, 4.5, 8.0)
    found = await certified([labelled("a", 1.0)], repeats=3, one=lambda scene, number: said[number])
    assert found.coaches[0].noise.sd.value == pytest.approx(np.std(said, ddof=1))
    assert found.coaches[0].noise.same.value == pytest.approx(1 / 3)


async def test_one_verdict_an_action_says_nothing_of_noise(twenty):
    assert (await certified(twenty, knows=truth(twenty))).coaches[0].noise is None


# --- bias -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def varied(labelled):
    """Right and wrong actions of different lengths, places and strata, every combination in each of two agents."""
    return [
        labelled(
            f"{agent}{label}{length}{position}{plan}",
            float(label),
            agent=agent,
            position=position,
            tokens=length,
            strata={"plan": plan},
        )
        for agent in ("solver", "checker")
        for label in (0, 1)
        for length in (4, 16)
        for position in (0, 3)
        for plan in ("adds", "scales")
    ]


async def test_bias_is_measured_at_equal_truth(varied):
    def biased(scene, number):
        step = scene.step
        points = {"solver": 1, "checker": 3}[step.agent] + 2 * (step.id[-7] == "1")
        points += 0.5 * np.log2(len(step.completion.tokens)) - 0.2 * step.position
        return points + 0.75 * (step.strata["plan"] == "scales")

    effects = (await certified(varied, biased=biased)).coaches[0].effects
    assert effects.unit == "tokens"
    assert effects.length.value == pytest.approx(0.5)
    assert effects.order.value == pytest.approx(-0.2)
    assert effects.strata["plan"]["scales"].value == pytest.approx(0.75)
    assert effects.strata["plan"]["adds"].value == pytest.approx(-0.75)


async def test_being_right_is_no_bias(varied):
    effects = (await certified(varied, knows=truth(varied))).coaches[0].effects
    found = [effects.length, effects.order, *effects.strata["plan"].values()]
    assert [one.value for one in found] == pytest.approx([0.0] * 4)


async def test_without_tokens_length_is_in_characters(labelled):
    actions = [labelled("a", 1.0, text="x" * 8), labelled("b", 1.0, text="x" * 32, tokens=3)]
    effects = (await certified(actions, one=lambda scene, number: {"a": 2, "b": 6}[scene.task.id])).coaches[0].effects
    assert effects.unit == "characters"
    assert effects.length.value == pytest.approx(2.0)


async def test_actions_without_a_stratum_are_not_the_others(labelled):
    actions = [
        labelled("a", 1.0, strata={"task": "sum", "plan": "adds"}),
        labelled("b", 1.0, strata={"task": "sum", "plan": "scales"}),
        labelled("c", 1.0, strata={"task": "sum"}),
    ]
    said = {"a": 6, "b": 4, "c": 0}
    effects = (await certified(actions, one=lambda scene, number: said[scene.task.id])).coaches[0].effects
    assert effects.strata["plan"]["adds"].value == pytest.approx(2.0)
    assert effects.strata["task"]["sum"] is None


# --- ensemble ---------------------------------------------------------------------------------------------------------


def noisy(seed, actions, sd=4.0):
    random = np.random.default_rng(seed)
    said = {
        action.scene.step.id: np.clip(5 + 3 * (action.label - 0.5) + random.normal(0, sd), 0, 10) for action in actions
    }
    return lambda scene, number: said[scene.step.id]


async def test_an_ensemble_of_coaches_that_err_apart_beats_its_best_member(labelled):
    actions = [labelled(f"t{number}", float(number % 2)) for number in range(200)]
    found = await certified(actions, **{f"c{seed}": noisy(seed, actions) for seed in range(6)})
    ensemble = found.ensemble
    best = max(found.coaches, key=lambda coach: coach.overall.auc.value)
    assert ensemble.best == best.name
    assert ensemble.best_auc.value == pytest.approx(best.overall.auc.value)
    assert ensemble.gain.value == pytest.approx(ensemble.agreement.auc.value - best.overall.auc.value)
    assert ensemble.finding == "better"


async def test_twice_the_same_coach_is_no_better_than_one(twenty):
    found = await certified(twenty, one=noisy(1, twenty), again=noisy(1, twenty))
    assert (found.ensemble.gain.value, found.ensemble.gain.low, found.ensemble.gain.high) == (0.0, None, None)
    assert found.ensemble.finding is None


async def test_members_are_compared_where_all_of_them_scored(labelled):
    actions = [labelled(name, label) for name, label in zip("abcd", (1, 0, 1, 0), strict=True)]
    one = {"a": 9, "b": 1, "c": 0, "d": Verdict.abstained("no")}
    other = {"a": 9, "b": 1, "c": Verdict.abstained("no"), "d": 5}
    found = await certified(actions, one=lambda s, n: one[s.task.id], other=lambda s, n: other[s.task.id])
    assert found.ensemble.agreement.verdicts == 2
    assert found.ensemble.left_out == 2
    assert found.ensemble.agreement.auc.value == found.ensemble.best_auc.value == 1.0


def test_findings_go_by_the_interval():
    def finding(low, high):
        gain = Estimate(value=0.0, low=low, high=high)
        return EnsembleMetrics(agreement=None, left_out=0, best="a", best_auc=None, gain=gain).finding

    assert finding(0.01, 0.2) == "better"
    assert finding(-0.2, -0.01) == "worse"
    assert finding(-0.1, 0.1) == "no significant difference"
    assert finding(None, None) is None


# --- asking -----------------------------------------------------------------------------------------------------------


async def test_actions_are_asked_about_side_by_side_within_the_bound(twenty):
    coach = Scripted(truth(twenty))
    await certified(twenty, repeats=2, coach=coach)
    assert coach.most == ASKING.concurrency
    assert set(coach.asked.values()) == {1} and len(coach.asked) == 40
    assert coach.reviews == []


async def test_a_coach_of_trajectories_reviews_each_whole(labelled):
    actions = [
        labelled("a", 1.0, position=0, reference="4"),
        labelled("b", 0.0, position=0),
        labelled("a", 1.0, position=1),
        labelled("a", 1.0, position=2, reference="4"),
    ]
    coach = Scripted(truth(actions), by_trajectory=True)
    found = await certified(actions, coach=coach)
    assert sorted(coach.reviews) == [["a/000", "a/001", "a/002"], ["b/000"]]
    assert found.coaches[0].overall.auc.value == 1.0
    assert found.truth_shown == ("solver",)


async def test_progress_hears_every_verdict(twenty):
    heard = []
    judge = NamedCoach(name="knows", coach=Scripted(truth(twenty)))
    await evaluate_coaches([[judge] * 3], labels(twenty), ASKING, on_verdict=heard.append)
    assert len(heard) == 120 and {verdict.coach for verdict in heard} == {"knows"}


# --- time and cost ----------------------------------------------------------------------------------------------------


def priced(usd):
    return Verdict(status="scored", score=5.0, usage=Usage(calls=1, usd=usd))


async def test_cost_is_per_thousand_actions_and_unknown_where_it_is_unknown(twenty):
    gemini = Provider(name="gemini", model="m", host="h", priced=True)
    paid = Scripted(lambda scene, number: priced(0.002), providers=(gemini,))
    some = Scripted(
        lambda scene, number: priced(0.002) if scene.step.agent == "solver" else Verdict.failed("timeout"),
        providers=(gemini,),
    )
    unknown = Scripted(
        lambda scene, number: priced(None), providers=(Provider(name="own", model="m", host="h", priced=False),)
    )
    coaches = (await certified(twenty, paid=paid, some=some, unknown=unknown, free=truth(twenty))).coaches
    costs = [(coach.effort.usd_per_1000, coach.effort.unpriced) for coach in coaches]
    assert costs == [(pytest.approx(2.0), 0), (pytest.approx(2.0), 20), (None, 0), (None, 0)]
    assert [len(coach.effort.providers) for coach in coaches] == [1, 1, 1, 0]
    assert all(0 <= coach.effort.median_s <= coach.effort.p95_s for coach in coaches)


# --- files ------------------------------------------------------------------------------------------------------------


def test_labelled_actions_survive_a_file(tmp_path, labelled):
    actions = [labelled("a", 0.25, tokens=3, reference="4"), labelled("b", 1, text="é\n\ud800", agent="checker")]
    path = tmp_path / "labelled.jsonl"
    write_labels(path, labels(actions))
    found = read_labels(path)
    assert [(action.label, action.trajectory) for action in found.actions] == [(0.25, "a"), (1.0, "b")]
    assert found.actions[0].scene.step.completion.tokens.tolist() == [0, 1, 2]
    assert found.actions[1].scene.step.reply.content == "é\n\ud800"
    assert found.truth_shown == ("solver",)
    assert found.agents == ("solver", "checker")


def test_a_limit_draws_whole_trajectories_the_same_ones_every_time(tmp_path, twenty):
    path = tmp_path / "labelled.jsonl"
    write_labels(path, labels(twenty))
    one, again = (read_labels(path, limit=5) for _ in range(2))
    names = [action.trajectory for action in one.actions]
    assert len(names) == 10 and len(set(names)) == 5
    assert names == [action.trajectory for action in again.actions]
    assert names != [action.trajectory for action in twenty[:10]]
    assert len(read_labels(path, limit=100).actions) == 40


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2: not a labelled action: Input data was truncated"),
        (b'{"label": 1, "trajectory": "t"}', "missing required field `scene`"),
        (b'{"label": "good", "trajectory": "t", "scene": {}}', "Expected `float`, got `str`"),
        (b"\xff", "line 2: not a labelled action"),
    ],
)
def test_a_line_that_is_no_labelled_action_is_named(tmp_path, labelled, line, message):
    path = tmp_path / "labelled.jsonl"
    write_labels(path, labels([labelled("a", 1.0)]))
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(InputError, match=r"labelled.jsonl, line 2") as error:
        read_labels(path)
    assert message in str(error.value)


def test_a_label_that_is_no_number_is_refused(tmp_path, labelled):
    path = tmp_path / "labelled.jsonl"
    write_labels(path, labels([labelled("a", float("nan"))]))
    with pytest.raises(InputError, match="line 1: the label is nan"):
        read_labels(path)


def test_a_file_that_is_missing_or_empty_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.jsonl is missing"):
        read_labels(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="holds no labelled action"):
        read_labels(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match="cannot be written"):
        write_labels(tmp_path / "nowhere" / "file.jsonl", labels([]))


def test_only_agents_that_there_are_can_be_asked_for(twenty):
    assert {action.scene.step.agent for action in labels(twenty).for_agents(["checker"]).actions} == {"checker"}
    with pytest.raises(ConfigError, match=r"--agent cheker: no labelled action is of it\. Did you mean checker\?"):
        labels(twenty).for_agents(["cheker"])


async def test_a_certificate_is_json(twenty):
    found = await certified(twenty, repeats=2, one=noisy(1, twenty), other=noisy(2, twenty))
    document = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(found)))
    assert document["coaches"][0]["overall"]["auc"].keys() == {"value", "low", "high"}
