"""Judging a run again: what is added to it, and what the advantages would have been."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mappa.look.judge import judge_run
from mappa.runs import RunFolder, RunReader
from mappa.sessions import restore_trusted
from mappa_core import ConfigError, RunError, Task

OPPOSITE = ("coach.use=strict", "coach.options={right: 0, wrong: 10}")


@pytest.fixture
def again(registry):
    """Judge a run again with its config changed by words."""

    async def judge(run, *words, **asked):
        return await judge_run(restore_trusted(registry, run / "config.yaml", words), registry, run, **asked)

    return judge


def whole(run, split="train"):
    with RunReader(run) as reader:
        return [reader.trajectory(row.id) for row in reader.trajectories.where(split=split)]


def advantages(trajectories, phase):
    """By step, what REINFORCE with a mean baseline makes of the verdicts of a phase, in plain arithmetic."""
    found = {}
    for iteration in {trajectory.iteration for trajectory in trajectories}:
        for agent in ("doubler", "checker"):
            rewards = {
                step.id: verdict.score / 10
                for trajectory in trajectories
                if trajectory.iteration == iteration
                for step in trajectory.steps
                if step.agent == agent
                for verdict in trajectory.verdicts
                if (verdict.step, verdict.phase) == (step.id, phase) and verdict.score is not None
            }
            mean = sum(rewards.values()) / len(rewards) if rewards else 0.0
            found |= {step: reward - mean for step, reward in rewards.items()}
    return found


# --- what is added ----------------------------------------------------------------------------------------------------


async def test_verdicts_are_added_beside_the_old_ones(run, again):
    before = {one.id: one for one in whole(run)}
    result = await again(run, *OPPOSITE)
    for trajectory in whole(run):
        old = before[trajectory.id].verdicts
        assert [verdict for verdict in trajectory.verdicts if verdict.phase == "live"] == list(old)
        new = [verdict for verdict in trajectory.verdicts if verdict.phase == "again"]
        assert [verdict.step for verdict in new] == [step.id for step in trajectory.steps]
        assert all(verdict.id == f"{verdict.step}/strict/again/{result.name}" for verdict in new)
        assert all(new.score == 10 - old.score for old, new in zip(old, new, strict=True))
    with RunReader(run) as reader:
        (event,) = reader.events("judge")
    assert event.body["name"] == result.name
    assert (event.body["coach"]["use"], event.body["coach"]["options"]) == ("strict", {"right": 0.0, "wrong": 10.0})


async def test_a_second_time_adds_again(run, again):
    one, two = await again(run), await again(run)
    assert one.name != two.name
    (first, *_) = whole(run)
    assert [verdict.phase for verdict in first.verdicts[:3]] == ["live", "again", "again"]


async def test_a_run_that_is_being_written_is_left_alone(run, again):
    with RunFolder.open(run), pytest.raises(RunError, match="is in use by process"):
        await again(run)
    assert not any(verdict.phase == "again" for one in whole(run) for verdict in one.verdicts)


async def test_coach_is_shown_the_truth_and_phase_of_the_runs_own_coach(run, again, registry, monkeypatch):
    seen = []
    build = type(registry).build

    def watched(self, kind, name, options=None):
        made = build(self, kind, name, options)
        if kind == "coaches":
            score = made.score
            made.score = lambda scene: seen.append(scene) or score(scene)
        return made

    monkeypatch.setattr(type(registry), "build", watched)
    await again(run)
    shown = {scene.step.agent: scene.task.reference is not None for scene in seen}
    assert shown == {"doubler": True, "checker": False}
    assert all(len(scene.earlier) == scene.step.position for scene in seen)


# --- advantages -------------------------------------------------------------------------------------------------------


async def test_the_same_coach_changes_nothing(run, again):
    result = await again(run)
    assert result.stands_for == "live"
    assert result.overall.correlation.value == pytest.approx(1.0)
    assert (result.overall.flips, result.movers) == (0, ())
    assert result.overall.actions == result.overall.compared == result.counts.scored


async def test_the_opposite_coach_turns_every_advantage_round(run, again):
    result = await again(run, *OPPOSITE)
    assert result.by_agent.keys() == {"doubler", "checker"}
    assert result.by_iteration.keys() == {0, 1, 2}
    for change in (result.overall, *result.by_agent.values(), *result.by_iteration.values()):
        assert change.correlation.value == pytest.approx(-1.0)
        assert change.flips == change.compared == change.actions > 0
    assert sum(change.actions for change in result.by_iteration.values()) == result.overall.actions


async def test_advantages_are_those_of_plain_arithmetic(run, again):
    result = await again(run, "coach.use=moody")
    trajectories = whole(run)
    before, after = advantages(trajectories, "live"), advantages(trajectories, "again")
    moved = {step: abs(after[step] - before[step]) for step in before}
    furthest = sorted(moved.values(), reverse=True)[:10]
    assert [mover.shift for mover in result.movers] == pytest.approx(furthest, abs=1e-6)
    for one in result.movers:
        assert (one.before, one.after) == pytest.approx((before[one.step], after[one.step]), abs=1e-6)
        assert one.step.startswith(one.trajectory)
    assert result.overall.flips == sum(before[step] * after[step] < 0 for step in before)


async def test_missing_verdicts_are_counted_and_leave_the_comparison(run, again):
    result = await again(run, "coach.use=patchy")
    checker, doubler = result.by_agent["checker"], result.by_agent["doubler"]
    assert (checker.missing_before, checker.missing_after, checker.compared) == (0, checker.actions, 0)
    assert checker.correlation is None and checker.flip_share is None
    assert (doubler.missing_after, doubler.compared) == (0, doubler.actions)
    assert result.counts.abstained + result.counts.failed == checker.actions
    assert set(result.counts.reasons) == {"failed: ConnectionError: no route to the coach", "abstained: it is odd"}


async def test_a_failed_verdict_takes_the_place_of_a_score_and_is_no_score(run, again):
    await again(run, "coach.use=patchy", "coach.options.fails=doubler")
    result = await again(run)
    assert result.overall.missing_before == result.overall.missing_after == 0


async def test_judge_is_limited_to_an_iteration_and_a_number_of_trajectories(run, again):
    result = await again(run, iteration=1)
    assert result.by_iteration.keys() == {1}
    judged = [one for one in whole(run) if any(verdict.phase == "again" for verdict in one.verdicts)]
    assert {one.iteration for one in judged} == {1}
    limited = await again(run, limit=3)
    first = sorted(one.id for one in whole(run))[:3]
    fresh = [
        one.id for one in whole(run) if any(verdict.id.endswith(f"/again/{limited.name}") for verdict in one.verdicts)
    ]
    assert sorted(fresh) == first


async def test_a_kl_term_is_left_out_on_both_sides_and_said(run, again):
    words = ("estimator.use=reinforce_plus_plus", "estimator.by_agent.checker={use: grpo, options: {kl_coef: 0.5}}")
    result = await again(run, *words)
    assert result.kl_left_out == {
        "estimator.options.kl_coef": 0.01,
        "estimator.by_agent.checker.options.kl_coef": 0.5,
    }
    assert result.overall.correlation.value == pytest.approx(1.0)
    assert (await again(run)).kl_left_out == {}


async def test_an_estimator_of_values_has_nothing_to_compare_with(run, again):
    with pytest.raises(ConfigError, match="the run's estimator gae reads values, and a run keeps none"):
        await again(run, "estimator.by_agent.checker={use: gae}")


async def test_old_scores_that_were_corrected_for_bias_are_told_of(run, again):
    with RunFolder.open(run) as folder:
        (first, *_) = whole(run)
        old = first.verdicts[0]
        folder.store.record_verdict(replace(old, id=f"{old.id}/corrected", score=7.0, raw_score=old.score))
    result = await again(run)
    assert result.corrected == 1
    assert [mover.step for mover in result.movers if mover.step == old.step] == [old.step]


async def test_a_run_that_learned_from_hindsight_is_judged_in_hindsight(make_run, again):
    run = make_run("coach.hindsight={use: strict}", "coach.reward={live: 0.0, after: 1.0}")
    result = await again(run, "coach.use=looking")
    assert result.stands_for == "after"
    assert result.counts.scored == result.overall.compared
    assert result.overall.correlation.value == pytest.approx(1.0)
    # Nobody looks back on a rollout that has no outcome: it had no verdict and has none now.
    lost = [one for one in whole(run) if one.error is not None]
    assert lost and not any(one.verdicts for one in lost)
    assert result.overall.missing_before == result.overall.missing_after == sum(len(one.steps) for one in lost)


async def test_a_rollout_that_never_ended_is_no_rollout_yet(run, again):
    with RunFolder.open(run) as folder:
        folder.store.begin_trajectory("train", "train-000001/late/000", Task(id="late", prompt="4"), 0, 1)
    result = await again(run)
    assert result.counts.verdicts == sum(len(one.steps) for one in whole(run))


async def test_full_disk_ends_judge_with_one_error(run, again, monkeypatch, store_class):
    def full(self, verdict):
        raise RunError("run.db: there is no space left")

    monkeypatch.setattr(store_class, "record_verdict", full)
    with pytest.raises(RunError, match="no space left"):
        await again(run)


async def test_a_rollout_that_ended_early_counts_with_the_steps_it_has(run, again):
    lost = [one for one in whole(run) if one.error is not None]
    assert lost
    result = await again(run)
    assert result.counts.verdicts == sum(len(one.steps) for one in whole(run))


# --- what is refused --------------------------------------------------------------------------------------------------


async def test_what_cannot_be_compared_is_refused_before_anybody_is_asked(run, again):
    with pytest.raises(RunError, match="holds no train rollouts of iteration 7 that ended"):
        await again(run, iteration=7)
    with pytest.raises(RunError, match="that ended; of eval it does: --split eval"):
        await again(run, iteration=7)
    with pytest.raises(ConfigError, match="do not depend on its coach"):
        await again(run, "coach.reward={live: 0.0}", "shapers=[{use: outcome}]")


async def test_where_no_policy_learns_there_are_verdicts_and_nothing_to_compare(run, again):
    result = await again(run, "policies.default.kind=frozen")
    assert result.counts.verdicts == sum(len(one.steps) for one in whole(run))
    assert (result.overall.actions, result.by_agent, result.movers) == (0, {}, ())


# --- money ------------------------------------------------------------------------------------------------------------

PAID = ("coach.use=paid", "coach.options.model=dear-1")


async def test_repeated_judge_makes_no_call_twice(run, again):
    told = []
    first = await again(run, *PAID, on_providers=told.extend)
    second = await again(run, *PAID)
    assert first.usd == pytest.approx(0.01 * first.counts.verdicts)
    assert (second.usd, second.counts.scored) == (0.0, first.counts.scored)
    assert (first.counts.replayed, second.counts.replayed) == (0, first.counts.verdicts)
    assert [(one.name, one.model) for one in told] == [("paid", "dear-1")]


async def test_the_spend_cap_of_the_run_holds(run, again):
    result = await again(run, *PAID, "coach.spend_usd=0.045", "sampling.concurrency=1")
    assert result.counts.scored == 4
    assert result.usd == pytest.approx(0.04)
    assert result.counts.failed == result.counts.verdicts - 4
    with pytest.raises(ConfigError, match=r"the price of paid \(dear-1\) is unknown"):
        await again(run, *PAID, "coach.options.usd=null", "coach.spend_usd=1")


async def test_an_unknown_price_is_unknown(run, again):
    assert (await again(run, *PAID, "coach.options.usd=null")).usd is None
