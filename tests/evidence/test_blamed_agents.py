"""Blame held against counterfactuals: shares, chance, the agent that is best blamed always, and what was claimed."""

import asyncio

import pytest
from blamed_agents import Failure, read_failures, right_share, summarize

from mappa.judging import Estimate
from mappa.runs import RunReader
from mappa.sessions import Run
from mappa.testing import load_plugins
from mappa_core.credit.counterfactual import counterfactual_credit


def failure(task, guilty, blamed, stage=0):
    return Failure(stage=stage, task=task, agents=("a", "b", "c", "d"), guilty=guilty, blamed=blamed)


def test_shares_are_of_blames_that_hit_beside_chance_and_the_best_constant():
    found = summarize(
        "first",
        [
            failure("1", ("a",), ("a", "a")),
            failure("2", ("a", "b"), ("b", "c")),
            failure("3", ("c",), ("a",)),
            failure("4", ("a",), ()),
        ],
    )
    assert (found.failures, found.unblamed, found.best) == (4, 1, "a")
    assert found.right.value == pytest.approx((1 + 0.5 + 0) / 3)
    assert found.chance.value == pytest.approx((0.25 + 0.5 + 0.25) / 3)
    assert found.always_best.value == pytest.approx(2 / 3)
    assert found.beyond_chance.value == pytest.approx(0.5 - 1 / 3)
    assert found.beyond_best.value == pytest.approx(0.5 - 2 / 3)
    assert found.standing == "open"  # of so few failures nothing is known


def test_shares_of_one_seed_are_by_stage():
    failures = [failure("1", ("a",), ("a", "b")), failure("2", ("a",), ("a",)), failure("3", ("c",), (), stage=1)]
    assert [right_share(failures, stage) for stage in (0, 1, 2)] == [0.75, None, None]


def test_a_coach_that_is_nearly_always_right_holds_both_claims_where_the_guilty_vary():
    failures = [failure(str(number), (name,), (name,)) for number, name in enumerate("abcd" * 8)]
    faultless = summarize("first", failures)
    assert faultless.right == Estimate(value=1.0), "nothing tells how far off it may be"
    found = summarize("first", [*failures[:-1], failure("31", ("d",), ("a",))])
    assert found.standing == "held"
    assert found.right.value == 31 / 32 and found.right.low > 0.8
    assert found.chance.value == found.always_best.value == 0.25


@pytest.mark.slow
def test_failures_are_read_from_a_run_with_the_credits_that_it_holds(tmp_path):
    registry = load_plugins(only=("engine", "sandbox", "look", "mathchat"))
    words = (
        f"run.root={tmp_path}", "train.iterations=1", "train.prompts=8", "train.samples=1", "eval.problems=2",
        "eval.samples=1", "credit.counterfactual.use=resample", "coach.max_missing=1",
    )  # fmt: skip
    folder = Run.from_recipe("mathchat/tiny", *words, seed=0, registry=registry).train().folder
    failures = asyncio.run(read_failures(registry, folder))
    with RunReader(folder) as reader:
        played = [reader.trajectory(row.id) for row in reader.trajectories.where(split="train")]
    expected = []
    for one in played:
        gains = {
            step.agent: -credit.value
            for step in one.steps
            if (credit := counterfactual_credit(one, step.position, "correct")).value is not None
        }
        largest = max(gains.values(), default=0.0)
        if largest > 0:
            blamed = tuple(verdict.blame for verdict in one.verdicts if verdict.blame not in (None, "nobody"))
            expected.append((tuple(sorted(name for name, gain in gains.items() if gain == largest)), blamed))
    assert [(one.guilty, one.blamed) for one in failures] == expected
    assert expected
