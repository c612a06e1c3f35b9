from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from mappa_core import Experience, Failure
from mappa_core.credit.build_experience import build_experience, select_rows
from mappa_core.engine import VersionSpan

POLICIES = {"solver": "solver", "coder": "coder", "verifier": "verifier"}


@pytest.fixture
def trajectories(make_step, make_trajectory):
    """Two tasks; the coder acts once in `t2` and twice in `t1`; steps and trajectories out of order."""
    t2 = make_trajectory(
        "t2",
        [
            make_step("t2.1", "coder", position=1, tokens=[21], prompt=[8, 8]),
            make_step("t2.0", "solver", position=0, tokens=[20, 20], finish="length", temperature=0.5),
        ],
        task="beta",
        stratum="hard",
        outcome={"correct": 1.0, "other": 5.0},
    )
    t1 = make_trajectory(
        "t1",
        [
            make_step("t1.0", "solver", position=0, tokens=[10, 11, 12]),
            make_step("t1.1", "coder", position=1, turn=0, tokens=[13]),
            make_step("t1.2", "coder", position=2, turn=1, tokens=[14, 15], prompt=[7, 13, 9]),
        ],
        task="alpha",
        error=Failure(kind="ToolError", message="the sandbox is gone"),
    )
    return [t2, t1]


@pytest.fixture
def experience(trajectories) -> Experience:
    return build_experience(trajectories, [(4.0, None), (1.0, 2.0, None)], POLICIES, set(POLICIES), "correct")


def test_rows_come_by_trajectory_and_position(experience: Experience) -> None:
    assert experience.steps == ("t1.0", "t1.1", "t1.2", "t2.0", "t2.1")
    assert experience.position.tolist() == [0, 1, 2, 0, 1]
    assert experience.turn.tolist() == [0, 0, 1, 0, 0]
    assert [experience.trajectories[k] for k in experience.trajectory] == ["t1", "t1", "t1", "t2", "t2"]
    assert [experience.tasks[k] for k in experience.task] == ["alpha"] * 3 + ["beta"] * 2
    assert [experience.strata[k] for k in experience.stratum] == ["all"] * 3 + ["hard"] * 2
    assert [experience.agents[k] for k in experience.agent] == ["solver", "coder", "coder", "solver", "coder"]
    assert [experience.policies[k] for k in experience.policy] == ["solver", "coder", "coder", "solver", "coder"]


def test_each_reward_stays_with_its_own_step_and_a_missing_one_has_no_weight(experience: Experience) -> None:
    np.testing.assert_array_equal(experience.reward, np.array([1, 2, np.nan, np.nan, 4], np.float32))
    assert experience.weight.tolist() == [1, 1, 0, 0, 1]


def test_tokens_are_those_that_were_sampled_ragged(experience: Experience) -> None:
    assert experience.tokens.tolist() == [10, 11, 12, 13, 14, 15, 20, 20, 21]
    assert experience.offsets.tolist() == [0, 3, 4, 6, 8, 9]
    assert experience.prompt_tokens.tolist() == [7, 7, 7, 13, 9, 7, 8, 8]
    assert experience.prompt_offsets.tolist() == [0, 1, 2, 5, 6, 8]
    assert experience.row_of_token.tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 4]


def test_facts_of_the_action_and_of_the_trajectory_are_columns(experience: Experience) -> None:
    assert experience.truncated.tolist() == [False, False, False, True, False]
    assert experience.temperature.tolist() == [1, 1, 1, 0.5, 1]
    np.testing.assert_array_equal(experience.outcome, np.array([np.nan] * 3 + [1, 1], np.float32))
    assert (experience.old_logprobs, experience.ref_logprobs, experience.values) == (None, None, None)


def test_every_array_has_the_type_that_the_record_promises(experience: Experience) -> None:
    wanted = {"Int32": np.int32, "Int64": np.int64, "Float32": np.float32, "Bool": np.bool_}
    for field in fields(Experience):
        values = getattr(experience, field.name)
        if isinstance(values, np.ndarray):
            assert values.dtype == wanted[str(field.type).split()[0]], field.name


def test_a_group_is_one_task_agent_and_turn_over_all_samples(make_step, make_trajectory) -> None:
    def sample(name: str, turns: int):
        steps = [make_step(f"{name}.{k}", "coder", position=k, turn=k) for k in range(turns)]
        return make_trajectory(name, [*steps, make_step(f"{name}.v", "verifier", position=turns)], task="alpha")

    other = make_trajectory("z", [make_step("z.0", "coder")], task="beta")
    made = [sample("x", 2), sample("y", 1), other]
    experience = build_experience(made, [(1.0,) * len(t.steps) for t in made], POLICIES, set(POLICIES), "correct")
    members: dict[int, list[str]] = {}
    for step, group in zip(experience.steps, experience.group.tolist(), strict=True):
        members.setdefault(group, []).append(step)
    assert sorted(members.values()) == [["x.0", "y.0"], ["x.1"], ["x.v", "y.v"], ["z.0"]]


def test_only_trained_policies_have_rows_and_names(trajectories) -> None:
    experience = build_experience(trajectories, [(4.0, None), (1.0, 2.0, None)], POLICIES, ["solver"], "correct")
    assert experience.steps == ("t1.0", "t2.0")
    assert (experience.agents, experience.policies) == (("solver",), ("solver",))


def test_agents_that_share_a_policy_keep_their_own_names(make_step, make_trajectory) -> None:
    steps = [make_step("s0", "solver", policy="all"), make_step("s1", "coder", policy="all", position=1)]
    experience = build_experience(
        [make_trajectory("t", steps)], [(1.0, 1.0)], dict.fromkeys(POLICIES, "all"), ["all"], "correct"
    )
    assert experience.policies == ("all",)
    assert experience.policy.tolist() == [0, 0]
    assert [experience.agents[k] for k in experience.agent] == ["solver", "coder"]


def test_an_action_without_tokens_has_no_row(make_step, make_trajectory) -> None:
    steps = [make_step("api", tokens=None, prompt=None), make_step("own", position=1)]
    experience = build_experience([make_trajectory("t", steps)], [(1.0, 2.0)], POLICIES, POLICIES, "correct")
    assert experience.steps == ("own",)
    assert experience.reward.tolist() == [2.0]


def test_a_version_is_known_for_every_token(make_step, make_trajectory) -> None:
    spans = (VersionSpan(version=3, start=0, end=2), VersionSpan(version=4, start=2, end=3))
    made = [make_trajectory("t", [make_step("s", versions=spans)])]
    experience = build_experience(made, [(1.0,)], POLICIES, POLICIES, "correct")
    assert experience.version.tolist() == [3, 3, 4]


def test_sampling_masks_are_ragged_columns(make_step, make_trajectory) -> None:
    def step(name, position, masks):
        sizes = None if masks is None else np.array([len(one) for one in masks], np.int32)
        flat = None if masks is None else np.array([token for one in masks for token in one], np.int32)
        made = make_step(name, position=position, turn=position)
        return replace(made, completion=replace(made.completion, mask_tokens=flat, mask_sizes=sizes))

    steps = [step("a", 0, [[10, 4], [11], [12, 3, 5]]), step("b", 1, None), step("c", 2, [[10], [11, 7], []])]
    made = make_trajectory("t", steps)
    experience = build_experience([made], [(1.0,) * 3], POLICIES, POLICIES, "correct")
    assert experience.mask_tokens.tolist() == [10, 4, 11, 12, 3, 5, 10, 11, 7]
    assert experience.mask_offsets.tolist() == [0, 2, 3, 6, 6, 6, 6, 7, 9, 9]
    taken = select_rows(experience, np.array([2, 0]))
    assert taken.mask_tokens.tolist() == [10, 11, 7, 10, 4, 11, 12, 3, 5]
    assert taken.mask_offsets.tolist() == [0, 1, 3, 3, 5, 6, 9]
    assert select_rows(experience, np.array([1])).mask_offsets.tolist() == [0, 0, 0, 0]
    plain = build_experience([make_trajectory("t", steps[1:2])], [(1.0,)], POLICIES, POLICIES, "correct")
    assert plain.mask_tokens is plain.mask_offsets is None
    broken = replace(steps[0], completion=replace(steps[0].completion, mask_sizes=np.array([2, 1, 2], np.int32)))
    with pytest.raises(ValueError, match="step a: its sampling mask"):
        build_experience([make_trajectory("t", [broken])], [(1.0,)], POLICIES, POLICIES, "correct")


@pytest.mark.parametrize("made", [[], ["empty"]])
def test_an_iteration_without_actions_is_an_experience_of_no_rows(made: list[str], make_trajectory) -> None:
    experience = build_experience(
        [make_trajectory(name) for name in made], [()] * len(made), POLICIES, POLICIES, "correct"
    )
    assert (len(experience.reward), len(experience.tokens), len(experience.prompt_tokens)) == (0, 0, 0)
    assert experience.offsets.tolist() == experience.prompt_offsets.tolist() == [0]
    assert experience.agents == ("solver", "coder", "verifier")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"tokens": []}, "sampled no token"),
        ({"prompt": []}, "no prompt tokens"),
        ({"prompt": None}, "no prompt tokens"),
        ({"logprobs": None}, "one log-probability of the sampler per token"),
        ({"logprobs": np.zeros(2, np.float32)}, "one log-probability of the sampler per token"),
        ({"versions": ()}, "do not tile its 3 tokens"),
        ({"versions": (VersionSpan(version=0, start=0, end=2),)}, "do not tile its 3 tokens"),
        ({"versions": (VersionSpan(version=0, start=1, end=3),)}, "do not tile its 3 tokens"),
        ({"policy": "other"}, "was sampled by the policy other, and its agent .* is trained as solver"),
    ],
)
def test_a_step_that_cannot_be_trained_on_is_named(broken, message: str, make_step, make_trajectory) -> None:
    with pytest.raises(ValueError, match=f"^step s\\b.*{message}"):
        build_experience([make_trajectory("t", [make_step("s", **broken)])], [(1.0,)], POLICIES, POLICIES, "correct")


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused(reward: float, make_step, make_trajectory) -> None:
    with pytest.raises(ValueError, match="a missing reward is None"):
        build_experience([make_trajectory("t", [make_step("s")])], [(reward,)], POLICIES, POLICIES, "correct")


def test_rewards_must_match_the_steps_and_ids_must_differ(make_step, make_trajectory) -> None:
    one = make_trajectory("t", [make_step("s")])
    with pytest.raises(ValueError, match="zip"):
        build_experience([one], [(1.0, 2.0)], POLICIES, POLICIES, "correct")
    with pytest.raises(ValueError, match="two trajectories of one iteration have the id t"):
        build_experience([one, one], [(1.0,), (1.0,)], POLICIES, POLICIES, "correct")


def test_taking_rows_takes_all_their_columns(experience: Experience) -> None:
    taken = select_rows(experience, np.array([4, 1]))
    assert taken.steps == ("t2.1", "t1.1")
    assert taken.tokens.tolist() == [21, 13]
    assert taken.offsets.tolist() == [0, 1, 2]
    assert taken.prompt_tokens.tolist() == [8, 8, 7]
    assert taken.prompt_offsets.tolist() == [0, 2, 3]
    assert taken.reward.tolist() == [4, 2]
    assert taken.agents == experience.agents
    assert taken.old_logprobs is None
    everything = select_rows(experience, np.arange(5))
    for field in fields(Experience):
        np.testing.assert_array_equal(getattr(everything, field.name), getattr(experience, field.name))


def test_taking_rows_knows_every_column_of_the_record(make_experience) -> None:
    lengths = [2, 1, 3]
    experience = make_experience(lengths, [0, 1, 2], old_logprobs=range(6), ref_logprobs=range(6))
    taken = select_rows(experience, np.array([2]))
    for field in fields(Experience):
        values = getattr(taken, field.name)
        if isinstance(values, np.ndarray):
            before = len(getattr(experience, field.name))
            assert (before, len(values)) in {(3, 1), (6, 3), (4, 2)}, field.name
