"""The task source, alone and with a team."""

import asyncio
from dataclasses import replace

import pytest

from mappa.testing import PackageContract, TaskSourceContract, play
from mappa_core import ConfigError, Task, TaskError, ToolSpec
from mappa_mathchat.workflow import MathChat, MathChatOptions
from mappa_reasoning_gym.options import ReasoningGymOptions
from mappa_reasoning_gym.tasks import ReasoningGymTasks, is_held_out

CHAIN = {"dataset": "chain_sum", "config": {"min_terms": 2, "max_terms": 3, "max_digits": 2}, "train": 20, "eval": 5}


def source(**options) -> ReasoningGymTasks:
    return ReasoningGymTasks(ReasoningGymOptions(**{**CHAIN, **options}))


class TestPackage(PackageContract):
    plugin = "reasoning-gym"


class TestTasks(TaskSourceContract):
    def source(self):
        return source()


def test_tasks_say_how_they_were_drawn_and_how_hard_they_are():
    task = source().load("train")[0]
    assert task.meta.keys() == {"dataset", "config", "index"}
    assert task.stratum in {f"num_digits {digits}, num_terms {terms}" for digits in (1, 2) for terms in (2, 3)}


def test_a_seed_draws_others_and_moves_none_across_the_split():
    first, second = source().load("train"), source(seed=7).load("train")
    assert {task.id for task in first} != {task.id for task in second}
    assert not any(is_held_out(task.prompt) for task in (*first, *second))
    assert all(is_held_out(task.prompt) for task in source(seed=7).load("eval"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, "no data set 'chain_sums'. Did you mean .*chain_sum"),
        ({"dataset": "mathematics"}, "no data set 'mathematics'. There is: ab, acre"),
        ({"dataset": "game_of_life_halting"}, "full marks to every answer"),
        ({"config": {"min_term": 2}}, "config: chain_sum does not take these parameters.*min_term"),
        ({"config": {"max_terms": 1}}, "config: chain_sum does not take these parameters"),
        ({"config": {"min_terms": 2, "max_terms": 2, "max_digits": 1}, "train": 2000}, "different questions in"),
    ],
)
def test_what_cannot_be_drawn_is_said(options, message):
    with pytest.raises(ConfigError, match=message):
        source(**options).load("train")


@pytest.mark.parametrize(
    ("options", "message"), [({"train": -1}, "train: must not"), ({"config": {"seed": 1}}, "config: seed follows")]
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        ReasoningGymOptions(**{**CHAIN, **options}).check()


def test_a_recorded_task_is_graded_by_how_it_was_drawn():
    task = source().load("eval")[0]
    later = source(dataset="gsm_symbolic", config={})
    assert asyncio.run(later.grade_answer(task.reference, task)) == 1.0
    with pytest.raises(TaskError, match="another question"):
        asyncio.run(later.grade_answer("0", replace(task, meta={**task.meta, "index": task.meta["index"] + 1})))
    with pytest.raises(TaskError, match="does not say how"):
        asyncio.run(later.grade_answer("0", Task(id="own", prompt="1 + 1?")))


def test_partial_marks_count_only_if_they_are_asked_for():
    gsm = {"dataset": "gsm_symbolic", "config": {}, "train": 1}
    (task,) = source(**gsm).load("train")
    assert asyncio.run(source(**gsm).grade_answer("1", task)) == 0.0
    assert asyncio.run(source(**gsm, partial=True).grade_answer("1", task)) == 0.01


class Unused:
    """A tool that nobody calls."""

    spec = ToolSpec(name="python", description="runs a program", schema={})

    async def call(self, arguments, workspace, limits):
        raise AssertionError(arguments)

    async def close(self):
        pass


@pytest.mark.parametrize(
    ("box", "correct", "parsed"), [("\\boxed{{{}}}", 1.0, 1.0), ("{}", 0.0, 0.0), ("\\boxed{{{}0}}", 0.0, 1.0)]
)
def test_a_team_decides_what_its_answer_is_and_the_source_what_it_is_worth(box, correct, parsed):
    tasks = source()
    task = tasks.load("train")[0]
    replies = ["add", "no code", box.format(task.reference)]
    team = MathChat(MathChatOptions(prompts="tiny"))
    played = asyncio.run(play(team, task, replies, tools={"python": Unused()}, grader=tasks))
    assert played.outcome == {"correct": correct, "parsed": parsed}
